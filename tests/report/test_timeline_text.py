"""The table of a timeline's segments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from placewright.core.placement import Placement
from placewright.core.quantities import value_text
from placewright.report.timeline_text import timeline_rows
from placewright.simulation.model import Simulator
from tests.report.report_problems import feasible_rows, odd_problem


@pytest.mark.parametrize("seed", range(6))
def test_every_segment_is_a_row_without_a_pass_over_all_units_for_each(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = odd_problem(seed)
    simulator = Simulator(problem)
    feasible = feasible_rows(problem, seed)
    timeline = simulator.timeline(Placement.of(feasible[0]))
    assert len(timeline.waits) == problem.n_units  # computed once, before the table is
    segments: dict[int, list[int]] = {}
    for unit, segment in enumerate(timeline.segment_of.tolist()):
        segments.setdefault(segment, []).append(unit)
    expected = []
    for segment, units in sorted(segments.items()):
        first = min(units, key=lambda unit: timeline.start[unit])
        start = value_text(timeline.start[first], problem.time_unit)
        end = value_text(max(timeline.end[unit] for unit in units), problem.time_unit)
        device = problem.cluster.device_names[timeline.device_of[first]]
        expected.append([str(segment), device, start, end])

    def refused(*_: Any) -> None:
        raise AssertionError("a search over all units")

    monkeypatch.setattr(np, "flatnonzero", refused)
    assert [row[:4] for row in timeline_rows(problem, timeline)] == expected

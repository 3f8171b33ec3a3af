"""A stored calibration answers for the model and the input shapes that it was measured with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from profiling.synthetic import SOURCE, chain

from placewright.core.cluster import Cluster, Device
from placewright.core.costs import CostTable
from placewright.core.grouping import Grouping
from placewright.core.problem import Problem
from placewright.profiling.store import CostStore
from placewright.workflow import problems


def test_other_input_shapes_are_calibrated_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Two batches of one model have the same file, and the same number of units."""
    measured: list[Any] = []

    def calibrated(problem: Problem, *_: Any, **__: Any) -> Problem:
        measured.append(problem.source)
        return problem

    monkeypatch.setattr(problems, "calibrated", calibrated)
    store = CostStore(tmp_path / "store")
    costs, units = CostTable(np.ones((3, 1)), "measured"), Grouping.identity(3)
    for batch in (1, 1, 8):
        source = replace(SOURCE, shapes={"x": (batch, 4)})
        problem = Problem(chain(3), Cluster((Device("a"),)), costs, units, source=source)
        problems._calibrated(problem, None, store, "runtime 1", problems.no_report)
    assert [source.shapes["x"] for source in measured] == [(1, 4), (8, 4)]

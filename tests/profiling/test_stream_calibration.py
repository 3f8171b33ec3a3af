"""What streams cost: costs that made a stream are found again, and predictions with them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from execution.adding import Adding, layered

from placewright.core.arrays import frozen_floats
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.execution_models import EVENT, MaxLoad
from placewright.core.grouping import Grouping
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.execution.requests import Execution
from placewright.execution.runtime import whole_segment
from placewright.profiling.evidence import drawn_placement
from placewright.profiling.segment_fit import SegmentRow, segment_rows
from placewright.profiling.stream_calibration import (
    LEAST_PLACEMENTS,
    fitted_problem,
    gaps_between,
    has_stream_overheads,
    period_of,
    stream_calibration,
    stream_parts,
)
from placewright.simulation.model import Simulator
from placewright.testing.problems import random_problem


def problem_of(seed: int) -> Problem:
    """A random model of 60 ops on two devices of one memory, without limits and transfers."""
    made = random_problem(
        np.random.default_rng(seed),
        n_ops=60,
        n_devices=2,
        objective="throughput",
        constrained=False,
    )
    devices = tuple(
        replace(one, memory_domain="ram", memory_bytes=np.inf, streams=1, pays_transfers=False)
        for one in made.cluster.devices
    )
    links = tuple(replace(link, bandwidth=np.inf) for link in made.cluster.links)
    cluster = replace(made.cluster, devices=devices, links=links, contention={})
    return replace(made, cluster=cluster, execution_model=MaxLoad(samples_in_flight=0), pins={})


def with_costs(problem: Problem, contention: float, dispatch: float, cut: float) -> Problem:
    """What a machine really takes."""
    devices = tuple(
        replace(one, dispatch_seconds=dispatch, cut_seconds=cut, fingerprint="core")
        for one in problem.cluster.devices
    )
    cluster = replace(problem.cluster, devices=devices, contention={"ram": (1.0, contention)})
    return replace(problem, cluster=cluster)


def executions(problem: Problem, placement: Placement, noise: float) -> list[Execution]:
    """A played stream as a runner would report it."""
    rng = np.random.default_rng(1)
    stream = Simulator(problem).stream(placement, samples=14, in_flight=4)
    tasks = stream.tasks
    found = []
    for sample in range(14):
        spans = []
        for one in tasks.of_segment:
            begin = float(stream.begin[sample, one.compute] - stream.entry[sample])
            seconds = float(tasks.tables.seconds[one.compute]) * (1 + noise * abs(rng.normal()))
            spans.append((begin, begin + seconds))
        found.append(Execution((), {}, 0.0, tuple(spans), float(stream.entry[sample])))
    return found


def refitted(problem: Problem, truth: Problem, noise: float) -> Problem:
    """The problem with what eight streams of the real machine tell."""
    rows: list[SegmentRow] = []
    for number in range(8):
        device_of = drawn_placement(problem, np.random.default_rng(number), number)
        placement = Placement.of(device_of)
        spans = np.array([one.spans for one in executions(truth, placement, noise)])
        rows += segment_rows(problem, stream_parts(problem, placement), device_of, spans)
    named = with_costs(problem, 1.0, 0.0, 0.0)
    return fitted_problem(named, rows, [])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("costs", [(1.0, 0.0, 0.0), (1.3, 0.5, 0.0), (1.1, 0.2, 0.1)])
@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_streams_of_known_costs_are_predicted_again(
    seed: int, costs: tuple[float, float, float], noise: float
) -> None:
    """Also of placements that the fit has not seen; without the fit some are far off."""
    problem = problem_of(seed)
    truth = with_costs(problem, *costs)
    fitted = refitted(problem, truth, noise)
    rng = np.random.default_rng(seed + 100)
    errors = []
    for _ in range(10):
        placement = Placement.of(rng.integers(0, 2, problem.n_units))
        if not np.isfinite(Simulator(problem).value(placement)):
            continue
        mine, other = (
            Simulator(one).stream(placement, samples=40, in_flight=4).steady.period
            for one in (fitted, truth)
        )
        errors.append(abs(mine / other - 1.0))
    assert np.median(errors or [0.0]) < 0.05 + noise


def test_a_gap_counts_where_the_next_segment_was_ready() -> None:
    """Two samples on two devices, worked by hand: the second device waits for the first one."""
    problem = problem_of(0)
    order = problem.unit_graph.topological_order
    device_of = np.zeros(problem.n_units, dtype=np.int64)
    device_of[order[problem.n_units // 2 :]] = 1
    parts = stream_parts(problem, Placement.of(device_of))
    assert [part.device for part in parts] == [0, 1]
    first = Execution((), {}, 0.0, ((0.0, 4.0), (5.0, 7.0)), 0.0)
    second = Execution((), {}, 0.0, ((4.5, 8.0), (9.0, 11.0)), 0.0)
    # Device 0 began its second segment 0.5 after the first; device 1 had nothing to begin at 7.
    assert gaps_between(problem, parts, [first, second]) == pytest.approx([0.5])
    late = Execution((), {}, 0.0, ((4.5, 6.0), (7.25, 11.0)), 0.0)
    assert gaps_between(problem, parts, [first, late]) == pytest.approx([0.5, 0.25])
    links = tuple(replace(link, bandwidth=1e-9) for link in problem.cluster.links)
    copied = replace(problem, cluster=replace(problem.cluster, links=links))
    assert gaps_between(copied, parts, [first, late]) == pytest.approx([0.5])  # still on its way


def test_gaps_are_part_of_what_each_segment_costs() -> None:
    problem = with_costs(problem_of(1), 1.0, 0.0, 0.0)
    counts = np.array([1.0, 0.0, 0.0, 0.0, 0.0])
    rows = [SegmentRow(at % 2, 2, 2.0, counts, 2.0) for at in range(6)]
    fitted = fitted_problem(problem, rows, [0.1, 0.3, 0.2])
    assert [one.dispatch_seconds for one in fitted.cluster.devices] == pytest.approx([0.2, 0.2])


def test_a_period_is_that_from_burst_to_burst() -> None:
    """Three samples each 9 s, done within 2 s of each other: 3 s per sample, whichever count."""
    ends = np.array([9.0 * burst + late for burst in range(6) for late in (0.0, 1.0, 2.0)])
    for length in (15, 16, 17, 18):
        assert period_of(ends[:length], 3, 3) == pytest.approx(3.0)
    assert period_of(ends[:16], 3, 1) == pytest.approx(3.0)
    assert period_of(ends[:14], 3, 1) == pytest.approx(19.0 / 7)  # cut within a burst
    assert period_of(np.array([0.0, 2.0, 4.0]), 0, 5) == pytest.approx(2.0)  # too few for one


def test_only_streams_of_several_single_devices_are_calibrated() -> None:
    problem = problem_of(0)
    assert has_stream_overheads(problem)
    assert not has_stream_overheads(problem.under(EVENT))


class _Streamed(Adding):
    """Ops that add numbers, with what calibration asks of a loaded model."""

    def random_inputs(self, rng: np.random.Generator) -> list[Any]:
        return [np.float64(rng.random())]

    def reference(self, device: Device) -> Any:
        return self.compile([whole_segment(self.graph)], [device])[0]


def test_streams_that_break_a_limit_on_memory_are_no_complete_calibration() -> None:
    """None was left to measure, and so none was missing."""
    graph = layered([(op, op + 1) for op in range(11)], 12)
    small = (Device("cpu", "cpu"), Device("gpu", "gpu", memory_bytes=3.0))  # a tensor has 4 bytes
    names = ("cpu", "gpu", "host")
    links = tuple(Link(a, b, 1e-6) for a in names for b in names if a != b)
    costs = CostTable(frozen_floats(np.full((12, 2), 10.0)), "measured")
    problem = Problem(
        graph, Cluster(small, links), costs, Grouping.identity(12),
        objective="throughput", execution_model=MaxLoad(samples_in_flight=0),
    )  # fmt: skip
    model: Any = _Streamed(graph)
    fit = stream_calibration(problem, model, np.random.default_rng(0))
    assert fit.streams < LEAST_PLACEMENTS
    assert not fit.is_complete
    assert fit.problem is problem

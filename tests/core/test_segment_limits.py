"""Limits on segments: where long ones end, what is infeasible, what is refused, what would help."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import networkx as nx
import numpy as np
import pytest

from placewright.core.cluster import Device
from placewright.core.execution_models import MaxLoad
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.core.solution import Budget
from placewright.errors import BudgetSpent, ClusterError, InfeasibleError
from placewright.files.cluster_file import read_cluster, write_cluster
from placewright.placers.advice import SegmentChange, advice, smallest_changes
from placewright.placers.legal import with_fewer_segments
from placewright.placers.registry import make_placer
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.model import Simulator
from placewright.simulation.segments import segments_of


def _chain(segments: int | None, segment_ops: int | None, cpu: float = 4.0) -> Problem:
    """Six ops in a row on an NPU, 1 s each and 0.25 s for each segment, or a CPU, `cpu` s each."""
    graph = nx.DiGraph()
    for first, second in zip("abcde", "bcdef", strict=True):
        graph.add_edge(first, second, bytes=8.0)
    seconds = np.tile([cpu, 1.0], (6, 1))
    whole = Problem.from_costs(graph, seconds, (0.0, math.inf), devices=["cpu", "npu"])
    host, npu = whole.cluster.devices
    npu = replace(npu, dispatch_seconds=0.25, max_segments=segments, max_segment_ops=segment_ops)
    return replace(whole, cluster=replace(whole.cluster, devices=(host, npu)))


@pytest.mark.parametrize(
    ("segment_ops", "value"), [(None, 6.25), (6, 6.25), (4, 6.5), (2, 6.75), (1, 7.5)]
)
def test_a_long_segment_is_divided_and_each_piece_costs_a_dispatch(
    segment_ops: int | None, value: float
) -> None:
    problem = _chain(None, segment_ops)
    placement = Placement.of([1] * 6)
    timeline = Simulator(problem).timeline(placement)
    assert timeline.value == value
    cut = segments_of(problem, placement, timeline.order)
    assert len(cut) == len(np.unique(timeline.segment_of)) == round((value - 6.0) / 0.25)
    assert max(len(segment.units) for segment in cut) <= (segment_ops or 6)


def test_units_are_whole_and_count_their_ops() -> None:
    """abc and def are units of three ops, which no segment of four ops holds together."""
    from placewright.core.grouping import Grouping

    problem = _chain(2, 4).coarsened(Grouping.from_labels([0, 0, 0, 1, 1, 1]))
    assert Simulator(problem).value(Placement.of([1, 1])) == 6.5
    tight = _chain(2, 2).coarsened(Grouping.from_labels([0, 0, 0, 1, 1, 1]))
    assert Simulator(tight).value(Placement.of([1, 1])) == 6.5


def test_more_segments_than_the_device_may_run_are_infeasible_and_named() -> None:
    problem = _chain(2, 2)
    violation = Simulator(problem).violation(Placement.of([1] * 6))
    assert violation is not None
    assert (violation.constraint, violation.where, violation.excess) == ("segments", "npu", 1.0)
    assert "device 'npu' needs 3 segments and may run 2: 1 too many" in violation.message
    # Four ops on the NPU, a break on the CPU: segments ab and ef.
    assert Simulator(problem).value(Placement.of([1, 1, 0, 0, 1, 1])) == 4 + 8 + 0.5


@pytest.mark.parametrize("limit", [2**32, 2**63 - 1])
def test_a_limit_beyond_the_bits_of_a_record_is_none(limit: int) -> None:
    assert Simulator(_chain(limit, limit)).value(Placement.of([1] * 6)) == 6.25


def test_the_order_decides() -> None:
    """Ops a and c on the NPU; b on the CPU reads a. In the order a, c the segment ends after a."""
    graph = nx.DiGraph([("a", "b")])
    graph.add_node("c")
    whole = Problem.from_costs(graph, np.ones((3, 2)), (0.0, math.inf), devices=["cpu", "npu"])
    host, npu = whole.cluster.devices
    devices = (host, replace(npu, max_segments=1))
    problem = replace(whole, cluster=replace(whole.cluster, devices=devices))
    at = {name: unit for unit, name in enumerate(problem.unit_graph.op_names)}
    device_of = [0 if name == "b" else 1 for name in problem.unit_graph.op_names]
    simulator = Simulator(problem)
    first = simulator.value(Placement.of(device_of, [at["a"], at["c"], at["b"]]))
    assert (first, simulator.value(Placement.of(device_of, [at["c"], at["a"], at["b"]]))) == (
        math.inf,
        3.0,
    )


def test_segments_leave_a_device_until_the_rest_is_few_enough() -> None:
    """Of ab, cd, ef on the NPU one goes: the CPU takes 3 s more for each op, 6 s for the first."""
    problem = _chain(2, 2)
    device_of, order = with_fewer_segments(problem, np.ones(6, dtype=np.int64))
    assert (device_of == 0).sum() == 2
    assert math.isfinite(Simulator(problem).value(Placement.of(device_of, order)))


def test_the_budget_ends_the_search_for_fewer_segments() -> None:
    with pytest.raises(BudgetSpent):
        with_fewer_segments(_chain(2, 2), np.ones(6, dtype=np.int64), is_over=lambda: True)


@pytest.mark.parametrize("name", ["single", "heft", "peft", "m-etf", "m-topo", "local-search"])
def test_placers_find_a_placement(name: str) -> None:
    problem = _chain(1, 2)
    evaluator = Evaluator(problem, Budget(evaluations=50))
    solution = make_placer(name).place(problem, evaluator, np.random.default_rng(0))
    assert solution.placement is not None
    assert math.isfinite(Simulator(problem).value(solution.placement))


def test_the_smallest_number_that_helps_is_advised() -> None:
    """The CPU runs nothing, so that the NPU needs three segments of two ops."""
    problem = _chain(1, 2, cpu=math.inf)
    change = smallest_changes(problem)[0]
    assert change == SegmentChange("npu", 3, 2, True)
    assert "`segments: 3` for 'npu' in the cluster file" in advice(problem)


def test_a_stream_keeps_the_limits() -> None:
    with pytest.raises(InfeasibleError, match="needs 3 segments on device 'npu', which may run 2"):
        Simulator(_chain(2, 2)).stream(Placement.of([1] * 6))
    assert len(Simulator(_chain(3, 2)).stream(Placement.of([1] * 6)).segments) == 3


def test_models_that_count_no_segments_refuse_them() -> None:
    with pytest.raises(ClusterError, match="device 'npu' limits its segments, which execution"):
        _chain(2, None).under(MaxLoad(samples_in_flight=1))
    with pytest.raises(ClusterError, match="max_segments must be whole, >= 1, got 0"):
        Device("npu", max_segments=0)


def test_a_cluster_file_keeps_them(tmp_path: Path) -> None:
    cluster = _chain(2, 5).cluster
    write_cluster(tmp_path / "c.yaml", cluster)
    again = read_cluster(tmp_path / "c.yaml")
    assert again.devices == cluster.devices
    assert "segment" not in (tmp_path / "c.yaml").read_text().split("npu")[0]

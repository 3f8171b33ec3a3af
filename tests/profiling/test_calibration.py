"""The fit of overheads and contention, on segments whose costs are known."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from execution.adding import Adding, layered
from support.segment_rows import segments
from support.small_problems import graph_of, problem_of

from placewright.core.arrays import frozen_floats
from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.grouping import Grouping
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.execution.runtime import segments_of_ops, whole_segment
from placewright.profiling.calibration import DEFAULT_DISPATCH, TrialPlan, _waits, calibration
from placewright.profiling.evidence import (
    LEAST_TRIALS,
    Evidence,
    Outcome,
    earliest_finish_placement,
    wandering_placement,
)
from placewright.profiling.measure import Rounds
from placewright.profiling.segment_fit import SegmentRow, device_sum, fitted_cluster
from placewright.simulation.serving import served_seconds
from placewright.testing.problems import random_problem

CLUSTER = Cluster(
    tuple(Device(name, memory_domain="cpu", fingerprint="core") for name in ("a", "b")),
    (Link("a", "b"), Link("b", "a")),
)


def test_what_segments_cost_comes_out() -> None:
    """All six costs, from segments of one and of two devices in use."""
    rng = np.random.default_rng(0)
    alone = [
        SegmentRow(row.device, 1, row.unit_seconds, row.counts, row.seconds)
        for row in segments(rng, 60, 1e-3, 1.0)
    ]
    cluster = fitted_cluster(CLUSTER, alone + segments(rng, 60, 1e-3, 1.25), [])
    device = cluster.devices[0]
    assert device.dispatch_seconds == pytest.approx(30e-6, rel=0.01)
    assert device.cut_seconds == pytest.approx(5e-6, rel=0.01)
    assert device.cut_seconds_per_byte == pytest.approx(1e-10, rel=0.01)
    assert device.layout_seconds == pytest.approx(20e-6, rel=0.01)
    assert device.layout_seconds_per_byte == pytest.approx(2e-10, rel=0.01)
    assert cluster.contention["cpu"] == pytest.approx((1.0, 1.25), rel=0.001)
    assert cluster.devices[1].layout_seconds == device.layout_seconds


def test_the_share_of_splits_in_one_thread_comes_out() -> None:
    """Each unit takes an eighth longer there, besides what it costs to begin a segment."""
    rng = np.random.default_rng(2)
    rows = [replace(row, devices_in_use=1) for row in segments(rng, 60, 1e-3, 1.0)]
    slower = [
        replace(row, seconds=row.seconds + row.unit_seconds / 8, in_one_thread=True) for row in rows
    ]
    for others in ([], segments(rng, 60, 1e-3, 1.25)):
        device = fitted_cluster(CLUSTER, slower + others, []).devices[1]
        assert device.split_share == pytest.approx(0.125, rel=0.01)
        assert device.dispatch_seconds == pytest.approx(30e-6, rel=0.01)
    assert fitted_cluster(CLUSTER, rows, []).devices[0].split_share == 0.0


def test_a_few_disturbed_segments_decide_nothing() -> None:
    """Five of 120 took a millisecond longer for a reason of their own."""
    rng = np.random.default_rng(1)
    rows = segments(rng, 120, 5e-3, 1.1)
    for number in range(0, 100, 20):
        row = rows[number]
        rows[number] = SegmentRow(row.device, 2, row.unit_seconds, row.counts, row.seconds + 1e-3)
    cluster = fitted_cluster(CLUSTER, rows, [])
    assert cluster.contention["cpu"][1] == pytest.approx(1.1, rel=0.005)
    assert cluster.devices[0].dispatch_seconds == pytest.approx(30e-6, rel=0.05)


def test_the_scatter_of_each_device_is_that_of_its_rounds() -> None:
    """Rounds of one device are within 2 % of the fit, those of the other within 20 %."""
    rng = np.random.default_rng(4)
    rows = segments(rng, 80, 5e-3, 1.1)
    for row in segments(rng, 40, 5e-3, 1.1):
        width = (0.02, 0.2)[row.device]
        rounds = row.seconds * np.exp(np.linspace(-width, width, 41))
        rows.append(device_sum([row], rounds))
    one, other = fitted_cluster(CLUSTER, rows, []).devices
    assert one.speed_scatter == pytest.approx(np.expm1(0.019), rel=0.1)
    assert other.speed_scatter == pytest.approx(np.expm1(0.19), rel=0.1)


class _Calibrated(Adding):
    """Ops that add numbers, with what calibration asks of a loaded model."""

    def random_inputs(self, rng: np.random.Generator) -> list[Any]:
        return [np.float64(rng.random())]

    def reference(self, device: Device) -> Any:
        return self.compile([whole_segment(self.graph)], [device])[0]


@pytest.mark.parametrize(
    ("chains", "in_threads", "only_last"), [(1, False, True), (1, True, False), (2, False, False)]
)
def test_placements_without_overlap_run_in_their_callers_thread(
    chains: int, in_threads: bool, only_last: bool
) -> None:
    """A chain on equal cores does, unless it stands for other models, but for the last two."""
    n_ops = 12
    graph = layered([(op, op + chains) for op in range(n_ops - chains)], n_ops)
    callers: set[threading.Thread] = set()
    model: Any = _Calibrated(graph, hook=lambda _op: callers.add(threading.current_thread()))
    model.reference = lambda device: _Calibrated(graph).reference(device)  # not of a placement
    costs = CostTable(frozen_floats(np.full((n_ops, 2), 1e-3)), "measured")
    names = ("cpu:0", "cpu:1", "host")
    cores = tuple(Device(n, "cpu", fingerprint="core", memory_domain="ram") for n in names[:2])
    links = tuple(Link(a, b, 1e-6) for a in names for b in names if a != b)
    problem = Problem(graph, Cluster(cores, links), costs, Grouping.identity(n_ops))
    found = calibration(
        problem, model, np.random.default_rng(0), TrialPlan(8, in_threads=in_threads)
    )
    assert found.is_complete
    assert found.placements == 8
    contended = {row.trial for row in found.evidence.rows if row.devices_in_use == 2}
    assert contended
    assert (contended <= {6, 7}) == only_last
    # With two chains a core may always have something to do while the other's tensors come.
    assert found.evidence.waits or chains == 2
    assert "placewright cpu:1" in {thread.name for thread in callers}
    assert (threading.current_thread() in callers) == (not in_threads)


@pytest.mark.parametrize("place", ["host", "thread"])
def test_a_call_costs_more_than_its_segments(place: str) -> None:
    """The host gives its input in 3 ms, or ops take twice as long in the thread of the caller.

    No device, cut or segment is slower for it: costs of units are those of another thread.
    """
    graph = layered([(op, op + 1) for op in range(5)], 6)
    caller = threading.current_thread()

    def work(_op: int) -> None:
        is_slow = place == "thread" and threading.current_thread() is caller
        time.sleep(2e-3 if is_slow else 1e-3)

    model: Any = _Calibrated(graph, hook=work)
    model.reference = lambda device: _Calibrated(graph, hook=model.hook).reference(device)
    given, cores = model.from_host, CLUSTER.devices

    def slowly(value: Any) -> Any:
        time.sleep(3e-3 if place == "host" and threading.current_thread() is caller else 0)
        return given(value)

    model.from_host = slowly
    costs = CostTable(frozen_floats(np.full((6, 2), 1e-3)), "measured")
    ends = ("a", "b", "host")
    links = tuple(Link(x, y, 1e-6) for x in ends for y in ends if x != y)
    cores = tuple(replace(core, kind="cpu") for core in cores)
    problem = Problem(graph, Cluster(cores, links), costs, Grouping.identity(6))
    few = TrialPlan(4, Rounds(7, 7))
    found = calibration(problem, model, np.random.default_rng(0), few).problem
    expected = {"host": 3e-3, "thread": 6e-3}[place]
    assert expected / 3 < found.cluster.call_seconds < 2 * expected
    assert found.cluster.devices[0].dispatch_seconds < 1e-3
    assert found.cluster.devices[0].split_share < 0.2
    whole = Placement.on_one_device(6, 0)
    in_all = 6e-3 + 2e-6 + found.cluster.call_seconds  # with the links of the host
    assert served_seconds(found, whole) == pytest.approx(in_all)


@pytest.mark.parametrize("has_machine", [False, True])
def test_an_accelerator_without_room_leaves_no_costs_out(has_machine: bool) -> None:
    """Its placements counted as measured: then a split cost nothing beside its units."""
    graph = layered([(op, op + 1) for op in range(11)], 12)
    model: Any = _Calibrated(graph)
    costs = CostTable(frozen_floats(np.full((12, 2), 1e-3)), "measured")
    small = (Device("cpu", "cpu"), Device("gpu", "gpu", memory_bytes=3.0))  # a tensor has 4 bytes
    names = ("cpu", "gpu", "host")
    links = tuple(Link(a, b, 1e-6) for a in names for b in names if a != b)
    problem = Problem(graph, Cluster(small, links), costs, Grouping.identity(12))
    counts = np.array([1.0, 0.0, 0.0, 0.0, 0.0])
    rows = tuple(SegmentRow(at, 1, 1e-3, counts, 2e-3) for at in (0, 1))
    machine = Evidence(rows, outcomes=(Outcome(2.0, 1.9, 1.0),) * 4) if has_machine else None
    found = calibration(problem, model, np.random.default_rng(0), machine=machine)
    assert found.placements < LEAST_TRIALS
    cluster = found.problem.cluster
    assert cluster.prediction_error is not None
    if not has_machine:
        assert cluster.devices[1].dispatch_seconds == DEFAULT_DISPATCH


def test_a_wait_is_without_the_seconds_of_its_bytes() -> None:
    """Their link has a bandwidth, and they would count twice."""
    links = [Link("d0", "d1", 0.0, 1e9), Link("d1", "d0", 0.0, 1e9)]
    graph = graph_of(2, [(0, [1])], size=1e6)
    problem = problem_of(graph, [[1.0, 1.0], [1.0, 1.0]], links)
    parts = segments_of_ops(graph, [(0, [0]), (1, [1])])
    (wait,) = _waits(problem, parts, np.array([(0.0, 1.0), (1.0025, 2.0)]))
    assert (wait.source, wait.destination) == (0, 1)
    assert wait.seconds == pytest.approx(1.5e-3)


def test_costs_are_never_negative() -> None:
    """Segments that were faster than the sum of their units."""
    rng = np.random.default_rng(3)
    rows = [
        SegmentRow(row.device, 2, row.unit_seconds, row.counts, 0.8 * row.unit_seconds)
        for row in segments(rng, 50, 1e-3, 1.0)
    ]
    cluster = fitted_cluster(CLUSTER, rows, [])
    assert cluster.contention["cpu"] == (1.0, 1.0)
    for device in cluster.devices:
        assert device.dispatch_seconds == device.cut_seconds == device.layout_seconds == 0.0


def test_the_sum_of_a_device_decides_where_segments_have_a_long_tail() -> None:
    """A tenth of all segments costs half a millisecond more: 50 us on average, 0 at the median."""
    rng = np.random.default_rng(4)
    rows = segments(rng, 400, 1e-4, 1.0)
    for number in range(0, 400, 10):
        row = rows[number]
        rows[number] = SegmentRow(
            row.device, row.devices_in_use, row.unit_seconds, row.counts, row.seconds + 5e-4
        )
    single = fitted_cluster(CLUSTER, rows, []).devices[0].dispatch_seconds
    parts = [rows[start : start + 20] for start in range(0, 400, 20)]
    sums = [device_sum(part, np.array([sum(row.seconds for row in part)])) for part in parts]
    assert single == pytest.approx(30e-6, rel=0.2)
    assert fitted_cluster(CLUSTER, rows + 20 * sums, []).devices[0].dispatch_seconds > 1.5 * single


def test_delays_that_meet_another_segment_in_each_round_are_in_the_sum() -> None:
    """Three segments of a second, each delayed by one in one of three rounds: four, not three."""
    rows = [SegmentRow(0, 1, 1.0, np.ones(5), 1.0)] * 3
    durations = np.ones((3, 3)) + np.eye(3)
    assert np.median(durations, axis=0).sum() == 3.0
    found = device_sum(rows, durations.sum(axis=1))
    assert (found.unit_seconds, found.seconds) == (3.0, 4.0)
    assert found.counts.tolist() == [3.0] * 5


def test_earliest_finish_keeps_devices_busy_together() -> None:
    """Two chains of three ops, a second each: one chain per device, whichever op comes first."""
    builder = GraphBuilder()
    for chain in ("left", "right"):
        tensors: list[int] = []
        for number in range(3):
            op = builder.add_op(f"{chain}{number}", "Op", inputs=tensors)
            tensors = [builder.add_tensor(op, 4.0)]
    problem = Problem(
        builder.build(),
        CLUSTER,
        CostTable(frozen_floats(np.ones((6, 2)))),
        Grouping.identity(6),
    )
    device_of = earliest_finish_placement(problem, np.random.default_rng(0), 0.0)
    assert sorted(np.bincount(device_of).tolist()) == [3, 3]


@pytest.mark.parametrize("seed", [seed for seed in range(20) if seed != 14])  # 14: no placement
def test_drawn_placements_keep_pins_support_and_colocation(seed: int) -> None:
    """Both kinds, on problems with every constraint."""
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, n_ops=8, n_devices=3)
    for device_of in (
        earliest_finish_placement(problem, rng, 0.3),
        wandering_placement(problem, rng, 0.8),
    ):
        assert problem.allowed[np.arange(8), device_of].all()
        groups = problem.colocation.group_of
        assert all(len(set(device_of[groups == group])) == 1 for group in set(groups.tolist()))

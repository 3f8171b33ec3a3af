"""Calls in one thread: which placements they serve, and their seconds by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from execution.adding import layered

from placewright.core.arrays import frozen_floats
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.grouping import Grouping
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.simulation.model import Simulator
from placewright.simulation.segments import merged_in_turn
from placewright.simulation.serving import (
    is_in_one_thread,
    one_thread_seconds,
    served_seconds,
    timeline_segments,
)
from placewright.testing.problems import random_problem

CORE = Device("cpu:0", "cpu", fingerprint="core", memory_domain="ram", dispatch_seconds=1e-3)
SECOND = replace(CORE, name="cpu:1")
CARD = Device("cuda:0", "gpu", memory_domain="ram")
SPLIT, WHOLE = Placement.of(np.array([0, 0, 1])), Placement.of(np.array([0, 0, 0]))


def chain(devices: Sequence[Device], *, objective: str = "latency") -> Problem:
    """Three units of 10 ms; with both devices in use, each unit takes half as long again."""
    names = (*(device.name for device in devices), "host")
    links = tuple(Link(a, b, 2e-3) for a in names for b in names if a != b)
    cluster = Cluster(tuple(devices), links, contention={"ram": (1.0, 1.5)})
    costs = CostTable(frozen_floats(np.full((3, 2), 0.01)), "measured")
    graph = layered([(0, 1), (1, 2)], 3)
    return Problem(graph, cluster, costs, Grouping.identity(3), objective=objective)


def test_one_thread_neither_waits_nor_contends() -> None:
    """Three units and the dispatch of two segments."""
    problem = chain([CORE, SECOND])
    assert is_in_one_thread(problem, SPLIT)
    assert served_seconds(problem, SPLIT) == pytest.approx(0.032)
    assert Simulator(problem).value(SPLIT) > 0.045


@pytest.mark.parametrize("second", [replace(SECOND, fingerprint="small core"), CARD])
def test_accelerators_and_unlike_cores_need_workers(second: Device) -> None:
    assert not is_in_one_thread(chain([CORE, second]), SPLIT)


def test_other_devices_and_whole_models_take_the_simulated_seconds() -> None:
    for devices, placement in (([CORE, CARD], SPLIT), ([CORE, SECOND], WHOLE)):
        problem = chain(devices)
        assert served_seconds(problem, placement) == Simulator(problem).value(placement)


def test_a_call_takes_its_own_seconds_beyond_the_value() -> None:
    """On one device it takes no dispatch: that is in the measured seconds of the whole model."""
    problem = chain([CORE, SECOND])
    cluster = replace(problem.cluster, call_seconds=5e-3, prediction_error=0.1)
    calibrated = replace(problem, cluster=cluster)
    assert served_seconds(calibrated, SPLIT) == pytest.approx(0.037)
    assert served_seconds(calibrated, WHOLE) == pytest.approx(0.039)  # and two links of the host
    for placement in (SPLIT, WHOLE):
        assert Simulator(calibrated).value(placement) == Simulator(problem).value(placement)
    assert cluster.without_overheads.call_seconds == 0.0


def test_units_of_a_split_take_their_share_longer_in_one_thread() -> None:
    """The unsplit model has no share of it, nor the value, which is that of two threads."""
    slower = [replace(core, split_share=0.1) for core in (CORE, SECOND)]
    problem = chain(slower)
    assert served_seconds(problem, SPLIT) == pytest.approx(0.035)
    for placement in (SPLIT, WHOLE):
        same = chain([CORE, SECOND])
        assert Simulator(problem).value(placement) == Simulator(same).value(placement)
    assert served_seconds(problem, WHOLE) == Simulator(problem).value(WHOLE)
    assert one_thread_seconds(problem, WHOLE) == pytest.approx(0.031)
    much = chain([replace(core, split_share=1.0) for core in (CORE, SECOND)])
    assert not is_in_one_thread(much, SPLIT)
    assert served_seconds(much, SPLIT) == Simulator(much).value(SPLIT)


def test_steps_and_placements_that_do_not_fit() -> None:
    assert not is_in_one_thread(chain([CORE, SECOND], objective="training"), SPLIT)
    problem = chain([CORE, replace(SECOND, memory_bytes=0.0)])
    assert math.isinf(served_seconds(problem, SPLIT))


@pytest.mark.parametrize(("most_ops", "parts"), [(None, [[0], [1, 2, 3]]), (2, [[0], [1, 2], [3]])])
def test_segments_that_one_thread_executes_in_turn_are_one(
    most_ops: int | None, parts: list[list[int]]
) -> None:
    """A chain on the second core, each unit of which reads a tensor of the first core."""
    graph = layered([(0, 1), (0, 2), (0, 3), (1, 2), (2, 3)], 4)
    devices = [CORE, replace(SECOND, max_segment_ops=most_ops)]
    costs = CostTable(frozen_floats(np.full((4, 2), 0.01)), "measured")
    problem = replace(chain(devices), graph=graph, costs=costs, units=Grouping.identity(4))
    placement = Placement.of(np.array([0, 1, 1, 1]))
    segments = timeline_segments(problem, placement)
    assert [list(segment.units) for segment in segments] == [[0], [1], [2], [3]]
    merged = merged_in_turn(problem, segments)
    assert [list(segment.units) for segment in merged] == parts
    assert served_seconds(problem, placement) == pytest.approx(0.04 + 0.001 * len(parts))


@pytest.mark.parametrize("seed", range(60))
def test_seconds_in_one_thread_are_those_of_the_kernel_without_waits(seed: int) -> None:
    """Where nothing is merged; merging costs nothing, and keeps the order."""
    rng = np.random.default_rng(seed)
    drawn = random_problem(rng, n_ops=6, constrained=False)
    devices = tuple(
        replace(
            device,
            dispatch_seconds=rng.random(),
            cut_seconds=rng.random(),
            cut_seconds_per_byte=rng.random(),
            layout_seconds=rng.random(),
        )
        for device in drawn.cluster.devices
    )
    quiet = replace(drawn, cluster=replace(drawn.cluster, devices=devices, contention={}))
    placement = Placement.of(rng.integers(quiet.n_devices, size=quiet.n_units))
    if Simulator(quiet).violation(placement) is not None:
        pytest.skip("the placement is not legal")
    segments = timeline_segments(quiet, placement)
    merged = merged_in_turn(quiet, segments)
    units = [[unit for segment in row for unit in segment.units] for row in (segments, merged)]
    assert units[0] == units[1]
    alone = Simulator(quiet).timeline(placement)
    separate = float((alone.end - alone.start).sum())
    seconds = one_thread_seconds(quiet, placement)
    if len(merged) == len(segments):
        assert seconds == pytest.approx(separate)
    else:
        assert seconds < separate

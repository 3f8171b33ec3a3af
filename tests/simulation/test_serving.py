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
from placewright.simulation.serving import is_in_one_thread, served_seconds

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


def test_steps_and_placements_that_do_not_fit() -> None:
    assert not is_in_one_thread(chain([CORE, SECOND], objective="training"), SPLIT)
    problem = chain([CORE, replace(SECOND, memory_bytes=0.0)])
    assert math.isinf(served_seconds(problem, SPLIT))

"""The runner of single calls: the caller's thread if no overlap pays, else a worker per device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from execution.adding import Adding, expected, layered

from placewright.core.arrays import frozen_floats
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.graph import ComputationGraph
from placewright.core.grouping import Grouping
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.execution.direct import DirectRunner
from placewright.execution.placements import call_runner, served_segments
from placewright.execution.runner import ConcurrentRunner

CORE = Device("cpu:0", "cpu", fingerprint="core", memory_domain="ram")
EQUAL = (CORE, replace(CORE, name="cpu:1"))
UNEQUAL = (CORE, replace(CORE, name="cpu:1", fingerprint="small core"))
NAMES = ("cpu:0", "cpu:1", "host")
LINKS = tuple(Link(a, b, 1e-6) for a in NAMES for b in NAMES if a != b)
CHAIN, FORK = layered([(0, 1), (1, 2)], 3), layered([(0, 1), (0, 2)], 3)


@pytest.mark.parametrize(
    ("graph", "devices", "kind"),
    [
        (CHAIN, EQUAL, DirectRunner),
        (FORK, EQUAL, ConcurrentRunner),
        (CHAIN, UNEQUAL, ConcurrentRunner),
    ],
)
def test_a_split_is_timed_in_its_callers_thread_only_if_nothing_overlaps_on_equal_cores(
    graph: ComputationGraph, devices: tuple[Device, ...], kind: type
) -> None:
    costs = CostTable(frozen_floats(np.full((3, 2), 0.01)), "measured")
    problem = Problem(graph, Cluster(devices, LINKS), costs, Grouping.identity(3))
    model: Any = Adding(graph)
    placement = Placement.of(np.array([0, 0, 1]))
    with call_runner(problem, placement, model) as runner:
        assert type(runner) is kind
        outputs = runner.run([np.float64(2)]).outputs
        assert [float(value) for value in outputs] == expected(graph, 2.0)
        assert len(runner.time(2)) == 2
        assert len(runner.last_timed.spans) == len(served_segments(problem, placement))


@pytest.mark.parametrize(
    ("latency", "dispatch", "factor", "kind"),
    [
        (1e-6, 0.0, 1.0, ConcurrentRunner),
        (1e-6, 0.01, 1.0, ConcurrentRunner),  # two segments one after the other pay it, too
        (0.02, 0.0, 1.0, DirectRunner),
        (1e-6, 0.0, 2.0, DirectRunner),
    ],
)
def test_overlap_must_gain_more_than_waits_and_contention_cost(
    latency: float, dispatch: float, factor: float, kind: type
) -> None:
    """A fork: 10 ms, then 10 ms on either core; serially there is neither wait nor contention."""
    costs = CostTable(frozen_floats(np.full((3, 2), 0.01)), "measured")
    devices = tuple(replace(device, dispatch_seconds=dispatch) for device in EQUAL)
    links = tuple(Link(a, b, latency) for a in NAMES for b in NAMES if a != b)
    cluster = Cluster(devices, links, contention={"ram": (1.0, factor)})
    problem = Problem(FORK, cluster, costs, Grouping.identity(3))
    with call_runner(problem, Placement.of(np.array([0, 0, 1])), Adding(FORK)) as runner:  # type: ignore[arg-type]
        assert type(runner) is kind

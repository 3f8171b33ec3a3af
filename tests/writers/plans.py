"""Plans put together by hand for tests of writers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from placewright.core.arrays import frozen_floats
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.graph import ComputationGraph
from placewright.core.grouping import Grouping
from placewright.core.placement import Placement
from placewright.core.plan import PlacerRecord, Plan
from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.core.source import ModelSource
from placewright.session.plans import plan_of


def plan_with(
    graph: ComputationGraph,
    devices: Sequence[Device],
    device_of_op: Callable[[int], int],
    source: ModelSource | None = None,
    runtime: str = "openvino",
) -> Plan:
    """Every op a unit of its own, a microsecond each, on the device that the function names."""
    ends = [*(device.name for device in devices), "host"]
    links = tuple(Link(a, b, 1e-6) for a in ends for b in ends if a != b)
    problem = Problem(
        graph,
        Cluster(tuple(devices), links),
        CostTable(frozen_floats(np.full((graph.n_ops, len(devices)), 1e-6))),
        Grouping.identity(graph.n_ops),
        source=source,
    )
    placement = Placement.of(np.array([device_of_op(op) for op in range(graph.n_ops)]))
    solution = Solution(placement, 0.0, "feasible")
    return plan_of(problem, solution, PlacerRecord("manual", "0", 0, 0, 0.0), runtime)

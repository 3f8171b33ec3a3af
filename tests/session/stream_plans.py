"""A plan of two stages, and measured streams of it by made-up seconds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from placewright.core.arrays import frozen_floats
from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.execution_models import MaxLoad
from placewright.core.grouping import Grouping
from placewright.core.placement import Placement
from placewright.core.plan import PLAN, PlacerRecord, Plan
from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.profiling.stream_calibration import StreamRound
from placewright.session.contenders import Contender, Contenders
from placewright.session.plans import plan_of
from placewright.session.streams import StreamResult
from placewright.simulation.model import Simulator


def two_stages(names: tuple[str, str] = ("a", "b")) -> Plan:
    """3 s then 5 s on two devices."""
    builder = GraphBuilder()
    inputs: list[int] = []
    for name in ("first", "second"):
        op = builder.add_op(name, "Op", inputs=inputs)
        inputs = [builder.add_tensor(op, 0.0)]
    table = np.array([[3.0, 9.0], [9.0, 5.0]])
    links = (Link(*names), Link(*reversed(names)))
    problem = Problem(
        builder.build(),
        Cluster(tuple(map(Device, names)), links),
        CostTable(frozen_floats(table)),
        Grouping.identity(2),
        objective="throughput",
        execution_model=MaxLoad(samples_in_flight=0),
    )
    found = Solution(Placement.of(np.array([0, 1])), 5.0, "feasible", 0.0)
    return plan_of(problem, found, PlacerRecord("auto", "1", 0, 1, 1.0), "openvino")


def result(
    plan: Plan,
    latencies: dict[str, float],
    periods: dict[str, float],
    limit: float = math.inf,
    contenders: Contenders[Any] | None = None,
) -> StreamResult:
    """Nine rounds of each contender, the same but for a thousandth.

    Without `contenders` all are made up that have a period, without placements but the plan's.
    """
    rounds = {
        name: [
            StreamRound(period * (1 + at / 1000), np.full(20, latencies.get(name, 1.0)))
            for at in range(9)
        ]
        for name, period in periods.items()
    }
    if contenders is None:
        contenders = made_up(plan, tuple(periods))
    return StreamResult(100, 0, 0.0, 1e-4, contenders, rounds, limit)


def made_up(plan: Plan, names: tuple[str, ...]) -> Contenders[Any]:
    """Contenders that nobody opens; those named like a device have all units there."""
    problem = plan.problem
    devices = {name: at for at, name in enumerate(problem.cluster.device_names)}

    def placement(name: str) -> Placement | None:
        if name == PLAN:
            return plan.placement
        at = devices.get(name)
        return None if at is None else Placement.on_one_device(problem.n_units, at)

    never: Any = None
    members = tuple(Contender(name, placement(name), None, never) for name in names)
    played = Simulator(problem).stream(plan.placement, samples=20)
    return Contenders(members, played=played)

"""Predict plans that somebody else measured, under each rule about copies."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from placewright.core.arrays import frozen_floats
from placewright.core.builder import GraphBuilder
from placewright.core.cluster import OCCUPIES, Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.graph import ComputationGraph
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.errors import FileFormatError, UnknownNameError
from placewright.files.replay_file import ReplayCase, ReplayDocument, ReplayPlan, read_replay
from placewright.report.replay_text import CopyLine, Replay, ReplayedPlan
from placewright.simulation.model import Simulator


def replay(path: Path | str, rule: str | None = None) -> Replay:
    """Predict every plan of a file of measurements under each rule about copies.

    Nothing is fitted to plans but the choice among the rules of `core.cluster.OCCUPIES`. Latency
    and bandwidth of each direction come from the measured copies.

    Args:
        path: file of format ``placewright.replay/1``.
        rule: whose errors to report; default the rule with the smallest median error over the
            plans that use several devices.

    Raises:
        InputError: the file cannot be read or contradicts itself, or there is no such rule.
    """
    if rule is not None and rule not in OCCUPIES:
        raise UnknownNameError("rule about copies", rule, OCCUPIES)
    document = read_replay(path)
    copies = tuple(
        CopyLine(copy.source, copy.destination, *copy_line(copy.samples), len(copy.samples))
        for copy in document.copies
    )
    plans: list[ReplayedPlan] = []
    for case in document.cases:
        plans += _replayed(case, document, copies)
    return Replay(
        document.title, document.source, document.license, copies, tuple(plans), chosen=rule
    )


def copy_line(samples: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Fit latency in seconds, and seconds per byte, to measured copies.

    Both are >= 0 and minimise the sum of relative errors, Σ |latency + bytes × per_byte − seconds|
    / seconds. A linear program finds them, so that few copies that took far too long have no
    weight.

    Args:
        samples: bytes and seconds > 0 of each copy.

    Raises:
        FileFormatError: no line was found, because numbers differ by too many orders.
    """
    from scipy.optimize import linprog

    points = np.array(samples, dtype=np.float64)
    scale = max(points[:, 0].max(), 1.0)  # bytes and seconds differ by many orders
    rows = np.column_stack([1.0 / points[:, 1], points[:, 0] / scale / points[:, 1]])
    ones, n = np.ones(len(points)), len(points)
    above, below = np.hstack([rows, -np.eye(n)]), np.hstack([-rows, -np.eye(n)])
    fitted = linprog(
        np.concatenate([[0.0, 0.0], ones]),
        A_ub=np.vstack([above, below]),
        b_ub=np.concatenate([ones, -ones]),
        method="highs",
    )
    if fitted.x is None:
        raise FileFormatError(
            f"no line fits the measured copies: {fitted.message}; check `samples`"
        )
    return float(fitted.x[0]), float(fitted.x[1] / scale)


def _replayed(
    case: ReplayCase, document: ReplayDocument, copies: Sequence[CopyLine]
) -> list[ReplayedPlan]:
    """Predict the plans of a case under each rule."""
    graph = _graph(case)
    seconds = [[_seconds(op.seconds.get(device)) for device in document.devices] for op in case.ops]
    costs = CostTable(frozen_floats(np.array(seconds)), source="given")
    placements = [_placement(plan, case, document.devices) for plan in case.plans]
    values: list[dict[str, float]] = [{} for _ in placements]
    for rule in OCCUPIES:
        links = tuple(
            Link(
                copy.source,
                copy.destination,
                copy.latency,
                _bandwidth(copy.per_byte),
                occupies=rule,
            )
            for copy in copies
        )
        cluster = Cluster(tuple(map(Device, document.devices)), links, host=_host(document))
        simulator = Simulator(Problem.of_ops(graph, cluster, costs))
        for placement, value_of in zip(placements, values, strict=True):
            value_of[rule] = simulator.value(placement)
    return [
        ReplayedPlan(
            case.name,
            case.groups,
            plan.name,
            plan.measured,
            value_of,
            len(np.unique(placement.device_of)) > 1,
        )
        for plan, placement, value_of in zip(case.plans, placements, values, strict=True)
    ]


def _graph(case: ReplayCase) -> ComputationGraph:
    """The graph of a case; it has no inputs and outputs, because the data have none."""
    builder, index = GraphBuilder(), {op.name: number for number, op in enumerate(case.ops)}
    for op in case.ops:
        builder.add_op(op.name, "Op")
    for edge in case.edges:
        tensor = builder.add_tensor(index[edge.source], edge.size)
        for reader in edge.readers:
            if reader == edge.source:
                raise FileFormatError(f"case '{case.name}': op '{reader}' reads its own output")
            builder.connect(tensor, index[reader])
    return builder.build()


def _placement(plan: ReplayPlan, case: ReplayCase, devices: Sequence[str]) -> Placement:
    placed: str | Mapping[str, str] = plan.placement
    chosen = [placed if isinstance(placed, str) else placed[op.name] for op in case.ops]
    order = None
    if plan.order is not None:
        index = {op.name: number for number, op in enumerate(case.ops)}
        order = [index[name] for name in plan.order]
    number = {device: at for at, device in enumerate(devices)}
    return Placement.of([number[device] for device in chosen], order)


def _seconds(value: float | None) -> float:
    return math.inf if value is None else value


def _bandwidth(per_byte: float) -> float:
    return 1.0 / per_byte if per_byte > 0 else math.inf


def _host(document: ReplayDocument) -> str:
    """Name of the host's memory, different from that of every device."""
    name = "host"
    while name in document.devices:
        name += "_"
    return name

"""Plans that somebody else measured, predicted under each rule about copies.

The format of the file with the measurements is in docs/reference/replay-file.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from placewright.core.arrays import frozen_floats
from placewright.core.builder import GraphBuilder
from placewright.core.cluster import OCCUPIES, Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.graph import ComputationGraph
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.errors import FileFormatError, UnknownNameError
from placewright.files.schema import Strict, validated
from placewright.io.json_text import read_json_object
from placewright.report.replay_text import CopyLine, Replay, ReplayedPlan
from placewright.simulation.model import Simulator

REPLAY_FORMAT = "placewright.replay/1"
Amount = Annotated[float, Field(ge=0, le=1e15, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, le=1e15, allow_inf_nan=False)]
Name = Annotated[str, Field(min_length=1, max_length=1000)]


class ReplayOp(Strict):
    """An operator and its seconds on each device; null if the device cannot run it."""

    name: Name
    seconds: dict[str, Amount | None]


class ReplayEdge(Strict):
    """A tensor from an operator to its readers; another device gets one copy of it."""

    source: str = Field(alias="from")
    readers: list[str] = Field(alias="to", min_length=1)
    size: Amount = Field(alias="bytes")


class ReplayPlan(Strict):
    """A placement that ran, as a device for all operators or a device for each, and its seconds."""

    name: Name
    placement: str | dict[str, str]
    order: list[str] | None = None
    measured: Positive


class ReplayCase(Strict):
    """A model in one setting, with plans that were alternatives to each other."""

    name: Name
    groups: dict[str, str] = Field(default_factory=dict)
    ops: list[ReplayOp] = Field(min_length=1)
    edges: list[ReplayEdge]
    plans: list[ReplayPlan] = Field(min_length=1)


class ReplayCopies(Strict):
    """Measured copies in one direction, each with bytes and seconds."""

    source: str = Field(alias="from")
    destination: str = Field(alias="to")
    samples: list[tuple[Amount, Positive]] = Field(min_length=2)


class ReplayDocument(Strict):
    """The whole file."""

    format: Literal["placewright.replay/1"]
    title: Name
    source: str
    license: str
    devices: list[Name] = Field(min_length=1)
    copies: list[ReplayCopies]
    cases: list[ReplayCase] = Field(min_length=1)


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
    if not (points[:, 1] >= _LEAST_SECONDS).all():
        raise FileFormatError(f"a copy took less than {_LEAST_SECONDS:g} s; check `samples`")
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
    latency, per_byte = (max(0.0, float(value)) for value in fitted.x[:2])  # within a tolerance
    return latency, per_byte / scale


_LEAST_SECONDS = 1e-12  # of a copy


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


def read_replay(path: Path | str) -> ReplayDocument:
    """Read a file of measurements.

    Raises:
        InputError: the file cannot be read, or a name is unknown.
        FileFormatError: it is not of this format, contradicts itself, or a plan cannot have run.
    """
    document = validated(ReplayDocument, read_json_object(path), path, REPLAY_FORMAT)
    devices = _unique(document.devices, "devices")
    _unique([f"{copies.source} -> {copies.destination}" for copies in document.copies], "copies")
    for copy in document.copies:
        for end in (copy.source, copy.destination):
            _known("device of copies", end, devices)
    _unique([case.name for case in document.cases], "cases")
    directions = {(copies.source, copies.destination) for copies in document.copies}
    for case in document.cases:
        _check_case(case, devices)
        for plan in case.plans:
            _check_that_it_ran(plan, case, directions)
    return document


def _check_that_it_ran(
    plan: ReplayPlan, case: ReplayCase, directions: set[tuple[str, str]]
) -> None:
    """Refuse a plan that cannot have run: by its operators, its copies or its order."""
    where = f"plan '{plan.name}' of case '{case.name}'"
    device_of = {
        op.name: plan.placement if isinstance(plan.placement, str) else plan.placement[op.name]
        for op in case.ops
    }
    for op in case.ops:
        device = device_of[op.name]
        if op.seconds.get(device) is None:
            raise FileFormatError(f"{where}: op '{op.name}' has no seconds on '{device}'; add them")
    place = {name: at for at, name in enumerate(plan.order or ())}
    for edge in case.edges:
        for reader in edge.readers:
            ends = device_of[edge.source], device_of[reader]
            if ends[0] != ends[1] and ends not in directions:
                raise FileFormatError(
                    f"{where}: '{reader}' on '{ends[1]}' reads '{edge.source}' on '{ends[0]}', and "
                    f"there are no copies from '{ends[0]}' to '{ends[1]}'; add some"
                )
            if place and place[reader] < place[edge.source]:
                raise FileFormatError(
                    f"{where}: order has '{reader}' before '{edge.source}', which it reads; "
                    "exchange them"
                )


def _check_case(case: ReplayCase, devices: dict[str, None]) -> None:
    where = f"case '{case.name}'"
    ops = _unique([op.name for op in case.ops], f"{where}: ops")
    for op in case.ops:
        for device in op.seconds:
            _known(f"device of op '{op.name}' in {where}", device, devices)
    for edge in case.edges:
        for name in (edge.source, *edge.readers):
            _known(f"op of an edge in {where}", name, ops)
    _unique([plan.name for plan in case.plans], f"{where}: plans")
    if "plan" in case.groups:
        raise FileFormatError(f"{where}: groups may not have the label 'plan', which names plans")
    for plan in case.plans:
        _check_plan(plan, f"plan '{plan.name}' of {where}", ops, devices)


def _check_plan(
    plan: ReplayPlan, where: str, ops: dict[str, None], devices: dict[str, None]
) -> None:
    placed = plan.placement
    chosen = {placed: None} if isinstance(placed, str) else dict.fromkeys(placed.values())
    for device in chosen:
        _known(f"device of {where}", device, devices)
    for key, names in (("placement", placed), ("order", plan.order)):
        if isinstance(names, str) or names is None:
            continue
        for name in names:
            _known(f"op of {where}", name, ops)
        given = _unique(names, where)
        missing = next((name for name in ops if name not in given), None)
        if missing is not None:
            raise FileFormatError(f"{where}: {key} lacks op '{missing}'; name every op once")


def _known(kind: str, name: str, names: dict[str, None]) -> None:
    if name not in names:
        raise UnknownNameError(kind, name, tuple(names))


def _unique(names: Iterable[str], where: str) -> dict[str, None]:
    """The names as keys, in their order."""
    found: dict[str, None] = {}
    for name in names:
        if name in found:
            raise FileFormatError(f"{where}: '{name}' is given twice; names must be unique")
        found[name] = None
    return found

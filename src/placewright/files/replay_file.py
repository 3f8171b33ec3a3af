"""Measurements of somebody else's hardware, for `placewright replay`.

The format is in docs/reference/replay-file.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from placewright.errors import FileFormatError, UnknownNameError
from placewright.files.schema import Strict, validated
from placewright.io.json_text import read_json_object

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
        missing = next((name for name in ops if name not in _unique(names, where)), None)
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

"""The fields of a plan file, ``placewright.plan/2`` and version 1, and checks among them.

A plan file repeats facts of its problem and of other fields; these must agree.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from placewright.core.execution_models import ModelName
from placewright.core.plan import PLAN, SEARCHED, contender_of
from placewright.core.problem import Objective
from placewright.core.solution import Status, Stop
from placewright.errors import FileFormatError
from placewright.files.cluster_file import ClusterDocument
from placewright.files.schema import Float, Int, Strict, validated
from placewright.io.opened import shown_name

PLAN_FORMAT = "placewright.plan/2"
EARLIER_FORMAT = "placewright.plan/1"
_SAME = 1e-9  # tolerance of the gap, from rounding
_LONGEST = 60  # characters of a value in a message


class ModelEntry(Strict):
    """The model, by content."""

    source: str
    sha256: str
    shapes: dict[str, list[Int]]
    values: dict[str, list[int | float]] = Field(default_factory=dict)
    ops: int
    edges: int


class ProblemEntry(Strict):
    """The problem file; a relative path starts at the plan's folder."""

    path: str
    sha256: str


class SegmentEntry(Strict):
    """One segment: consecutive ops of one device."""

    device: str
    ops: list[str]


class PredictedEntry(Strict):
    """Values of simulator and bounds, in the plan's unit; gap is null without a bound.

    `memory_counts` is the meaning of the bytes in `memory`: ``"peak"``, ``"weights only"`` or
    weights and samples in flight. Files of earlier versions lack it. `amounts` has latency in
    seconds, energy in joules and price, as far as power and prices of the devices are known.
    """

    value: float
    lower_bound: float
    gap: float | None
    status: Status
    memory: dict[str, Float]
    bound_method: str = ""
    memory_counts: str = ""
    amounts: dict[str, Float] = Field(default_factory=dict)


class MeasuredEntry(Strict):
    """Measured seconds; `recommendation` is "plan" or the name of a baseline."""

    median: float
    iqr: float
    runs: int
    baselines: dict[str, Float] = Field(default_factory=dict)
    recommendation: str = "plan"


class PlacerEntry(Strict):
    """The search; history rows are [evaluations, seconds, value, lower bound].

    `stop` is the reason why the search ended, `core_seconds` its processor time, `settings` all
    hyperparameters of the placer. Files of earlier versions lack them.
    """

    name: str
    version: str
    seed: int
    evaluations: int
    seconds: float
    history: list[tuple[Int, Float, Float, Float | None]]
    stop: Stop | None = None
    core_seconds: float | None = None
    settings: dict[str, bool | int | float | str | None] | None = None


class SearchedEntry(Strict):
    """The placement of the search, if another is recommended after measuring."""

    placement: dict[str, str]
    order: list[str] | None
    value: float
    in_flight: int | None = Field(None, ge=1)


class PlanDocument(Strict):
    """The whole file; `placement` and `order` name every op of the graph.

    `placement`, `order`, `segments`, `predicted` and `measured` belong to the recommended
    placement. `searched` is null if the search found that placement.
    """

    format: Literal["placewright.plan/2"]
    unit: str
    model: ModelEntry
    problem: ProblemEntry
    objective: Objective
    execution_model: ModelName
    runtime: str
    cluster: ClusterDocument
    placement: dict[str, str]
    order: list[str] | None
    resident_inputs: list[str] = Field(default_factory=list)
    searched: SearchedEntry | None
    segments: list[SegmentEntry] | None
    predicted: PredictedEntry
    measured: MeasuredEntry | None
    placer: PlacerEntry
    left_out: list[str] = Field(default_factory=list)
    in_flight: int | None = Field(None, ge=1)


class PlacerEntry1(Strict):
    """The search in version 1; history rows are [evaluations, seconds, value]."""

    name: str
    version: str
    seed: int
    evaluations: int
    seconds: float
    history: list[tuple[Int, Float, Float]]


class PlanDocument1(Strict):
    """Version 1; `placement` is always the placement of the search."""

    format: Literal["placewright.plan/1"]
    unit: str
    model: ModelEntry
    problem: ProblemEntry
    objective: Objective
    execution_model: ModelName
    runtime: str
    cluster: ClusterDocument
    placement: dict[str, str]
    order: list[str] | None
    segments: list[SegmentEntry] | None
    predicted: PredictedEntry
    measured: MeasuredEntry | None
    placer: PlacerEntry1


def plan_document(data: dict[str, Any], path: object) -> PlanDocument:
    """The document of a plan file, upgraded to the present version.

    Raises:
        FileFormatError: the format is another, or a field is missing, unknown or wrong.
    """
    if data.get("format") != EARLIER_FORMAT:
        return validated(PlanDocument, data, path, PLAN_FORMAT, EARLIER_FORMAT)
    validated(PlanDocument1, data, path, EARLIER_FORMAT)
    rows = [[*row, None] for row in data["placer"]["history"]]
    placer = {**data["placer"], "history": rows}
    upgraded = {**data, "format": PLAN_FORMAT, "searched": None, "placer": placer}
    return validated(PlanDocument, upgraded, path, PLAN_FORMAT)


def require_agreement(
    document: PlanDocument, expected: Mapping[str, Any], path: Path | str
) -> None:
    """Check that a plan file agrees with its problem and with itself.

    Args:
        expected: entries from its problem, by their names in the file.

    Raises:
        FileFormatError: two of them differ; the message names the entry and both values.
    """
    fault = next(_contradictions(document, expected), None)
    if fault is not None:
        raise FileFormatError(f"plan '{shown_name(path)}' contradicts itself: {fault}")


def _contradictions(document: PlanDocument, expected: Mapping[str, Any]) -> Iterator[str]:
    entries = document.model_dump()
    for key, value in expected.items():
        yield from _differences(key, entries[key], value)
    predicted = document.predicted
    if not (math.isfinite(predicted.value) and math.isfinite(predicted.lower_bound)):
        yield f"predicted.value is {predicted.value!r} with the bound {predicted.lower_bound!r}"
    yield from _gap(predicted.value, predicted.lower_bound, predicted.gap)
    yield from _names_once("order", document.order)
    if document.searched is not None:
        yield from _names_once("searched.order", document.searched.order)
    if document.segments is not None:
        listed = [name for segment in document.segments for name in segment.ops]
        yield from _names_once("segments", listed)
        known = dict.fromkeys(listed)
        lost = [name for name in document.placement if name not in known]
        if lost:
            yield f"segments leave out op '{shown_name(lost[0])}'"
    for index, segment in enumerate(document.segments or []):
        for name in segment.ops:
            home = document.placement.get(name)
            if home != segment.device:
                yield (
                    f"segment {index} runs op '{shown_name(name)}' on "
                    f"'{shown_name(segment.device)}', its placement is '{shown_name(home)}'"
                )
    yield from _measured(document)
    yield from _placer(document.placer)


def _differences(key: str, entry: Any, expected: Any) -> Iterator[str]:
    if isinstance(entry, dict) and isinstance(expected, Mapping):
        for name in dict.fromkeys([*expected, *entry]):
            yield from _differences(f"{key}.{name}", entry.get(name), expected.get(name))
    elif entry != expected:
        yield f"{shown_name(key)} is {_short(entry)}, its problem has {_short(expected)}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _gap(value: float, bound: float, gap: float | None) -> Iterator[str]:
    expected = value / bound - 1.0 if bound > 0 else (None if value > 0 else 0.0)
    if expected is not None and math.isinf(expected):  # of a bound that is hardly a number
        expected = None
    if expected is None or gap is None:
        if expected is not gap:
            yield f"predicted.gap is {gap!r}, value and bound give {expected!r}"
    elif not math.isclose(gap, expected, rel_tol=_SAME, abs_tol=_SAME):
        yield f"predicted.gap is {gap!r}, value and bound give {expected!r}"


def _names_once(key: str, names: Sequence[str] | None) -> Iterator[str]:
    seen: dict[str, None] = {}
    for name in names or ():
        if name in seen:
            yield f"{key} names op '{shown_name(name)}' twice"
        seen[name] = None


def _measured(document: PlanDocument) -> Iterator[str]:
    measured = document.measured
    if measured is None:
        return
    baselines = ((f"baselines.{name}", value) for name, value in measured.baselines.items())
    for name, value in (("median", measured.median), *baselines):
        if not 0.0 < value < math.inf:
            yield f"measured.{shown_name(name)} is {value!r}, no time that a run takes"
    if not 0.0 <= measured.iqr < math.inf:
        yield f"measured.iqr is {measured.iqr!r}"
    if measured.runs < 1:
        yield f"measured.runs is {measured.runs}"
    named = measured.recommendation
    # The recommended placement itself has its time in `median`, not in `baselines`.
    is_held = document.searched is not None or {
        contender_of(device) for device in document.placement.values()
    } == {named}
    if named not in (PLAN, SEARCHED) and named not in measured.baselines and not is_held:
        yield f"measured.recommendation is '{shown_name(named)}', which was not measured"


def _placer(placer: PlacerEntry) -> Iterator[str]:
    if placer.evaluations < 0 or not 0.0 <= placer.seconds < math.inf:
        yield f"placer has {placer.evaluations} evaluations in {placer.seconds!r} s"
    if placer.core_seconds is not None and not 0.0 <= placer.core_seconds < math.inf:
        yield f"placer.core_seconds is {placer.core_seconds!r}"
    for _, seconds, value, bound in placer.history:
        is_bound = bound is None or math.isfinite(bound)
        if not (0.0 <= seconds < math.inf and is_bound) or math.isnan(value):
            yield f"placer.history has {value!r} with the bound {bound!r} after {seconds!r} s"
    counts = [row[0] for row in placer.history]
    if counts != sorted(counts) or any(count < 0 for count in counts):
        yield "placer.history is not in the order of its evaluations"

"""What a plan file says twice, or says of its problem, must be the same each time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from placewright.core.contender_names import PLAN, SEARCHED, contender_of
from placewright.errors import FileFormatError
from placewright.files.plan_document import PlacerEntry, PlanDocument
from placewright.io.opened import shown_name

_SAME = 1e-9


def require_agreement(
    document: PlanDocument, expected: Mapping[str, Any], path: Path | str
) -> None:
    """Compare a plan file with its problem and with itself.

    Args:
        document: as it was read.
        expected: entries that its problem gives, under their names in the file.
        path: for errors.

    Raises:
        FileFormatError: two of them differ; the message names the entry and both values.
    """
    fault = next(_contradictions(document, expected), None)
    if fault is not None:
        raise FileFormatError(f"plan '{shown_name(path)}' contradicts itself: {fault}")


def _contradictions(document: PlanDocument, expected: Mapping[str, Any]) -> Iterator[str]:
    given = document.model_dump()
    for key, value in expected.items():
        yield from _differences(key, given[key], value)
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
        lost = [name for name in document.placement if name not in dict.fromkeys(listed)]
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


def _differences(key: str, told: Any, expected: Any) -> Iterator[str]:
    if isinstance(told, dict) and isinstance(expected, Mapping):
        for name in dict.fromkeys([*expected, *told]):
            yield from _differences(f"{key}.{name}", told.get(name), expected.get(name))
    elif told != expected:
        yield f"{shown_name(key)} is {_short(told)}, its problem has {_short(expected)}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


_LONGEST = 60


def _gap(value: float, bound: float, gap: float | None) -> Iterator[str]:
    expected = value / bound - 1.0 if bound > 0 else (None if value > 0 else 0.0)
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
    for name, value in (("median", measured.median), *measured.baselines.items()):
        if not 0.0 < value < math.inf:
            yield f"measured.{shown_name(name)} is {value!r}, no time that a run takes"
    if not 0.0 <= measured.iqr < math.inf:
        yield f"measured.iqr is {measured.iqr!r}"
    if measured.runs < 1:
        yield f"measured.runs is {measured.runs}"
    named = measured.recommendation
    # What the plan holds stands in `median`, under no name of its own.
    is_held = document.searched is not None or {
        contender_of(device) for device in document.placement.values()
    } == {named}
    if named not in (PLAN, SEARCHED) and named not in measured.baselines and not is_held:
        yield f"measured.recommendation is '{shown_name(named)}', which was not measured"


def _placer(placer: PlacerEntry) -> Iterator[str]:
    if placer.evaluations < 0 or not 0.0 <= placer.seconds < math.inf:
        yield f"placer has {placer.evaluations} evaluations in {placer.seconds!r} s"
    counts = [row[0] for row in placer.history]
    if counts != sorted(counts) or any(count < 0 for count in counts):
        yield "placer.history is not in the order of its evaluations"

"""Values of a request's fields from what a user gives: a value, or its text."""

from __future__ import annotations

import itertools
import logging
import math
import operator
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any, cast

import numpy as np

from placewright.core.charges import check_limits
from placewright.core.data_sheet import PRECISIONS
from placewright.core.execution_models import DISPATCH_RULES
from placewright.core.problem import OBJECTIVES, Objective, Samples
from placewright.core.quantities import parse_amount, parse_bytes, parse_joules, parse_seconds
from placewright.core.source import Call, Number
from placewright.errors import FieldError, InputError, UnknownNameError, near_names
from placewright.io.opened import shown_name
from placewright.profiling.units import GRANULARITIES
from placewright.workers.ray_workers import ADDRESS

_LOG = logging.getLogger(__name__)
MOST = 64  # plans of one command
_BARE = re.compile(r"(\d+\.?\d*|\.\d+)")
_RANGE = re.compile(r"(\d{1,18})\.\.(\d{1,18})")


def is_several(text: str) -> bool:
    """True if a text of ``--shape`` gives more than one size."""
    size = text.rpartition("=")[2]
    return "|" in size or ".." in size


def each_size(texts: Sequence[str]) -> list[tuple[str, list[str]]]:
    """List all combinations of sizes, each as a label and the texts that give it.

    Args:
        texts: as for ``--shape``; sizes are separated by ``|``, and ``64..512`` is 64 and its
            doubles up to 512, with 512 itself.

    Raises:
        FieldError: a range is malformed, or there are more than `MOST` combinations.
    """
    choices: list[list[tuple[str, str]]] = []  # of each text: (label, text)
    for text in texts:
        name, _, size = text.rpartition("=")
        if not is_several(text):
            choices.append([("", text)])
            continue
        sizes = dict.fromkeys(given for part in size.split("|") for given in _sizes(part, text))
        choices.append(
            [(f"{name}={given.replace(',', 'x')}", f"{name}={given}") for given in sizes]
        )
    count = math.prod(map(len, choices))
    if count > MOST:
        raise FieldError("shapes", f"gives {count} combinations of sizes; expected {MOST} at most")
    return [
        (",".join(label for label, _ in row if label), [text for _, text in row])
        for row in itertools.product(*choices)
    ]


def _sizes(part: str, text: str) -> list[str]:
    found = _RANGE.fullmatch(part.strip())
    if found is None:
        if not part.strip() or ".." in part:
            raise FieldError(
                "shapes", f"expects NAME=64|128 or NAME=64..512, got '{shown_name(text)}'"
            )
        return [part.strip()]
    first, last = int(found[1]), int(found[2])
    if not 1 <= first <= last:
        raise FieldError("shapes", f"expects a range from 1 or more to a larger size, got '{text}'")
    sizes = []
    while first < last:
        sizes.append(str(first))
        first *= 2
    return [*sizes, str(last)]


def labelled(path: Path, label: str) -> Path:
    """``plan-past=64.json`` for the label ``past=64``."""
    plain = re.sub(r"[^\w.,=-]", "_", label)
    return path.with_name(f"{path.stem}-{plain}{path.suffix}")


def parse_pairs(raw: Any, field: str, form: str) -> dict[str, str]:
    """A mapping, or ``KEY=VALUE`` texts; the last ``=`` separates, as op names may hold one.

    Raises:
        FieldError: a text has no ``=`` or an empty side, or two disagree.
    """
    if isinstance(raw, Mapping):
        return {str(key): str(value) for key, value in raw.items()}
    pairs: dict[str, str] = {}
    for text in names_in(raw, field, form):
        key, equals, value = text.rpartition("=")
        if not (equals and key and value):
            raise FieldError(field, f"expects {form}, got '{text}'")
        if pairs.setdefault(key, value) != value:
            raise FieldError(field, f"gives '{key}' both '{pairs[key]}' and '{value}'; keep one")
    return pairs


FORMATS = (  # of `placewright export`
    *("device-map", "llama.cpp", "onnx-layers", "onnx-segments", "openvino-affinity"),
    *("sglang", "vllm"),
)


def parse_choice(raw: Any, field: str, choices: Sequence[str]) -> str:
    """One of a few words."""
    if raw not in choices:
        near = near_names(str(raw), choices)
        meant = f"; did you mean {near[0]}?" if near else ""
        listed = " or ".join((", ".join(choices[:-1]), choices[-1]))
        raise FieldError(field, f"is {listed}, got '{raw}'{meant}")
    return str(raw)


def parse_target(raw: Any) -> str | None:
    """A format of `placewright export`; None is any."""
    return None if raw is None else parse_choice(raw, "target", FORMATS)


def parse_granularity(raw: Any) -> str:
    """Size of units: one of `GRANULARITIES`."""
    return parse_choice(raw, "granularity", GRANULARITIES)


def parse_shapes(raw: Any) -> dict[str, tuple[int, ...]]:
    """A mapping, or ``name=1,3,224,224`` texts, to input shapes.

    Raises:
        FieldError: an extent is no integer >= 0 of 64 bits.
    """
    form = "NAME=1,3,224,224"
    pairs = raw if isinstance(raw, Mapping) else parse_pairs(raw, "shapes", form)
    return {str(name): _shape(str(name), value, form) for name, value in pairs.items()}


def _shape(name: str, raw: Any, form: str) -> tuple[int, ...]:
    extents = raw.split(",") if isinstance(raw, str) else [raw] if isinstance(raw, int) else raw
    try:
        shape = tuple(_extent(extent) for extent in extents)
    except (TypeError, ValueError):
        shape = (-1,)
    if isinstance(raw, str) and is_several(f"{name}={raw}"):
        raise FieldError(
            "shapes",
            f"gives '{name}' several sizes ({raw}), which only the command `place` takes",
        )
    if any(not -(2**63) <= extent < 2**63 for extent in shape):  # too many digits for Python
        raise FieldError("shapes", f"gives '{name}' a size of more than 64 bits; expects {form}")
    if any(extent < 0 for extent in shape):
        given = shown_name(f"{name}={raw}")
        raise FieldError("shapes", f"expects {form}, with numbers >= 0, got '{given}'")
    return shape


def _extent(raw: Any) -> int:
    """An extent from a text or a whole number; raises TypeError or ValueError for others."""
    if isinstance(raw, bool):
        raise TypeError
    return int(raw) if isinstance(raw, str) else operator.index(raw)


def parse_calls(raw: Any) -> tuple[Call, ...]:
    """Calls, pairs of times and shapes, or ``300:token=1,1:position=1`` texts, to calls.

    Raises:
        FieldError: one has no number of times, or a wrong shape.
    """
    is_list = raw is None or isinstance(raw, Iterable | Call)
    if not is_list or (isinstance(raw, Mapping) and raw):
        raise FieldError("calls", f"expects a list of calls, got {raw!r:.100}")
    given = [raw] if isinstance(raw, str | Call) else list(raw or ())
    return tuple(map(_call, given))


def _call(raw: Any) -> Call:
    form = "TIMES or TIMES:NAME=1,3,224,224:..."
    if isinstance(raw, Call):
        raw = raw.times, raw.shapes
    try:
        if isinstance(raw, str):
            times, *shapes = raw.split(":")
        else:
            times, shapes = raw
        number = float(times)
    except (OverflowError, TypeError, ValueError):
        number = math.nan
    if not 0 < number < math.inf:
        raise FieldError("calls", f"expects {form}, with a number of times > 0, got {raw!r}")
    try:
        return Call(number, parse_shapes(shapes))
    except FieldError as error:
        raise FieldError("calls", f"{raw!r}: {error.fault}") from None


def parse_values(raw: Any) -> dict[str, tuple[Number, ...]]:
    """A mapping to numbers, or ``NAME=16000`` texts, to the numbers of inputs.

    Raises:
        FieldError: a value is neither numbers nor true or false.
    """
    form = "NAME=16000 or NAME=1,2,3"
    pairs = raw if isinstance(raw, Mapping) else parse_pairs(raw, "values", form)
    return {str(name): _numbers(str(name), value, form) for name, value in pairs.items()}


def _numbers(name: str, raw: Any, form: str) -> tuple[Number, ...]:
    try:
        parts = raw.split(",") if isinstance(raw, str) else np.asarray(raw).ravel().tolist()
        numbers = tuple(_number(part) for part in parts)
    except (ValueError, OverflowError):
        numbers = ()
    if not numbers:
        raise FieldError("values", f"expects {form}, got '{name}={raw}'")
    return numbers


def _number(raw: Any) -> Number:
    """A number from a text or a value; raises ValueError if it is not a finite number."""
    if isinstance(raw, str):
        text = raw.strip().lower()
        if text in ("true", "false"):
            return int(text == "true")
        raw = int(text) if re.fullmatch(r"[+-]?\d+", text) else float(text)
    if not isinstance(raw, int | float) or not math.isfinite(raw):
        raise ValueError
    return int(raw) if isinstance(raw, bool) else raw


def _pairs_in_lists(raw: Any, field: str, form: str) -> Mapping[Any, Any]:
    """A mapping, or the pairs of texts that hold one or several, separated by commas."""
    if isinstance(raw, Mapping):
        return raw
    texts = names_in(raw, field, form)
    return parse_pairs([part.strip() for text in texts for part in text.split(",")], field, form)


def parse_memory(raw: Any) -> dict[str, float]:
    """A mapping to bytes or texts, or ``DEVICE=2GiB`` texts, to bytes.

    One text can hold several, separated by commas, as that of the devices does.

    Raises:
        InputError: a size is no number of bytes.
    """
    pairs = _pairs_in_lists(raw, "memory", "DEVICE=2GiB")
    sizes: dict[str, float] = {}
    for device, size in pairs.items():
        warn_of_bare_number(size, "memory", "bytes", "B")
        try:
            sizes[str(device)] = parse_bytes(size)
        except InputError as error:
            raise FieldError("memory", f"of '{device}': {error}") from None
    return sizes


_AMOUNTS = {"latency": parse_seconds, "energy": parse_joules, "price": parse_amount}
_BARE_UNITS = {"latency": ("seconds", "s"), "energy": ("joules", "J")}


def parse_limits(raw: Any) -> dict[str, float]:
    """A mapping to amounts or texts, or ``energy=3J`` texts, to seconds, joules or price.

    One text can hold several, separated by commas.

    Raises:
        UnknownNameError: there is no such quantity.
        FieldError: an amount is no number > 0 with a unit of its quantity.
    """
    form = "energy=3J, latency=20ms or price=1e-6"
    pairs = _pairs_in_lists(raw, "limits", form)
    limits: dict[str, float] = {}
    for quantity, amount in pairs.items():
        if quantity not in _AMOUNTS:
            raise UnknownNameError("limited quantity", str(quantity), list(_AMOUNTS))
        if quantity in _BARE_UNITS:
            warn_of_bare_number(amount, "limits", *_BARE_UNITS[quantity])
        try:
            limits[quantity] = _AMOUNTS[quantity](amount)
        except InputError as error:
            raise FieldError("limits", f"of {quantity}: {error}") from None
    check_limits(limits, is_load=False)
    return limits


_KNOWN = {"objective": OBJECTIVES, "precision": PRECISIONS, "dispatch": DISPATCH_RULES}


def parse_known(raw: Any, field: str) -> Any:
    """One of the objectives, precisions of data sheets or rules of dispatch; None is the default.

    Raises:
        UnknownNameError: there is no such name.
    """
    if raw is not None and raw not in _KNOWN[field]:
        raise UnknownNameError(field, str(raw), _KNOWN[field])
    return raw


def parse_objective(raw: Any) -> Objective:
    """One of the objectives; None is latency."""
    return cast(Objective, parse_known(raw, "objective") or "latency")


def parse_duration(raw: Any, field: str) -> float | None:
    """Seconds > 0, as a number or a text such as ``"60s"``; None is no limit.

    A warning says how a text without a unit is read.

    Raises:
        FieldError: no duration > 0.
    """
    if raw is None:
        return None
    if field != "core_seconds":  # whose name contains the unit
        warn_of_bare_number(raw, field)
    try:
        seconds = parse_seconds(raw)
    except InputError as error:
        raise FieldError(field, str(error)) from None
    if not seconds > 0:
        raise FieldError(field, f"needs seconds > 0, such as 60s, got '{raw}'")
    return seconds


def warn_of_bare_number(raw: Any, field: str, unit: str = "seconds", short: str = "s") -> None:
    """Log one warning if a text has no unit, about the unit in which it is read."""
    if isinstance(raw, str) and _BARE.fullmatch(raw.strip()):
        said = (field, raw.strip(), raw.strip(), unit, raw.strip(), short)
        _LOG.warning("argument `%s` %s is taken as %s %s; write %s%s", *said)


def parse_count(raw: Any, field: str) -> int | None:
    """A whole number >= 1; None is no limit.

    Raises:
        FieldError: it is something else.
    """
    if raw is None:
        return None
    if isinstance(raw, bool) or not isinstance(raw, Integral) or int(raw) < 1:
        raise FieldError(field, f"expects a whole number >= 1, got {raw!r}")
    return int(raw)


SWEPT = ("context", "prompt", "generate", "micro_batch", "sequences")  # fields of `--sweep`


def parse_sweep(text: str) -> tuple[str, list[int]]:
    """A field and its values, as in ``context=4k,32k``.

    >>> parse_sweep("context=4k,100")
    ('context', [4096, 100])

    Raises:
        FieldError: it is something else.
    """
    field, equals, values = text.partition("=")
    name = field.strip().replace("-", "_")
    if not equals or not name:
        raise FieldError("sweep", f"expects FIELD=NUMBERS, such as context=4k,32k, got '{text}'")
    if name not in SWEPT:
        raise FieldError("sweep", f"knows {', '.join(SWEPT)}, got '{field.strip():.40}'")
    return name, [parse_tokens(value, "sweep") or 0 for value in values.split(",")]


def parse_tokens(raw: Any, field: str) -> int | None:
    """A number of tokens, or a text such as ``32k``, which is 32 x 1024; None is the default.

    Raises:
        FieldError: it is something else.
    """
    if raw is None:
        return None
    if isinstance(raw, Integral) and not isinstance(raw, bool):
        return int(raw)
    found = (
        re.fullmatch(r"(\d{1,9})(k?)", raw.strip(), re.IGNORECASE) if isinstance(raw, str) else None
    )
    if found is None:
        raise FieldError(field, f"expects a number of tokens, such as 2000 or 32k, got {raw!r}")
    return int(found[1]) * (1024 if found[2] else 1)


def parse_seed(raw: Any) -> int:
    """A whole number that every library takes as a seed.

    Raises:
        FieldError: it is something else.
    """
    if isinstance(raw, bool) or not isinstance(raw, Integral) or not 0 <= int(raw) < 2**63:
        raise FieldError("seed", f"expects a whole number from 0 to 2^63 - 1, got {raw!r}")
    return int(raw)


def parse_ray(raw: Any) -> str | None:
    """The address of a Ray cluster, ``auto`` or ``local``; None is no cluster.

    Raises:
        FieldError: it is something else.
    """
    if raw is None or raw in ("auto", "local"):
        return raw if raw is None else str(raw)
    if isinstance(raw, str) and re.fullmatch(ADDRESS, raw):
        return raw
    raise FieldError("ray", f"expects HOST:PORT, ray://HOST:PORT, auto or local, got {raw!r}")


def parse_samples(raw: Any) -> Samples | None:
    """Samples in flight: a number >= 0, or ``pipeline``.

    Raises:
        FieldError: it is something else.
    """
    if raw is None or raw == "pipeline":
        return "pipeline" if raw else None
    # Python writes no number of thousands of digits.
    is_large = isinstance(raw, Integral) and abs(int(raw)) >= 10**18
    text = "a larger one" if is_large else str(raw)
    if isinstance(raw, bool) or not re.fullmatch(r"\d{1,18}", text):
        raise FieldError(
            "samples_in_flight",
            f"expects a number >= 0 of at most 18 digits, or 'pipeline', got '{shown_name(text)}'",
        )
    return int(text)


def parse_names(text: str) -> list[str]:
    """A comma-separated list of names."""
    return [name.strip() for name in text.split(",") if name.strip()]


def names_in(raw: Any, field: str, form: str) -> tuple[str, ...]:
    """One text, or several; None is none.

    Args:
        raw: as the user gives it.
        form: of one text.

    Raises:
        FieldError: an entry is no text.
    """
    if raw is None:
        return ()
    if isinstance(raw, str):
        return (raw,)
    entries = tuple(raw) if isinstance(raw, Iterable) else (None,)
    if not all(isinstance(entry, str) for entry in entries):
        raise FieldError(field, f"expects {form}, got {raw!r}")
    return entries


def parse_path(raw: Any, field: str) -> Path | None:
    """A file's path; None is none.

    Raises:
        FieldError: it is no path.
    """
    if raw is None:
        return None
    if not isinstance(raw, str | os.PathLike):
        raise FieldError(field, f"expects a path, got {raw!r}")
    return Path(raw)

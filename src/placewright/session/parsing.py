"""What a user says for a field of a request, a value or its text, to the value."""

from __future__ import annotations

import logging
import math
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np

from placewright.core.execution_models import DISPATCH_RULES, Dispatch
from placewright.core.problem import OBJECTIVES, Objective, Samples
from placewright.core.signature import Number
from placewright.errors import FieldError, InputError, UnknownNameError
from placewright.files.quantities import parse_bytes, parse_seconds
from placewright.io.written import written_place
from placewright.session.several_sizes import is_several
from placewright.workers.address import ADDRESS

_LOG = logging.getLogger(__name__)
_BARE = re.compile(r"(\d+\.?\d*|\.\d+)")


def parse_pairs(given: Any, field: str, form: str) -> dict[str, str]:
    """A mapping, or ``KEY=VALUE`` texts; the last ``=`` separates, as op names may hold one.

    Raises:
        FieldError: a text has no ``=`` or an empty side, or two disagree.
    """
    if isinstance(given, Mapping):
        return {str(key): str(value) for key, value in given.items()}
    pairs: dict[str, str] = {}
    for text in names_in(given, field, form, separator=None):
        key, equals, value = text.rpartition("=")
        if not (equals and key and value):
            raise FieldError(field, f"expects {form}, got '{text}'")
        if pairs.setdefault(key, value) != value:
            raise FieldError(field, f"gives '{key}' both '{pairs[key]}' and '{value}'; keep one")
    return pairs


def parse_pins(given: Any) -> dict[str, str]:
    """Op name -> device name."""
    return parse_pairs(given, "pins", "OP=DEVICE")


def parse_settings(given: Any) -> dict[str, str]:
    """Hyperparameter of a placer -> its value as text."""
    return parse_pairs(given, "settings", "KEY=VALUE")


def parse_shapes(given: Any) -> dict[str, tuple[int, ...]]:
    """A mapping, or ``name=1,3,224,224`` texts, to input shapes.

    Raises:
        FieldError: an extent is no integer >= 1.
    """
    form = "NAME=1,3,224,224"
    pairs = given if isinstance(given, Mapping) else parse_pairs(given, "shapes", form)
    return {str(name): _shape(str(name), value, form) for name, value in pairs.items()}


def _shape(name: str, given: Any, form: str) -> tuple[int, ...]:
    extents = given.split(",") if isinstance(given, str) else given
    try:
        shape = tuple(int(extent) for extent in extents)
    except (TypeError, ValueError):
        shape = (0,)
    if isinstance(given, str) and is_several(f"{name}={given}"):
        raise FieldError(
            "shapes",
            f"gives '{name}' several sizes ({given}), which only the command `place` takes",
        )
    if any(extent < 1 for extent in shape):
        raise FieldError("shapes", f"expects {form}, got '{name}={given}'")
    return shape


def parse_values(given: Any) -> dict[str, tuple[Number, ...]]:
    """A mapping to numbers, or ``NAME=16000`` texts, to the numbers of inputs.

    Raises:
        FieldError: a value is neither numbers nor true or false.
    """
    form = "NAME=16000 or NAME=1,2,3"
    pairs = given if isinstance(given, Mapping) else parse_pairs(given, "values", form)
    return {str(name): _numbers(str(name), value, form) for name, value in pairs.items()}


def _numbers(name: str, given: Any, form: str) -> tuple[Number, ...]:
    parts = given.split(",") if isinstance(given, str) else np.asarray(given).ravel().tolist()
    try:
        numbers = tuple(_number(part) for part in parts)
    except ValueError:
        numbers = ()
    if not numbers:
        raise FieldError("values", f"expects {form}, got '{name}={given}'")
    return numbers


def _number(given: Any) -> Number:
    """Raises ValueError: it is none, or not finite."""
    if isinstance(given, str):
        text = given.strip().lower()
        if text in ("true", "false"):
            return int(text == "true")
        given = int(text) if re.fullmatch(r"[+-]?\d+", text) else float(text)
    if not isinstance(given, int | float) or not math.isfinite(given):
        raise ValueError
    return int(given) if isinstance(given, bool) else given


def parse_memory(given: Any) -> dict[str, float]:
    """A mapping to bytes or texts, or ``DEVICE=2GiB`` texts, to bytes.

    Raises:
        InputError: a size is no number of bytes.
    """
    is_mapping = isinstance(given, Mapping)
    pairs = given if is_mapping else parse_pairs(given, "memory", "DEVICE=2GiB")
    sizes: dict[str, float] = {}
    for device, size in pairs.items():
        try:
            sizes[str(device)] = parse_bytes(size)
        except InputError as error:
            raise FieldError("memory", f"of '{device}': {error}") from None
    return sizes


def parse_objective(given: Any) -> Objective:
    """One of the objectives; None is latency.

    Raises:
        UnknownNameError: there is no such objective.
    """
    if given is not None and given not in OBJECTIVES:
        raise UnknownNameError("objective", str(given), OBJECTIVES)
    return cast(Objective, given or "latency")


def parse_dispatch(given: Any) -> Dispatch | None:
    """One of the rules of dispatch; None is the problem's own.

    Raises:
        UnknownNameError: there is no such rule.
    """
    if given is not None and given not in DISPATCH_RULES:
        raise UnknownNameError("dispatch", str(given), DISPATCH_RULES)
    return cast("Dispatch | None", given)


def parse_duration(given: Any, field: str) -> float | None:
    """Seconds > 0, as a number or a text such as ``"60s"``; None is no limit.

    A warning says how a text without a unit is read.

    Raises:
        FieldError: no duration > 0.
    """
    if given is None:
        return None
    if field != "core_seconds":  # whose name says the unit
        warn_of_bare_number(given, field)
    try:
        seconds = parse_seconds(given)
    except InputError as error:
        raise FieldError(field, str(error)) from None
    if not seconds > 0:
        raise FieldError(field, f"needs seconds > 0, such as 60s, got '{given}'")
    return seconds


def warn_of_bare_number(given: Any, field: str) -> None:
    """Say in one line that a text without a unit is taken as seconds."""
    if isinstance(given, str) and _BARE.fullmatch(given.strip()):
        number = given.strip()
        _LOG.warning("argument `%s` %s is taken as %s seconds; write %ss", *(field, *3 * (number,)))


def parse_count(given: Any, field: str) -> int | None:
    """A whole number >= 1; None is no limit.

    Raises:
        FieldError: it is none.
    """
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise FieldError(field, f"expects a whole number >= 1, got {given!r}")
    return given


def parse_seed(given: Any) -> int:
    """A whole number that every library takes as a seed.

    Raises:
        FieldError: it is none.
    """
    if isinstance(given, bool) or not isinstance(given, int) or not 0 <= given < 2**63:
        raise FieldError("seed", f"expects a whole number from 0 to 2^63 - 1, got {given!r}")
    return given


def parse_ray(given: Any) -> str | None:
    """The address of a Ray cluster, ``auto`` or ``local``; None is no cluster.

    Raises:
        FieldError: it is neither.
    """
    if given is None or given in ("auto", "local"):
        return given if given is None else str(given)
    if isinstance(given, str) and re.fullmatch(ADDRESS, given):
        return given
    raise FieldError("ray", f"expects HOST:PORT, ray://HOST:PORT, auto or local, got {given!r}")


def parse_samples(given: Any) -> Samples | None:
    """Samples in flight: a number >= 0, or ``pipeline``.

    Raises:
        FieldError: it is neither.
    """
    if given is None or given == "pipeline":
        return "pipeline" if given else None
    if isinstance(given, bool) or not str(given).isdecimal():
        raise FieldError("samples_in_flight", f"expects a number >= 0 or 'pipeline', got '{given}'")
    return int(given)


def parse_names(text: str) -> list[str]:
    """A comma-separated list of names."""
    return [name.strip() for name in text.split(",") if name.strip()]


def names_in(given: Any, field: str, form: str, separator: str | None = ",") -> tuple[str, ...]:
    """One text, or several; None is none.

    Args:
        given: as the user says it.
        field: that it is for.
        form: of one text.
        separator: of several names in one text; None where a text is one name.

    Raises:
        FieldError: an entry is no text.
    """
    if given is None:
        return ()
    if isinstance(given, str):
        return (given,) if separator is None else tuple(parse_names(given))
    if not isinstance(given, Iterable) or not all(isinstance(one, str) for one in given):
        raise FieldError(field, f"expects {form}, got {given!r}")
    return tuple(given)


def parse_path(given: Any, field: str) -> Path | None:
    """A file's path; None is none.

    Raises:
        FieldError: it is no path.
    """
    if given is None:
        return None
    if not isinstance(given, str | os.PathLike):
        raise FieldError(field, f"expects a path, got {given!r}")
    return Path(given)


def require_folder(path: Path) -> None:
    """Fail before long work when an output file has no folder, or is one.

    Raises:
        InputError: the folder is missing, or `path` itself is a folder.
    """
    if path.is_dir():
        raise InputError(f"'{path}' is a folder; name the file to write")
    place = written_place(path)
    if not place.parent.is_dir():
        folder = path.parent if place.name == path.name else place.parent
        raise InputError(f"folder '{folder}' of '{place.name}' does not exist; make it first")

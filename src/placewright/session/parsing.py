"""Option texts such as ``OP=DEVICE`` and ``name=1,3,224,224`` to values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path

from placewright.core.problem import Samples
from placewright.core.solution import Budget
from placewright.errors import InputError
from placewright.files.quantities import parse_bytes, parse_seconds


def parse_pairs(texts: Iterable[str], option: str, form: str) -> dict[str, str]:
    """``KEY=VALUE`` texts to a dictionary; the last ``=`` separates, as op names may hold one.

    Raises:
        InputError: a text has no ``=`` or an empty side, or two disagree.
    """
    pairs: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.rpartition("=")
        if not (equals and key and value):
            raise InputError(f"{option} expects {form}, got '{text}'")
        if pairs.setdefault(key, value) != value:
            raise InputError(f"{option} gives '{key}' both '{pairs[key]}' and '{value}'; keep one")
    return pairs


def parse_shapes(texts: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """``name=1,3,224,224`` texts to input shapes.

    Raises:
        InputError: an extent is no integer >= 1.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for name, value in parse_pairs(texts, "--shape", "NAME=1,3,224,224").items():
        try:
            shapes[name] = tuple(int(extent) for extent in value.split(","))
        except ValueError:
            shapes[name] = (0,)
        if any(extent < 1 for extent in shapes[name]):
            raise InputError(f"--shape expects NAME=1,3,224,224, got '{name}={value}'")
    return shapes


def parse_memory(texts: Iterable[str]) -> dict[str, float]:
    """``DEVICE=2GiB`` texts to bytes.

    Raises:
        InputError: a size is no number of bytes.
    """
    pairs = parse_pairs(texts, "--memory", "DEVICE=2GiB")
    return {device: parse_bytes(size) for device, size in pairs.items()}


def parse_budget(seconds: str | None, evaluations: int | None) -> Budget:
    """``--budget`` and ``--evaluations``; 30 s where neither is given.

    Raises:
        InputError: the duration is no duration > 0, or evaluations < 1.
    """
    if seconds is None and evaluations is None:
        return Budget(seconds=30.0)
    return Budget(None if seconds is None else parse_seconds(seconds), evaluations)


def parse_total(text: str | None) -> float | None:
    """``--total`` in seconds; None is no limit.

    Raises:
        InputError: no duration > 0.
    """
    if text is None:
        return None
    seconds = parse_seconds(text)
    if not seconds > 0:
        raise InputError(f"--total expects a duration > 0 such as 60s, got '{text}'")
    return seconds


def parse_latency_limit(text: str | None) -> float:
    """``--latency-limit`` in seconds; inf where there is none.

    Raises:
        InputError: no duration > 0.
    """
    if text is None:
        return math.inf
    seconds = parse_seconds(text)
    if not seconds > 0:
        raise InputError(f"--latency-limit expects a duration > 0 such as 200ms, got '{text}'")
    return seconds


def parse_samples(text: str | None) -> Samples | None:
    """``--samples-in-flight``: a number >= 0, or ``pipeline``.

    Raises:
        InputError: it is neither.
    """
    if text is None or text == "pipeline":
        return "pipeline" if text else None
    if not text.isdecimal():
        raise InputError(f"--samples-in-flight expects a number >= 0 or 'pipeline', got '{text}'")
    return int(text)


def parse_names(text: str) -> list[str]:
    """A comma-separated list of names."""
    return [name.strip() for name in text.split(",") if name.strip()]


def require_folder(path: Path) -> None:
    """Fail before long work when an output file has no folder, or is one.

    Raises:
        InputError: the folder is missing, or `path` itself is a folder.
    """
    if path.is_dir():
        raise InputError(f"'{path}' is a folder; name the file to write")
    if not path.resolve().parent.is_dir():
        raise InputError(f"folder '{path.parent}' of '{path.name}' does not exist; make it first")


def without_none(values: Mapping[str, object]) -> dict[str, object]:
    """The entries that are not None."""
    return {key: value for key, value in values.items() if value is not None}

"""Dimensions of inputs: what a model states, what a user asks for, and what neither says."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from placewright.errors import InputError, UnknownNameError

_LOG = logging.getLogger(__name__)
Shape = tuple[int, ...]


@dataclass(frozen=True)
class StatedInput:
    """One input as a model states it.

    Attributes:
        names: by which users may call it, its own first.
        dimensions: numbers, and symbols of those that are open (``""`` without one); None where
            not even their number is known.
    """

    names: tuple[str, ...]
    dimensions: tuple[int | str, ...] | None

    @property
    def name(self) -> str:
        """Its own name."""
        return self.names[0]


def fixed_shapes(inputs: Sequence[StatedInput], asked: Mapping[str, Shape]) -> list[Shape]:
    """Numbers for all dimensions of all inputs.

    An input takes what is asked for under one of its names, else under the last pattern that fits
    it. An open dimension takes what is asked for under its symbol; a sum of symbols follows from
    them. An open first dimension, and others with its symbol, are a batch and count as 1.

    Args:
        inputs: in the model's order.
        asked: input name, pattern of input names or symbol -> dimensions; one for a symbol.

    Raises:
        UnknownNameError: a name stands for nothing.
        InputError: a dimension is negative, other than stated, or open and no batch.
    """
    sizes = _sizes_of_symbols(inputs, asked)
    batches = _batch_symbols(inputs)
    found: list[Shape | None] = []
    counted: list[str] = []
    for one in inputs:
        wanted = _wanted(one, asked)
        if wanted is None and one.dimensions is not None:
            known = [_size(dimension, sizes) for dimension in one.dimensions]
            guessed = [
                1 if size is None and (at == 0 or symbol in batches) else size
                for at, (size, symbol) in enumerate(zip(known, one.dimensions, strict=True))
            ]
            closed = tuple(size for size in guessed if size is not None)
            wanted = closed if len(closed) == len(guessed) else None
            if wanted is not None and None in known:
                counted.append(f"'{one.name}' {_text(one)}")
        elif wanted is not None:
            _require_fit(one, wanted)
        found.append(wanted)
    _require_all(inputs, found, batches)
    if counted:
        _LOG.warning(
            "the open batch dimension of %s counts as 1 (argument `shapes` chooses another)",
            ", ".join(counted),
        )
    growing = [one for one in inputs if _grows(one, batches)]
    if growing:
        _LOG.warning(
            "'%s'%s holds state that grows: this is placed for the length that is given, and "
            "another length needs a plan of its own",
            growing[0].name, f" (and {len(growing) - 1} more)" if len(growing) > 1 else "",
        )  # fmt: skip
    return [shape for shape in found if shape is not None]


def _grows(one: StatedInput, batches: Mapping[str, None]) -> bool:
    """Is it a cache of earlier steps, with a length that the model leaves open?"""
    dimensions = (one.dimensions or ())[1:]
    open_ones = [d for d in dimensions if isinstance(d, str) and d not in batches]
    marks = r"(?i)past|cache|(^|[._/])kv"
    return (
        bool(open_ones) and len(dimensions) >= 2 and any(map(re.compile(marks).search, one.names))
    )


def _wanted(one: StatedInput, asked: Mapping[str, Shape]) -> Shape | None:
    exact = next((asked[name] for name in one.names if name in asked), None)
    if exact is not None:
        return tuple(exact)
    fitting = [
        tuple(shape)
        for pattern, shape in asked.items()
        if _is_pattern(pattern) and any(fnmatchcase(name, pattern) for name in one.names)
    ]
    return fitting[-1] if fitting else None


def _sizes_of_symbols(inputs: Sequence[StatedInput], asked: Mapping[str, Shape]) -> dict[str, int]:
    """Symbol -> its size, of those that are asked for.

    Raises:
        UnknownNameError: a name is neither an input, a pattern of some, nor a symbol.
        InputError: a symbol is given several numbers, or none.
    """
    names = [name for one in inputs for name in one.names]
    symbols = list(dict.fromkeys(part for one in inputs for part in _symbols_of(one)))
    sizes: dict[str, int] = {}
    for key, shape in asked.items():
        if key in names or (_is_pattern(key) and any(fnmatchcase(n, key) for n in names)):
            continue
        if key not in symbols:
            raise UnknownNameError("model input", key, [*(one.name for one in inputs), *symbols])
        if len(shape) != 1 or shape[0] < 0:
            raise InputError(
                f"argument `shapes` gives dimension '{key}' {list(shape)}; expected one number"
            )
        sizes[key] = shape[0]
    return sizes


def _symbols_of(one: StatedInput) -> Iterable[str]:
    for dimension in one.dimensions or ():
        if isinstance(dimension, str):
            yield from (part for part in _terms(dimension) if part and not part.isdecimal())


def _terms(symbol: str) -> list[str]:
    return [part.strip() for part in symbol.split("+")]


def _size(dimension: int | str, sizes: Mapping[str, int]) -> int | None:
    """A dimension's number; None where it is open."""
    if isinstance(dimension, int):
        return dimension
    if dimension in sizes:
        return sizes[dimension]
    parts = [int(part) if part.isdecimal() else sizes.get(part) for part in _terms(dimension)]
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


def _batch_symbols(inputs: Sequence[StatedInput]) -> dict[str, None]:
    """Symbols of first dimensions, and such as say that they are a batch."""
    first = [one.dimensions[0] for one in inputs if one.dimensions]
    others = [symbol for one in inputs for symbol in _symbols_of(one)]
    named = [symbol for symbol in others if re.fullmatch(r"(?i)(n|.*batch.*)", symbol)]
    return dict.fromkeys([s for s in first if isinstance(s, str) and s] + named)


def _require_fit(one: StatedInput, wanted: Shape) -> None:
    if any(extent < 0 for extent in wanted):
        raise InputError(f"input {one.name!r}: dimensions must be >= 0, got {wanted}")
    if one.dimensions is not None and one.dimensions and len(wanted) != len(one.dimensions):
        raise InputError(
            f"input '{one.name}' has {len(one.dimensions)} dimensions {_text(one)}, argument "
            f"`shapes` gives it {list(wanted)}"
        )


def _require_all(
    inputs: Sequence[StatedInput], found: Sequence[Shape | None], batches: Mapping[str, None]
) -> None:
    """Raises InputError: an input has no dimensions; the message says how to give them."""
    lacking = [one for one, shape in zip(inputs, found, strict=True) if shape is None]
    unranked = next((one for one in lacking if one.dimensions is None), None)
    if unranked is not None:
        raise InputError(
            f"input {unranked.name!r} has no known rank; give its dimensions, for example argument "
            f"`shapes` {unranked.name}=1,3,224,224"
        )
    if not lacking:
        return
    shown = ", ".join(f"'{one.name}' {_text(one)}" for one in lacking[:_SHOWN])
    more = f" and {len(lacking) - _SHOWN} more" if len(lacking) > _SHOWN else ""
    sizes = {s: _SIDE if len(one.dimensions or ()) >= _IMAGE_RANK else _LENGTH
             for one in lacking for s in _symbols_of(one)}  # fmt: skip
    sizes |= dict.fromkeys(batches, 1)
    examples = " ".join(
        f"argument `shapes` {one.name}={_example(one, sizes)}" for one in lacking[:_SHOWN]
    )
    symbols = " ".join(
        f"argument `shapes` {symbol}={size}" for symbol, size in sizes.items()
        if symbol not in batches
    )  # fmt: skip
    by_symbol = f", or, wherever they occur, {symbols}" if symbols else ""
    raise InputError(
        f"costs need fixed dimensions, and those of {shown}{more} are open; give sizes of your "
        f"own, for example {examples}{by_symbol}"
    )


_SHOWN = 4
_SIDE, _LENGTH = 224, 128  # examples of the open dimensions of images, and of other inputs
_IMAGE_RANK = 4


def _example(one: StatedInput, sizes: Mapping[str, int]) -> str:
    """Its dimensions as they can be typed, with example sizes of open ones."""
    dimensions = one.dimensions or ()
    otherwise = _SIDE if len(dimensions) >= _IMAGE_RANK else _LENGTH
    known = [_size(dimension, sizes) for dimension in dimensions]
    return ",".join(
        str(size if size is not None else otherwise if at > 0 else 1)
        for at, size in enumerate(known)
    )


def _text(one: StatedInput) -> str:
    return f"[{', '.join(str(d) if d != '' else '?' for d in one.dimensions or ())}]"


def _is_pattern(name: str) -> bool:
    return any(mark in name for mark in "*?[")

"""Dimensions of inputs: from the model, from the user, and defaults for the others."""

from __future__ import annotations

import logging
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from placewright.errors import InputError, UnknownNameError

_LOG = logging.getLogger(__name__)
Shape = tuple[int, ...]
_SHOWN = 4  # inputs in a message
_SIDE, _LENGTH = 224, 128  # examples of the open dimensions of images, and of other inputs
_IMAGE_RANK = 4
_DIGITS = 18  # of a number in a sum of symbols; longer ones are no size
_NO_EXTENT = 1 << 63  # files hold extents in 64 bits with a sign
_BATCH = re.compile(r"(?i)n|.*batch.*")  # symbols of batches
# in what follows from symbols, whose names may hold slashes and hyphens
_COMPUTED = re.compile(r"[\w)] ?([+*]|/ ?[/\d])|[\w)] (/ ?\w|- )|\w\(")
_LENGTHS = re.compile(r"(?i)seq|len|time|step|frame|token")  # in symbols of lengths


@dataclass(frozen=True)
class StatedInput:
    """An input with the names and dimensions that its model states."""

    names: tuple[str, ...]  # that users may give, its own name first
    # numbers, and symbols of open dimensions (``""`` without a symbol); None if not even their
    # number is known
    dimensions: tuple[int | str, ...] | None

    @property
    def name(self) -> str:
        """The first of its names."""
        return self.names[0]


def fixed_shapes(inputs: Sequence[StatedInput], asked: Mapping[str, Shape]) -> list[Shape]:
    """Find numbers for all dimensions of all inputs.

    An input takes the dimensions that are asked for under one of its names, else under the last
    pattern that fits it. An open dimension takes the number that is asked for under its symbol, or
    that another input has there; a sum of symbols follows from them. Open dimensions that are a
    batch count as 1: a first dimension that is neither computed nor called a length, another with
    the same symbol, and one whose symbol is ``n`` or contains ``batch``. Warnings name them, and
    inputs that look like caches of open length.

    Args:
        inputs: in the model's order.
        asked: input name, pattern of input names or symbol -> dimensions; one for a symbol.

    Returns:
        The dimensions of each input, in the order of `inputs`.

    Raises:
        UnknownNameError: a name is unknown.
        InputError: a dimension is negative, contradicts the model or the number of its symbol, or
            is open and no batch; or an input would take the number of a symbol that has two.
    """
    sizes = _sizes(inputs, asked)
    batches = _batch_symbols(inputs)
    assumed = dict.fromkeys(batches, 1) | sizes
    shapes: list[Shape | None] = []
    counted: list[str] = []
    for stated in inputs:
        wanted = _wanted(stated, asked)
        if wanted is None and stated.dimensions is not None:
            guessed = [_guess(at, d, assumed) for at, d in enumerate(stated.dimensions)]
            closed = tuple(size for size in guessed if size is not None)
            if len(closed) == len(guessed):
                _require_fit(stated, closed)
                wanted = closed
                if any(_size(dimension, sizes) is None for dimension in stated.dimensions):
                    counted.append(f"'{stated.name}' {_text(stated)}")
        shapes.append(wanted)
    _require_all(inputs, shapes, batches, sizes)
    if counted:
        _LOG.warning(
            "the open batch of %s counts as 1 (argument `shapes` chooses another)",
            ", ".join(counted),
        )
    growing = [stated for stated in inputs if _grows(stated, batches)]
    if growing:
        _LOG.warning(
            "'%s'%s holds state that grows: this is placed for the length that is given, and "
            "another length needs a plan of its own",
            growing[0].name, f" (and {len(growing) - 1} more)" if len(growing) > 1 else "",
        )  # fmt: skip
    return [shape for shape in shapes if shape is not None]


def _grows(stated: StatedInput, batches: Mapping[str, None]) -> bool:
    """True if an input is a cache of earlier steps with an open length."""
    dimensions = (stated.dimensions or ())[1:]
    is_open = any(isinstance(d, str) and d not in batches for d in dimensions)
    marks = re.compile(r"(?i)past|cache|(^|[._/])kv")
    return is_open and len(dimensions) >= 2 and any(map(marks.search, stated.names))


def _wanted(stated: StatedInput, asked: Mapping[str, Shape]) -> Shape | None:
    exact = next((asked[name] for name in stated.names if name in asked), None)
    if exact is not None:
        return tuple(exact)
    fitting = [
        tuple(shape)
        for pattern, shape in asked.items()
        if _is_pattern(pattern) and any(fnmatchcase(name, pattern) for name in stated.names)
    ]
    return fitting[-1] if fitting else None


def _sizes(inputs: Sequence[StatedInput], asked: Mapping[str, Shape]) -> dict[str, int]:
    """Symbol or sum of symbols -> its size, where it is asked for, itself or in an input.

    Raises:
        UnknownNameError: a name is neither an input, a pattern of inputs, nor a symbol.
        InputError: dimensions do not fit their input, or a symbol gets several sizes.
    """
    sizes = _sizes_of_symbols(inputs, asked)
    origin = {symbol: f"argument `shapes` {symbol}={size}" for symbol, size in sizes.items()}
    # Some models use one name for different things: whole dimensions are taken as they are, unless
    # a number that is asked for under the name, or an input that takes its number, contradicts.
    tied = {*sizes}
    found: list[tuple[str, int, str]] = []
    for stated in inputs:
        wanted = _wanted(stated, asked)
        if wanted is not None:
            _require_fit(stated, wanted)
            told = f"argument `shapes` {stated.name}={','.join(map(str, wanted))}"
            pairs = zip(stated.dimensions or (), wanted, strict=False)
            found += [(d, n, told) for d, n in pairs if isinstance(d, str) and _is_symbol(d)]
        else:
            tied |= {part for d in stated.dimensions or () if isinstance(d, str)
                     for part in (d, *_terms(d))}  # fmt: skip
    for symbol, size, told in sorted(found, key=lambda row: len(_terms(row[0]))):  # sums come last
        known = _size(symbol, sizes)
        if known is None:
            sizes[symbol], origin[symbol] = size, told
            continue
        parts = [symbol] if symbol in origin else _terms(symbol)
        if known != size and not tied.isdisjoint(parts):
            others = " and ".join(dict.fromkeys(origin[part] for part in parts if part in origin))
            raise InputError(
                f"dimension '{symbol}' has one size in the whole model, but {others} makes it "
                f"{known} and {told} makes it {size}; give it the same size"
            )
    return sizes


def _sizes_of_symbols(inputs: Sequence[StatedInput], asked: Mapping[str, Shape]) -> dict[str, int]:
    """Symbol -> its size, for symbols that are asked for.

    Raises:
        UnknownNameError: a name is neither an input, a pattern of inputs, nor a symbol.
        InputError: a symbol gets several numbers, or none.
    """
    names = [name for stated in inputs for name in stated.names]
    symbols = list(dict.fromkeys(part for stated in inputs for part in _symbols_of(stated)))
    sizes: dict[str, int] = {}
    for key, shape in asked.items():
        if key in names or (_is_pattern(key) and any(fnmatchcase(n, key) for n in names)):
            continue
        if key not in symbols:
            raise UnknownNameError("model input", key, [*(x.name for x in inputs), *symbols])
        if len(shape) != 1 or shape[0] < 0:
            raise InputError(
                f"argument `shapes` gives dimension '{key}' {list(shape)}; expected one number"
            )
        if shape[0] >= _NO_EXTENT:
            raise InputError(
                f"argument `shapes` gives dimension '{key}' {shape[0]}: no dimension has 2^63 or "
                "more; give a smaller one"
            )
        sizes[key] = shape[0]
    return sizes


def _symbols_of(stated: StatedInput) -> Iterable[str]:
    for dimension in stated.dimensions or ():
        if isinstance(dimension, str):
            yield from (part for part in _terms(dimension) if _is_symbol(part))


def _is_symbol(text: str) -> bool:
    """True for a name; exporters write ``?``, ``-1`` or ``None`` for every open dimension."""
    return not re.fullmatch(r"None|-?\d*", text) and not _is_pattern(text)


def _terms(symbol: str) -> list[str]:
    return [part.strip() for part in symbol.split("+")]


def _size(dimension: int | str, sizes: Mapping[str, int]) -> int | None:
    """Number of a dimension; None if it is open."""
    if isinstance(dimension, int):
        return dimension
    if dimension in sizes:
        return sizes[dimension]
    parts = [
        int(part) if part.isdecimal() and len(part) <= _DIGITS else sizes.get(part)
        for part in _terms(dimension)
    ]
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


def _guess(at: int, dimension: int | str, sizes: Mapping[str, int]) -> int | None:
    """Number of a dimension, 1 for an open batch; None if it is open otherwise."""
    size = _size(dimension, sizes)
    return 1 if size is None and _is_batch(at, dimension) else size


def _is_batch(at: int, dimension: int | str) -> bool:
    """True for an open first dimension that is not called a length and follows from no other."""
    return (
        isinstance(dimension, str)
        and at == 0
        and _COMPUTED.search(dimension) is None
        and (_BATCH.fullmatch(dimension) is not None or _LENGTHS.search(dimension) is None)
    )


def _batch_symbols(inputs: Sequence[StatedInput]) -> dict[str, None]:
    """Symbols of first dimensions that are batches, and symbols with the name of a batch."""
    first = [stated.dimensions[0] for stated in inputs if stated.dimensions]
    others = [symbol for stated in inputs for symbol in _symbols_of(stated)]
    named = [s for s in others if _BATCH.fullmatch(s) and _COMPUTED.search(s) is None]
    batches = [s for s in first if isinstance(s, str) and _is_symbol(s) and _is_batch(0, s)]
    return dict.fromkeys(batches + named)


def _require_fit(stated: StatedInput, wanted: Shape) -> None:
    if any(extent < 0 for extent in wanted):
        raise InputError(f"input {stated.name!r}: dimensions must be >= 0, got {wanted}")
    if any(extent >= _NO_EXTENT for extent in wanted):
        raise InputError(
            f"argument `shapes` gives input '{stated.name}' {list(wanted)}: no dimension has 2^63 "
            "or more; give smaller ones"
        )
    if stated.dimensions is not None and len(wanted) != len(stated.dimensions):
        raise InputError(
            f"input '{stated.name}' has {len(stated.dimensions)} dimensions {_text(stated)}, "
            f"argument `shapes` gives it {list(wanted)}"
        )


def _require_all(
    inputs: Sequence[StatedInput],
    shapes: Sequence[Shape | None],
    batches: Mapping[str, None],
    known: Mapping[str, int],
) -> None:
    """Require dimensions of all inputs.

    Args:
        known: sizes of symbols, which the examples of the message keep.

    Raises:
        InputError: an input has no dimensions; the message shows how to give them.
    """
    lacking = [stated for stated, shape in zip(inputs, shapes, strict=True) if shape is None]
    unranked = next((stated for stated in lacking if stated.dimensions is None), None)
    if unranked is not None:
        raise InputError(
            f"input {unranked.name!r} has no known rank; give its dimensions, for example argument "
            f"`shapes` {shlex.quote(f'{unranked.name}=1,3,224,224')}"
        )
    if not lacking:
        return
    shown = ", ".join(f"'{stated.name}' {_text(stated)}" for stated in lacking[:_SHOWN])
    more = f" and {len(lacking) - _SHOWN} more" if len(lacking) > _SHOWN else ""
    sizes = {s: _SIDE if len(x.dimensions or ()) >= _IMAGE_RANK else _LENGTH
             for x in lacking for s in _symbols_of(x)}  # fmt: skip
    sizes |= {**dict.fromkeys(batches, 1), **known}
    examples = " ".join(
        f"argument `shapes` {shlex.quote(f'{x.name}={_example(x, sizes)}')}"
        for x in lacking[:_SHOWN]
    )
    symbols = " ".join(
        f"argument `shapes` {shlex.quote(f'{symbol}={size}')}"
        for symbol, size in sizes.items()
        if symbol not in batches and symbol not in known
    )
    by_symbol = f", or, wherever they occur, {symbols}" if symbols else ""
    raise InputError(
        f"costs need fixed dimensions, and those of {shown}{more} are open; give sizes of your "
        f"own, for example {examples}{by_symbol}"
    )


def _example(stated: StatedInput, sizes: Mapping[str, int]) -> str:
    """Dimensions of an input as users can type them, with example sizes of open ones."""
    dimensions = stated.dimensions or ()
    otherwise = _SIDE if len(dimensions) >= _IMAGE_RANK else _LENGTH
    guessed = [_guess(at, dimension, sizes) for at, dimension in enumerate(dimensions)]
    return ",".join(str(otherwise if size is None else size) for size in guessed)


def _text(stated: StatedInput) -> str:
    return f"[{', '.join(str(d) if d != '' else '?' for d in stated.dimensions or ())}]"


def _is_pattern(name: str) -> bool:
    return any(mark in name for mark in "*?[")

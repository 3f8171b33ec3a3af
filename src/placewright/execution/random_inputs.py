"""Random values for the inputs of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from placewright.execution.runtime import HostArray

Value = TypeVar("Value")  # a hashable name of a value of the model

_FLAGS = range(2)
# Small types hold pixels, bytes and quantized numbers, which fill the type.
_MOST_BYTES = 1


@dataclass(frozen=True)
class Use(Generic[Value]):
    """A reader of whole numbers: its table, and the values that it passes on."""

    # Numbers from this one on are no index of the reader's table; None without a table.
    table_size: int | None = None
    passed_to: tuple[Value, ...] = ()  # values that hold the same numbers


def whole_numbers(
    value: Value, dtype: np.dtype[Any], uses_of: Callable[[Value], Iterable[Use[Value] | None]]
) -> range:
    """Find the whole numbers that a model takes at an input.

    An index of tables is drawn from the smallest of them. A type of one byte is drawn whole if no
    table is read. Everything else, and everything that reaches an unknown reader, is 0 or 1.

    Args:
        value: the input.
        dtype: an integer type.
        uses_of: the readers of a value; None stands for a reader of which nothing is known.
    """
    seen, left = {value}, [value]
    sizes: list[int] = []
    while left:
        for use in uses_of(left.pop()):
            if use is None:
                return _FLAGS
            if use.table_size is not None:
                sizes.append(use.table_size)
            left += [passed for passed in use.passed_to if passed not in seen]
            seen.update(use.passed_to)
    limits = np.iinfo(dtype)
    if sizes:
        return range(max(1, min(*sizes, int(limits.max) + 1)))
    if dtype.itemsize <= _MOST_BYTES:
        return range(int(limits.min), int(limits.max) + 1)
    return _FLAGS


def random_values(
    rng: np.random.Generator,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    numbers: Callable[[], range] = lambda: _FLAGS,
) -> HostArray:
    """Draw standard normal values, whole numbers of a range, true, or a text.

    Args:
        shape: dimensions of the result.
        dtype: its type.
        numbers: the whole numbers that suit an integer type, see `whole_numbers`.
    """
    if dtype == np.bool_:
        return np.ones(shape, dtype)
    if np.issubdtype(dtype, np.integer):
        suitable = numbers()
        return rng.integers(suitable.start, suitable.stop, shape).astype(dtype)
    if dtype == np.object_:
        return np.full(shape, "text", dtype)
    return rng.standard_normal(shape).astype(dtype)

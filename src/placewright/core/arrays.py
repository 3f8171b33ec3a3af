"""Read-only arrays and compressed sparse rows, of which all data types of this room consist."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
T = TypeVar("T", bound=np.generic)


def frozen_floats(values: ArrayLike) -> FloatArray:
    """Copy `values` into a read-only C-ordered float64 array."""
    return _frozen(values, np.float64)


def frozen_ints(values: ArrayLike) -> IntArray:
    """Copy `values` into a read-only C-ordered int64 array."""
    return _frozen(values, np.int64)


def frozen_bools(values: ArrayLike) -> BoolArray:
    """Copy `values` into a read-only C-ordered bool array."""
    return _frozen(values, np.bool_)


def kept_floats(values: ArrayLike) -> FloatArray:
    """`values` as a read-only float64 array: themselves if they are one, else a copy."""
    array = np.asarray(values)
    base: object = array
    while isinstance(base, np.ndarray) and not base.flags.writeable:
        base = base.base  # a read-only view may show an array that changes
    is_frozen = array.dtype == np.float64 and base is None
    return array if is_frozen else frozen_floats(array)


def _frozen(values: ArrayLike, dtype: type[T]) -> NDArray[T]:
    array = np.array(values, dtype=dtype, order="C")
    array.setflags(write=False)
    return array


def read_only_array(array: NDArray[T]) -> NDArray[T]:
    """View an array as read-only; copy it only if it is not C-ordered."""
    view = np.ascontiguousarray(array).view()
    view.setflags(write=False)
    return view


def positions_in(order: IntArray) -> IntArray:
    """Position of each number in an order of 0 .. n - 1, shape (n,).

    >>> positions_in(np.array([2, 0, 1])).tolist()
    [1, 2, 0]
    """
    positions = np.empty(len(order), dtype=np.int64)
    positions[order] = np.arange(len(order))
    return positions


@dataclass(frozen=True, eq=False, slots=True)
class Csr:
    """Rows of integers of unequal length: row i is ``indices[indptr[i]:indptr[i + 1]]``."""

    indptr: IntArray  # shape (n_rows + 1,), int64, non-decreasing, starts at 0
    indices: IntArray  # shape (indptr[-1],), int64

    @classmethod
    def from_rows(cls, rows: Sequence[Iterable[int]]) -> Csr:
        """Build from an iterable of integers for each row."""
        lists = [list(row) for row in rows]
        indptr = np.zeros(len(lists) + 1, dtype=np.int64)
        np.cumsum([len(row) for row in lists], out=indptr[1:])
        indices = np.fromiter((i for row in lists for i in row), np.int64, int(indptr[-1]))
        return cls(frozen_ints(indptr), frozen_ints(indices))

    @classmethod
    def from_pairs(cls, rows: ArrayLike, values: ArrayLike, n_rows: int) -> Csr:
        """Build from parallel arrays (row, value); within a row values keep their given order."""
        row = np.asarray(rows, dtype=np.int64)
        value = np.asarray(values, dtype=np.int64)
        by_row = np.argsort(row, kind="stable")
        indptr = np.zeros(n_rows + 1, dtype=np.int64)
        np.cumsum(np.bincount(row, minlength=n_rows), out=indptr[1:])
        return cls(frozen_ints(indptr), frozen_ints(value[by_row]))

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.indptr) - 1

    def row(self, index: int) -> IntArray:
        """The integers of one row."""
        return self.indices[self.indptr[index] : self.indptr[index + 1]]

    def row_of_each(self) -> IntArray:
        """The row number of every entry of `indices`, shape (len(indices),)."""
        return np.repeat(np.arange(self.n_rows, dtype=np.int64), np.diff(self.indptr))

    def transposed(self, n_columns: int) -> Csr:
        """Transpose: rows become values and values rows; each new row is in ascending order."""
        return Csr.from_pairs(self.indices, self.row_of_each(), n_columns)

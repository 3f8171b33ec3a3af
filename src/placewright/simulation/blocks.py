"""Many arrays in one block of bytes, for kernels that are called often."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placewright.core.arrays import IntArray
from placewright.simulation.compiled import substituted
from placewright.simulation.instructions import records_at

Bytes = NDArray[np.uint8]
_LINE = 64  # bytes of a cache line; no two arrays share one


def places_of(sizes: Sequence[tuple[int, np.dtype[np.generic]]]) -> tuple[IntArray, int]:
    """First byte and the one behind the last of each array, shape (n, 2), and bytes in all.

    Args:
        sizes: length and dtype of each array.
    """
    places = np.zeros((len(sizes), 2), dtype=np.int64)
    total = 0
    for row, (length, dtype) in enumerate(sizes):
        places[row] = total, total + length * dtype.itemsize
        total = -(-int(places[row, 1]) // _LINE) * _LINE
    return places, total


def packed(arrays: Sequence[NDArray[np.generic]]) -> tuple[Bytes, IntArray]:
    """One block with a copy of each array, and where each is: shape (n, 2)."""
    places, total = places_of([(array.size, array.dtype) for array in arrays])
    block = np.zeros(total, dtype=np.uint8)
    for (first, stop), array in zip(places.tolist(), arrays, strict=True):
        block[first:stop] = np.ascontiguousarray(array).view(np.uint8).ravel()
    return block, places


def arrays_in(
    block: Bytes, places: IntArray, sizes: Sequence[tuple[int, np.dtype[np.generic]]]
) -> list[NDArray[Any]]:
    """Views of the arrays in a block, for Python; `places` and `sizes` as in `places_of`."""
    ends = zip(places.tolist(), sizes, strict=True)
    return [block[first:stop].view(dtype) for (first, stop), (_, dtype) in ends]


@substituted
def part(
    block: Bytes, places: IntArray, index: int, dtype: np.dtype[Any] | type[np.generic]
) -> NDArray[Any]:
    """One array of the block, which must outlive it."""
    return records_at(block, places[index, 0], places[index, 1], dtype)

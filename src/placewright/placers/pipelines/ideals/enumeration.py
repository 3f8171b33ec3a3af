"""All ideals (predecessor-closed sets) of a partial order, with the graph that joins them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placewright.core.arrays import Csr, IntArray, frozen_ints
from placewright.simulation.compiled import compiled

_Words = NDArray[np.uint64]
_FIRST_IDEALS = 10_000


@dataclass(frozen=True, eq=False)
class IdealLattice:
    """Ideals in order of size: 0 is the empty set, the last one holds every item."""

    # the additions to ideal i are entries ``indptr[i]:indptr[i + 1]`` of the next two
    indptr: IntArray
    added: IntArray  # item that is added, shape (n_additions,)
    reached: IntArray  # ideal that results, shape (n_additions,)

    @property
    def n_ideals(self) -> int:
        """Number of ideals."""
        return len(self.indptr) - 1


def chain(order: IntArray) -> IdealLattice:
    """The ideals of a linear order: its prefixes.

    >>> chain(np.array([2, 0, 1])).n_ideals
    4
    """
    n = len(order)
    indptr = np.minimum(np.arange(n + 2), n)
    return IdealLattice(frozen_ints(indptr), frozen_ints(order), frozen_ints(np.arange(1, n + 1)))


def enumerate_ideals(successors: Csr, limit: int) -> IdealLattice | None:
    """All ideals of an acyclic precedence, or None if there are more than `limit`.

    Args:
        successors: items that come after each item.
        limit: on the number of ideals.
    """
    predecessors = successors.transposed(successors.n_rows)
    within, *arrays = _enumerate(
        predecessors.indptr,
        predecessors.indices,
        successors.n_rows,
        limit,
    )
    if not within:
        return None
    return IdealLattice(*(frozen_ints(array) for array in arrays))


def enumerate_in_time(
    successors: Csr, limit: int, seconds_left: Callable[[], float]
) -> tuple[IdealLattice | None, int]:
    """All ideals, with a limit that grows tenfold as long as time allows.

    Args:
        successors: items that come after each item.
        limit: as in `enumerate_ideals`.
        seconds_left: of the budget; inf without a limit.

    Returns:
        The lattice, None if there are more ideals than the last limit; and that limit.
    """
    looked_for = limit if math.isinf(seconds_left()) else min(limit, _FIRST_IDEALS)
    while True:
        before = seconds_left()
        lattice = enumerate_ideals(successors, looked_for)
        left = seconds_left()
        too_long = 10.0 * (before - left) > left
        if lattice is not None or looked_for == limit or too_long:
            return lattice, looked_for
        looked_for = min(limit, 10 * looked_for)


@compiled
def _hash_of(words: _Words) -> np.uint64:
    """FNV-style mix of a bitset."""
    value = np.uint64(1469598103934665603)
    for word in words:
        value = (value ^ word) * np.uint64(1099511628211)
        value ^= value >> np.uint64(29)
    return value


@compiled
def _find(table: IntArray, bits: NDArray[np.uint64], words: _Words) -> np.int64:
    """Slot of the hash table that holds the set `words`, or the free slot where it belongs."""
    mask = np.int64(len(table) - 1)
    slot = np.int64(_hash_of(words) & np.uint64(mask))
    while table[slot] >= 0 and not np.array_equal(bits[table[slot]], words):
        slot = (slot + 1) & mask
    return slot


@compiled
def _enumerate(pred_ptr, preds, n_items, limit) -> tuple[bool, IntArray, IntArray, IntArray]:  # type: ignore[no-untyped-def]
    """Breadth first from the empty set; equal sets meet in a hash table of bitsets."""
    n_words = max(1, (n_items + 63) // 64)
    capacity = 1024
    bits = np.zeros((capacity, n_words), dtype=np.uint64)
    table = np.full(4 * capacity, -1, dtype=np.int64)
    words = np.zeros(n_words, dtype=np.uint64)
    table[_find(table, bits, words)] = 0
    indptr = [np.int64(0)]
    added = [np.int64(0) for _ in range(0)]
    reached = [np.int64(0) for _ in range(0)]
    n_ideals = 1
    current = 0
    while current < n_ideals:
        for item in range(n_items):
            word, bit = item >> 6, np.uint64(1) << np.uint64(item & 63)
            if bits[current, word] & bit:
                continue
            is_free = True
            for k in range(pred_ptr[item], pred_ptr[item + 1]):
                p = preds[k]
                if not bits[current, p >> 6] & (np.uint64(1) << np.uint64(p & 63)):
                    is_free = False
                    break
            if not is_free:
                continue
            words[:] = bits[current]
            words[word] |= bit
            slot = _find(table, bits, words)
            if table[slot] < 0:
                if n_ideals >= limit:
                    return False, np.array(indptr), np.array(added), np.array(reached)
                if n_ideals == capacity:
                    capacity *= 2
                    larger = np.zeros((capacity, n_words), dtype=np.uint64)
                    larger[:n_ideals] = bits
                    bits = larger
                    table = np.full(4 * capacity, -1, dtype=np.int64)
                    for ideal in range(n_ideals):
                        table[_find(table, bits, bits[ideal])] = ideal
                    slot = _find(table, bits, words)
                bits[n_ideals] = words
                table[slot] = n_ideals
                n_ideals += 1
            added.append(np.int64(item))
            reached.append(table[slot])
        indptr.append(np.int64(len(added)))
        current += 1
    return True, np.array(indptr), np.array(added), np.array(reached)

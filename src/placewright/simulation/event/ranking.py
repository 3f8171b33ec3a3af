"""Which unit of a device comes first: a list of its units by falling rank.

Units go into as many buckets as there are units, by rank, and what shares a bucket is then sorted:
linear where ranks are spread out. Crowded buckets are divided once; where that does not help,
a heap sorts.
"""

from __future__ import annotations

import numpy as np

from placewright.core.arrays import IntArray
from placewright.simulation.compiled import inlined, uncounted
from placewright.simulation.event.state import State
from placewright.simulation.records import ONE, TWO, ZERO, Record, Records, U

_CROWD = U(2)  # pairs in one bucket, per unit, above which buckets are divided
_PATIENCE = U(8)  # moves per unit after which a heap takes over


@uncounted
def list_by_rank(state: State) -> None:
    """Put each device's units into its slots by falling rank, of equal ones the first."""
    _fill_buckets(state)
    for index in range(ZERO, U(len(state.devices))):
        device = state.devices[index]
        first, stop = U(device.first), U(device.stop)
        if not _sort_by_insertion(state.slots, first, stop):
            _sort_by_heap(state.slots, first, stop - first)


@uncounted
def _fill_buckets(state: State) -> None:
    """List units by device and bucket, those of one bucket by number."""
    n_units, buckets, units = U(len(state.units)), state.buckets, state.units
    n_ranks = n_units // U(len(state.devices)) + ONE
    longest = 0.0
    for index in range(ZERO, n_units):
        rank = units[index].seconds
        longest = rank if rank > longest else longest
    per_second = float(n_ranks) / longest if longest > 0.0 else 0.0
    for index in range(ZERO, U(len(buckets))):
        buckets[index] = ZERO
    for index in range(ZERO, n_units):
        unit = units[index]
        bucket, _ = _bucket(unit, longest, per_second, n_ranks)
        unit.place = bucket
        buckets[bucket] += ONE
    if _number(buckets) > _CROWD * n_units:
        _divide(state, longest, per_second, n_ranks)
        buckets = state.parts
        _number(buckets)
    for index in range(ZERO, n_units):
        unit = units[index]
        bucket = U(unit.place)
        at = U(buckets[bucket])
        buckets[bucket] = at + ONE
        state.slots[at].seconds = unit.seconds
        state.slots[at].unit = index


@inlined
def _bucket(unit: Record, longest: float, per_second: float, n_ranks: int) -> tuple[int, float]:
    """Bucket of a unit, and how far within it the unit is: 0 to 1."""
    below, last = (longest - unit.seconds) * per_second, float(n_ranks - ONE)
    # Not a number, of an infinite rank, goes to the last one.
    at = U(np.int64(below if below < last else last))
    return U(unit.device) * n_ranks + at, below - float(at)


@uncounted
def _number(buckets: IntArray) -> int:
    """Put in place of each count the number of units before; how many pairs share a bucket."""
    first, pairs = ZERO, ZERO
    for index in range(ZERO, U(len(buckets))):
        count = U(buckets[index])
        pairs += count * count - count
        buckets[index] = first
        first += count
    return pairs >> ONE


@uncounted
def _divide(state: State, longest: float, per_second: float, n_ranks: int) -> None:
    """Give each bucket as many parts as it has units, and count the units of each part."""
    parts, buckets, n_units = state.parts, state.buckets, U(len(state.units))
    for index in range(ZERO, n_units):
        parts[index] = ZERO
    for index in range(ZERO, n_units):
        unit = state.units[index]
        bucket, within = _bucket(unit, longest, per_second, n_ranks)
        first = U(buckets[bucket])
        count = U(buckets[bucket + ONE]) - first
        part, last = within * float(count), float(count - ONE)
        unit.place = first + U(np.int64(part if part < last else last))
        parts[unit.place] += ONE


@uncounted
def _sort_by_insertion(slots: Records, first: int, stop: int) -> bool:
    """Sort ``slots[first:stop]``; False, and a permutation still, where that takes too long."""
    moves, limit = ZERO, _PATIENCE * (stop - first)
    for at in range(first + ONE, stop):
        rank, number, place = slots[at].seconds, U(slots[at].unit), U(at)
        while place > first and slots[place - ONE].seconds < rank:
            slots[place].seconds = slots[place - ONE].seconds
            slots[place].unit = slots[place - ONE].unit
            place -= ONE
        slots[place].seconds = rank
        slots[place].unit = number
        moves += at - place
        if moves > limit:
            return False
    return True


@uncounted
def _sort_by_heap(slots: Records, first: int, size: int) -> None:
    for root in range(size // TWO, ZERO, -1):
        at = first + U(root) - ONE
        _sift(slots, first, U(root) - ONE, size, slots[at].seconds, U(slots[at].unit))
    last = size
    while last > ONE:
        last -= ONE
        rank, number = slots[first + last].seconds, U(slots[first + last].unit)
        slots[first + last].seconds = slots[first].seconds
        slots[first + last].unit = slots[first].unit
        _sift(slots, first, ZERO, last, rank, number)


@uncounted
def _sift(slots: Records, first: int, at: int, size: int, rank: float, number: int) -> None:
    """Put a unit where it belongs at `at` or below it in a heap with the last unit on top."""
    while TWO * at + ONE < size:
        child = TWO * at + ONE
        below = slots[first + child]
        if child + ONE < size:
            other = slots[first + child + ONE]
            if _precedes(below.seconds, U(below.unit), other.seconds, U(other.unit)):
                child += ONE
        below = slots[first + child]
        if not _precedes(rank, number, below.seconds, U(below.unit)):
            break
        slots[first + at].seconds = below.seconds
        slots[first + at].unit = below.unit
        at = child
    slots[first + at].seconds = rank
    slots[first + at].unit = number


@inlined
def _precedes(rank: float, unit: int, other_rank: float, other: int) -> bool:
    return bool(rank > other_rank or (rank == other_rank and unit < other))

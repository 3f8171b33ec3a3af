"""A binary heap in plain arrays for the Numba kernels, smallest (time, key) first."""

from __future__ import annotations

from placewright.core.arrays import FloatArray, IntArray
from placewright.simulation.compiled import uncounted


@uncounted
def push(
    times: FloatArray, keys: IntArray, loads: IntArray, size: int, time: float, key: int, load: int
) -> int:
    """Add an entry; the new size."""
    at = size
    while at > 0:
        up = (at - 1) >> 1
        if times[up] < time or (times[up] == time and keys[up] < key):
            break
        times[at], keys[at], loads[at] = times[up], keys[up], loads[up]
        at = up
    times[at], keys[at], loads[at] = time, key, load
    return size + 1


@uncounted
def drop_first(times: FloatArray, keys: IntArray, loads: IntArray, size: int) -> int:
    """Remove the smallest entry, which is at index 0; the new size.

    The hole sinks to the bottom along the smaller children, and the last entry rises into it: the
    choice of a child is arithmetic, since a branch there is mispredicted every other time.
    """
    size -= 1
    at = 0
    child = 1
    while child + 1 < size:
        right = child + 1
        child += (times[right] < times[child]) | (
            (times[right] == times[child]) & (keys[right] < keys[child])
        )
        times[at], keys[at], loads[at] = times[child], keys[child], loads[child]
        at = child
        child = 2 * at + 1
    if child < size:
        times[at], keys[at], loads[at] = times[child], keys[child], loads[child]
        at = child
    push(times, keys, loads, at, times[size], keys[size], loads[size])
    return size


@uncounted
def push_ready(heap: IntArray, start: int, size: int, unit: int, rank: FloatArray) -> int:
    """Add a unit to the ready heap at ``heap[start:]``, highest rank first; the new size."""
    at = size
    while at > 0:
        up = (at - 1) >> 1
        other = heap[start + up]
        if rank[other] > rank[unit] or (rank[other] == rank[unit] and other < unit):
            break
        heap[start + at] = other
        at = up
    heap[start + at] = unit
    return size + 1


@uncounted
def pop_ready(heap: IntArray, start: int, size: int, rank: FloatArray) -> int:
    """Remove the first unit of a ready heap of `size` entries; the unit."""
    first = heap[start]
    size -= 1
    unit = heap[start + size]
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        below = heap[start + child]
        if child + 1 < size:
            other = heap[start + child + 1]
            if rank[other] > rank[below] or (rank[other] == rank[below] and other < below):
                child, below = child + 1, other
        if rank[unit] > rank[below] or (rank[unit] == rank[below] and unit < below):
            break
        heap[start + at] = below
        at = child
    heap[start + at] = unit
    return int(first)

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
    """Remove the smallest entry, which is at index 0; the new size."""
    size -= 1
    time, key, load = times[size], keys[size], loads[size]
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        right = child + 1
        if right < size and (
            times[right] < times[child]
            or (times[right] == times[child] and keys[right] < keys[child])
        ):
            child = right
        if times[child] > time or (times[child] == time and keys[child] >= key):
            break
        times[at], keys[at], loads[at] = times[child], keys[child], loads[child]
        at = child
    times[at], keys[at], loads[at] = time, key, load
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

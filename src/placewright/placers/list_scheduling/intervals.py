"""Busy intervals of streams, kept so that the first idle gap that is long enough is found quickly.

The intervals of a stream never overlap. They lie in time order in blocks of a fixed size, and each
block knows its longest inner gap: a search skips the blocks in which nothing fits.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewright.core.arrays import FloatArray, IntArray
from placewright.simulation.compiled import compiled, inlined

BLOCK = 64  # intervals
_ROUNDING = 1e-15  # of a time: by how much the difference of two times may be too small


class Intervals(NamedTuple):
    """Busy intervals of all streams; blocks are numbers, and so are streams."""

    starts: FloatArray  # (n_blocks, BLOCK) seconds
    ends: FloatArray  # (n_blocks, BLOCK) seconds
    length: IntArray  # (n_blocks,): intervals in each block
    gap: FloatArray  # (n_blocks,): longest time between two intervals of the block
    order: IntArray  # (n_streams, most blocks): blocks of each stream in time order
    n_blocks: IntArray  # (n_streams,): blocks of each stream
    used: IntArray  # (2,): blocks in use, and the most that a stream has


def new_intervals(n_streams: int, n_units: int) -> Intervals:
    """Idle streams, with room to begin with."""
    return _of_size(n_streams, n_streams + 2 * n_units // BLOCK + 2, 4)


def grown(intervals: Intervals) -> Intervals:
    """The same intervals with twice the room of what is full: blocks, or those of a stream."""
    used, most_used = intervals.used.tolist()
    n_blocks, (n_streams, most) = len(intervals.length), intervals.order.shape
    if used + 1 >= n_blocks:
        n_blocks *= 2
    if most_used + 1 >= most:
        most *= 2
    grown = {}
    for name, old in intervals._asdict().items():
        shape = {"order": (n_streams, most), "n_blocks": (n_streams,), "used": (2,)}.get(
            name, (n_blocks, *old.shape[1:])
        )
        if old.shape != shape:
            new = grown[name] = np.zeros(shape, dtype=old.dtype)
            new[tuple(slice(extent) for extent in old.shape)] = old
    return intervals._replace(**grown)


def _of_size(n_streams: int, n_blocks: int, most: int) -> Intervals:
    return Intervals(
        starts=np.zeros((n_blocks, BLOCK)),
        ends=np.zeros((n_blocks, BLOCK)),
        length=np.zeros(n_blocks, dtype=np.int64),
        gap=np.zeros(n_blocks),
        order=np.zeros((n_streams, most), dtype=np.int64),
        n_blocks=np.zeros(n_streams, dtype=np.int64),
        used=np.zeros(2, dtype=np.int64),
    )


@inlined
def has_room(intervals: Intervals) -> bool:
    """True when one more interval certainly has a place."""
    is_free = intervals.used[0] + 1 < len(intervals.length)
    return bool(is_free and intervals.used[1] + 1 < intervals.order.shape[1])


@inlined
def last_end(intervals: Intervals, stream: int) -> float:
    """When the stream has nothing more to do."""
    n = intervals.n_blocks[stream]
    if n == 0:
        return 0.0
    block = intervals.order[stream, n - 1]
    return float(intervals.ends[block, intervals.length[block] - 1])


@compiled
def first_start(intervals: Intervals, stream: int, ready: float, seconds: float) -> float:
    """First time >= ready at which the stream is idle for so many seconds, or after the last."""
    last = last_end(intervals, stream)
    if last <= ready:
        return float(ready)
    at = _first_block(intervals, stream, ready)
    before = 0.0
    if at > 0:
        block = intervals.order[stream, at - 1]
        before = intervals.ends[block, intervals.length[block] - 1]
    for index in range(at, intervals.n_blocks[stream]):
        block = intervals.order[stream, index]
        n = intervals.length[block]
        begin = max(ready, before)
        if begin + seconds <= intervals.starts[block, 0]:
            return float(begin)
        late = intervals.ends[block, n - 1]
        # Also the part of the first block that ends before `ready` is passed over here.
        if not intervals.gap[block] + _ROUNDING * late < seconds:
            for inner in range(1, n):
                start = intervals.starts[block, inner]
                begin = max(ready, intervals.ends[block, inner - 1])
                if begin + seconds <= start:
                    return float(begin)
        before = late
    return float(max(ready, last))


@inlined
def _first_block(intervals: Intervals, stream: int, ready: float) -> int:
    """The first block with an end >= ready, (the last one where there is none)."""
    low, high = 0, intervals.n_blocks[stream] - 1
    while low < high:
        middle = (low + high) // 2
        block = intervals.order[stream, middle]
        if intervals.ends[block, intervals.length[block] - 1] < ready:
            low = middle + 1
        else:
            high = middle
    return int(low)


@compiled
def add_interval(intervals: Intervals, stream: int, start: float, end: float) -> None:
    """Keep an interval that overlaps no other; there is room (see `has_room`)."""
    n = intervals.n_blocks[stream]
    if n == 0:
        _new_block(intervals, stream, 0)
        n = 1
    at = n - 1
    if start < intervals.starts[intervals.order[stream, at], 0]:
        at = _block_of(intervals, stream, start)
    block = intervals.order[stream, at]
    if intervals.length[block] == BLOCK:
        block = _with_room(intervals, stream, at, start, end)
    n_inside = intervals.length[block]
    place = n_inside
    while place > 0 and _is_after(intervals, block, place - 1, start, end):
        intervals.starts[block, place] = intervals.starts[block, place - 1]
        intervals.ends[block, place] = intervals.ends[block, place - 1]
        place -= 1
    intervals.starts[block, place] = start
    intervals.ends[block, place] = end
    intervals.length[block] = n_inside + 1
    if place == n_inside:
        if place > 0:
            intervals.gap[block] = max(
                intervals.gap[block], start - intervals.ends[block, place - 1]
            )
    else:
        _measure_gap(intervals, block)


@inlined
def _is_after(intervals: Intervals, block: int, place: int, start: float, end: float) -> bool:
    other = intervals.starts[block, place]
    return bool(other > start or (other == start and intervals.ends[block, place] > end))


@inlined
def _block_of(intervals: Intervals, stream: int, start: float) -> int:
    """The last block whose first interval starts no later, or the first block."""
    low, high = 0, intervals.n_blocks[stream] - 1
    while low < high:
        middle = (low + high + 1) // 2
        if intervals.starts[intervals.order[stream, middle], 0] <= start:
            low = middle
        else:
            high = middle - 1
    return int(low)


@inlined
def _with_room(intervals: Intervals, stream: int, at: int, start: float, end: float) -> int:
    """The block that takes an interval which belongs into a full one."""
    block = intervals.order[stream, at]
    is_last = at == intervals.n_blocks[stream] - 1
    if is_last and not _is_after(intervals, block, BLOCK - 1, start, end):
        return _new_block(intervals, stream, at + 1)
    other = _new_block(intervals, stream, at + 1)
    half = BLOCK // 2
    for index in range(half, BLOCK):
        intervals.starts[other, index - half] = intervals.starts[block, index]
        intervals.ends[other, index - half] = intervals.ends[block, index]
    intervals.length[other] = BLOCK - half
    intervals.length[block] = half
    _measure_gap(intervals, block)
    _measure_gap(intervals, other)
    return int(block if _is_after(intervals, other, 0, start, end) else other)


@inlined
def _new_block(intervals: Intervals, stream: int, at: int) -> int:
    """An empty block at a place among those of the stream."""
    block = intervals.used[0]
    intervals.used[0] = block + 1
    n = intervals.n_blocks[stream]
    for index in range(n, at, -1):
        intervals.order[stream, index] = intervals.order[stream, index - 1]
    intervals.order[stream, at] = block
    intervals.n_blocks[stream] = n + 1
    intervals.used[1] = max(intervals.used[1], n + 1)
    return int(block)


@inlined
def _measure_gap(intervals: Intervals, block: int) -> None:
    longest = 0.0
    for index in range(1, intervals.length[block]):
        longest = max(longest, intervals.starts[block, index] - intervals.ends[block, index - 1])
    intervals.gap[block] = longest

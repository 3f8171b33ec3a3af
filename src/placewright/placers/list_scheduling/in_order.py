"""List scheduling in a given order: each unit to the device where it ends first (HEFT and its kin).

Units may fill idle gaps between earlier units ("insertion"). The busy intervals of a stream never
overlap. They lie in time order in blocks of a fixed size, and each block stores its longest inner
gap, so that the search for a gap skips the blocks in which nothing fits.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from placewright.core.arrays import (
    BoolArray,
    FloatArray,
    IntArray,
    frozen_floats,
    frozen_ints,
    positions_in,
    read_only_array,
)
from placewright.core.problem import Problem
from placewright.errors import BudgetSpent
from placewright.placers.legal import Proposal
from placewright.placers.list_scheduling.ranks import (
    ScheduleTables,
    note_arrivals,
    schedule_tables,
)
from placewright.placers.resident import (
    FreeMemory,
    mark_usable,
    new_free_memory,
    take,
)
from placewright.simulation.compiled import compiled, inlined
from placewright.simulation.evaluator import Evaluator

NO_TABLE = frozen_floats(np.zeros((0, 0)))
NO_DEVICES = frozen_ints([])
BLOCK = 64  # intervals
_ROUNDING = 1e-15  # largest rounding error of a difference of times, relative to them
_SLICE_SECONDS = 0.02  # between two checks of the budget


class Planned(NamedTuple):
    """A growing schedule: device, start and end of each unit; compiled functions write into it."""

    device_of: IntArray  # (n_units,): -1 before the unit is planned
    start: FloatArray  # (n_units,) seconds
    end: FloatArray  # (n_units,) seconds


@dataclass(frozen=True)
class Preferences:
    """Reasons to choose a device other than the end of the unit.

    Attributes:
        after: seconds that follow the unit's end on each device, (n_units, n_devices), or empty.
        wanted: device that takes the unit if it may run there, (n_units,), -1 for none, or empty.
    """

    after: FloatArray = field(default_factory=lambda: NO_TABLE)
    wanted: IntArray = field(default_factory=lambda: NO_DEVICES)


def new_plan(n_units: int) -> Planned:
    """A schedule in which no unit is planned yet."""
    return Planned(np.full(n_units, -1, dtype=np.int64), np.zeros(n_units), np.zeros(n_units))


def planned_in_order(
    problem: Problem,
    order: IntArray,
    limits: FloatArray | None = None,
    preferences: Preferences | None = None,
    is_over: Callable[[], bool] = lambda: False,
    tables: ScheduleTables | None = None,
) -> Planned:
    """Plan all units in a topological order.

    A unit that fits into no device's memory goes to the allowed device with most free memory.

    Args:
        order: producers before consumers, shape (n_units,).
        limits: most resident bytes of each device, then of each memory pool; default
            `Cluster.memory_limits`.
        is_over: called between slices; True ends the work.
        tables: the problem's arrays with modified times; default `schedule_tables`.

    Raises:
        BudgetSpent: it was over before all units were planned.
    """
    tables, preferences = tables or schedule_tables(problem), preferences or Preferences()
    plan, memory = new_plan(problem.n_units), new_free_memory(problem, limits)
    state = [new_intervals(tables.n_streams, problem.n_units)]
    order, after, wanted = (
        frozen_ints(order),
        read_only_array(preferences.after),
        frozen_ints(preferences.wanted),
    )

    def advance(first: int, stop: int) -> int:
        reached = plan_some(tables, memory, state[0], plan, order, after, wanted, first, stop)
        if reached < stop:
            state[0] = grown(state[0])
        return int(reached)

    in_slices(advance, problem.n_units, is_over)
    return plan


def propose_in_order(
    evaluator: Evaluator, order: IntArray, preferences: Preferences | None = None
) -> Callable[[FloatArray], Proposal]:
    """Return a function from memory limits to a proposal, for `evaluate_within_limits`."""
    problem = evaluator.problem

    def propose(limits: FloatArray) -> Proposal:
        plan = planned_in_order(problem, order, limits, preferences, lambda: evaluator.is_spent)
        return proposal_of(problem, plan)

    return propose


def proposal_of(problem: Problem, plan: Planned) -> Proposal:
    """Convert a plan to devices and an order: by start time, producers before consumers."""
    position = positions_in(problem.unit_graph.topological_order)
    return plan.device_of, np.lexsort((position, plan.start)).astype(np.int64)


@compiled
def plan_some(
    tables: ScheduleTables,
    memory: FreeMemory,
    intervals: Intervals,
    plan: Planned,
    order: IntArray,
    after: FloatArray,
    wanted: IntArray,
    first: int,
    stop: int,
) -> int:
    """Plan ``order[first:stop]``; stops earlier if intervals need more space.

    Args:
        tables, memory, intervals, plan: the problem and the state.
        order: (n_units,).
        after, wanted: as `Preferences` has them.
        first, stop: positions in `order`.

    Returns:
        The first position in `order` that is not planned.
    """
    n_devices = tables.seconds.shape[1]
    arrival, usable = np.empty(n_devices), np.empty(n_devices, np.bool_)
    for at in range(first, stop):
        if not has_room(intervals):
            return int(at)
        unit = order[at]
        note_arrivals(tables, plan.device_of, plan.end, unit, arrival)
        mark_usable(tables.allowed, memory, tables.group_of[unit], usable)
        if len(wanted) and wanted[unit] >= 0 and usable[wanted[unit]]:
            device = wanted[unit]
        else:
            device = _best_device(tables, intervals, arrival, usable, after, unit)
        take(memory, tables.group_of[unit], device)
        place, start = _best_stream(tables, intervals, unit, device, arrival[device])
        end = start + tables.seconds[unit, device]
        stop_at = tables.stream_ptr[device + 1] if tables.holds_all[device] else place + 1
        for held in range(place, stop_at):
            add_interval(intervals, tables.streams[held], start, end)
        plan.device_of[unit] = device
        plan.start[unit] = start
        plan.end[unit] = end
    return stop


@compiled
def _best_device(
    tables: ScheduleTables,
    intervals: Intervals,
    arrival: FloatArray,
    usable: BoolArray,
    after: FloatArray,
    unit: int,
) -> int:
    """The usable device with the least end of the unit plus `after`; of equal ones the first.

    Args:
        arrival: seconds at which all inputs of the unit are on each device, (n_devices,).
        usable: True for devices that may take the unit, (n_devices,).
        after: as `Preferences` has it.
    """
    chosen, best = -1, np.inf
    for device in range(len(arrival)):
        if not usable[device]:
            continue
        seconds = tables.seconds[unit, device]
        least = arrival[device] + seconds
        follows = after[unit, device] if len(after) else 0.0
        if chosen >= 0 and not least + follows < best:
            continue  # even without waiting it would not end first
        _, start = _best_stream(tables, intervals, unit, device, arrival[device])
        end = start + seconds + follows
        if chosen < 0 or end < best:
            chosen, best = device, end
    return chosen


@compiled
def _best_stream(
    tables: ScheduleTables, intervals: Intervals, unit: int, device: int, ready: float
) -> tuple[int, float]:
    """The stream of a device on which the unit starts first, and its start in seconds.

    The stream is a position in ``tables.streams``. If a unit occupies all streams of the device, it
    is the position of the first one, with the earliest time at which all of them are idle.

    Args:
        ready: seconds at which all inputs of the unit are on the device.
    """
    first, stop = tables.stream_ptr[device], tables.stream_ptr[device + 1]
    seconds, chosen, best = tables.seconds[unit, device], -1, np.inf
    if tables.holds_all[device]:
        start, agreed = ready, -1
        while agreed < stop - first:
            agreed = 0
            for at in range(first, stop):
                begin = first_start(intervals, tables.streams[at], start, seconds)
                agreed += begin == start
                start = begin
        return first, start
    for at in range(first, stop):
        start = first_start(intervals, tables.streams[at], ready, seconds)
        if chosen < 0 or start < best:
            chosen, best = at, start
            if best <= ready:
                break
    return chosen, best


class Intervals(NamedTuple):
    """Busy intervals of all streams; blocks and streams are numbered."""

    starts: FloatArray  # (n_blocks, BLOCK) seconds
    ends: FloatArray  # (n_blocks, BLOCK) seconds
    length: IntArray  # (n_blocks,): intervals in each block
    gap: FloatArray  # (n_blocks,): longest time between two intervals of the block
    order: IntArray  # (n_streams, most blocks): blocks of each stream in time order
    n_blocks: IntArray  # (n_streams,): blocks of each stream
    used: IntArray  # (2,): blocks in use, and the most that a stream has


def new_intervals(n_streams: int, n_units: int) -> Intervals:
    """Idle streams, with space for the first intervals."""
    n_blocks = 2 * n_streams + 2 * n_units // BLOCK + 2
    return Intervals(
        starts=np.zeros((n_blocks, BLOCK)),
        ends=np.zeros((n_blocks, BLOCK)),
        length=np.zeros(n_blocks, dtype=np.int64),
        gap=np.zeros(n_blocks),
        order=np.zeros((n_streams, 4), dtype=np.int64),
        n_blocks=np.zeros(n_streams, dtype=np.int64),
        used=np.zeros(2, dtype=np.int64),
    )


def grown(intervals: Intervals) -> Intervals:
    """Copy the intervals; double the space for blocks, or for blocks per stream, if it is full."""
    used, most_used = intervals.used.tolist()
    n_blocks, (n_streams, most) = len(intervals.length), intervals.order.shape
    if used + n_streams >= n_blocks:
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


@inlined
def has_room(intervals: Intervals) -> bool:
    """True if there is space for one more interval on each stream."""
    is_free = intervals.used[0] + len(intervals.n_blocks) < len(intervals.length)
    return bool(is_free and intervals.used[1] + 1 < intervals.order.shape[1])


@inlined
def last_end(intervals: Intervals, stream: int) -> float:
    """End of the last interval of a stream, 0 if there is none."""
    n = intervals.n_blocks[stream]
    if n == 0:
        return 0.0
    block = intervals.order[stream, n - 1]
    return float(intervals.ends[block, intervals.length[block] - 1])


@compiled
def first_start(intervals: Intervals, stream: int, ready: float, seconds: float) -> float:
    """First time >= ready at which the stream is idle for `seconds`."""
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
        # Skips also the part of the first block that ends before `ready`.
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
    """Position, in the stream's list, of the first block that ends >= `ready`, or of the last."""
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
    """Insert an interval that overlaps no other; there must be space (see `has_room`)."""
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
    """Position, in the stream's list, of the last block that begins <= `start`, or of the first."""
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
    """Make space for an interval whose block is full; return the number of the block for it.

    An interval behind all others gets a new block; otherwise half of the full block moves to a new
    block behind it.

    Args:
        at: position of the full block among the stream's blocks.
    """
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
    """Insert an empty block at position `at` among the stream's blocks; return its number."""
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


def in_slices(
    advance: Callable[[int, int], int], n_steps: int, is_over: Callable[[], bool]
) -> None:
    """Run a compiled loop in slices of about 20 ms, so that Ctrl-C and the budget can end it.

    Args:
        advance: (first, stop) -> does steps first to stop - 1, and returns the first step that is
            not done; the next call begins with it.
        is_over: called after each slice.

    Raises:
        BudgetSpent: it was over before the last step.
    """
    done, size = 0, 256
    while done < n_steps:
        began = time.perf_counter()
        done = advance(done, min(n_steps, done + size))
        spent = time.perf_counter() - began
        if spent < _SLICE_SECONDS / 2:
            size *= 2
        elif spent > 2 * _SLICE_SECONDS:
            size = max(1, size // 2)
        if done < n_steps and is_over():
            raise BudgetSpent

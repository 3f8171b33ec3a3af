"""Earliest task first, with or without favourite children: the engine of m-ETF and m-SCT.

Each ready unit has a device, where it would end first; the unit that would start first is planned
next. A planned unit makes one device busier, so that only units of that device can change theirs.
The engine recomputes the device of such a unit only when it could be the next unit: its earliest
start on any device never falls. With favourites a waiting device may be free sooner than expected,
so that the engine recomputes all ready units every time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from placewright.core.arrays import BoolArray, FloatArray, IntArray, frozen_floats, frozen_ints
from placewright.core.problem import Problem
from placewright.placers.legal import Proposal
from placewright.placers.list_scheduling.in_order import Planned, in_slices, new_plan, proposal_of
from placewright.placers.list_scheduling.ranks import (
    ScheduleTables,
    longest_way,
    mean_upward_ranks,
    missing_inputs,
    note_arrivals,
    schedule_tables,
)
from placewright.placers.resident import (
    FreeMemory,
    have_common_pool,
    mark_usable,
    new_free_memory,
    take,
)
from placewright.simulation.compiled import compiled, inlined
from placewright.simulation.evaluator import Evaluator


class _Ready(NamedTuple):
    """Units all of whose producers are planned: a row for each until it is planned itself."""

    missing: IntArray  # (n_units,): inputs whose producers are not planned
    n_rows: IntArray  # (1,): ready units
    unit: IntArray  # (n_rows,)
    arrival: FloatArray  # (n_rows, n_devices): when all inputs would be there
    device: IntArray  # (n_rows,): where it would end first, -1 if unknown
    start: FloatArray  # (n_rows,): on that device; a lower bound over all devices if unknown
    second: FloatArray  # (n_rows,): when it would end at the next best device


class _Devices(NamedTuple):
    """State of the devices."""

    stream_end: FloatArray  # (n_streams,): end of the last unit of each stream
    free: FloatArray  # (n_devices,): when the first stream is free, or all shared processors are
    last: IntArray  # (n_devices,): last unit of the device or its processors, -1 for none


def planned_earliest_first(
    problem: Problem,
    limits: FloatArray | None = None,
    favourite: IntArray | None = None,
    is_over: Callable[[], bool] = lambda: False,
    tables: ScheduleTables | None = None,
    rank: FloatArray | None = None,
) -> Planned:
    """Plan the ready unit that can start earliest until all units are planned.

    A unit's device is the one where it finishes first, which on equal devices is where it starts
    first. With favourites a device that has just run a unit is *awake* until that unit's output for
    its favourite child could be on every other device. Until then another unit counts as starting
    only at that time, unless it is urgent: all its inputs could be on every device when it could
    start here. A unit that is chosen nevertheless does not wait.

    Args:
        limits: resident bytes of devices and pools; default `Cluster.memory_limits`.
        favourite: favourite child of each unit, -1 for none, shape (n_units,); default none.
        is_over: called between slices; True ends the work.
        tables: the problem with modified times; default its own.
        rank: decides between units that start together, (n_units,), default the upward rank.

    Raises:
        BudgetSpent: it was over before all units were planned.
    """
    tables = tables or schedule_tables(problem)
    plan, memory = new_plan(problem.n_units), new_free_memory(problem, limits)
    rank = frozen_floats(mean_upward_ranks(problem) if rank is None else rank)
    children = frozen_ints([] if favourite is None else favourite)
    devices = _Devices(
        np.zeros(tables.n_streams),
        np.zeros(problem.n_devices),
        np.full(problem.n_devices, -1, dtype=np.int64),
    )
    missing = missing_inputs(tables)
    n_sources = int(np.count_nonzero(missing == 0))
    state = [_rows(missing, problem, n_sources + 64)]
    _begin(tables, problem.allowed, plan, state[0])

    def advance(first: int, stop: int) -> int:
        reached = plan_some_earliest(
            tables, problem.allowed, memory, devices, plan, state[0], rank, children, first, stop
        )
        if reached < stop:
            state[0] = _with_more_rows(state[0], problem)
        return int(reached)

    in_slices(advance, problem.n_units, is_over)
    return plan


def propose_earliest_first(
    evaluator: Evaluator, favourite: IntArray | None = None
) -> Callable[[FloatArray], Proposal]:
    """A function for `evaluate_within_limits` that plans with limits."""
    problem = evaluator.problem

    def propose(limits: FloatArray) -> Proposal:
        plan = planned_earliest_first(problem, limits, favourite, lambda: evaluator.is_spent)
        return proposal_of(problem, plan)

    return propose


def _rows(missing: IntArray, problem: Problem, n_rows: int) -> _Ready:
    return _Ready(
        missing=missing,
        n_rows=np.zeros(1, dtype=np.int64),
        unit=np.zeros(n_rows, dtype=np.int64),
        arrival=np.zeros((n_rows, problem.n_devices)),
        device=np.zeros(n_rows, dtype=np.int64),
        start=np.zeros(n_rows),
        second=np.zeros(n_rows),
    )


def _with_more_rows(ready: _Ready, problem: Problem) -> _Ready:
    widest = int(np.diff(problem.unit_graph.successors.indptr).max())
    larger = _rows(ready.missing, problem, 2 * len(ready.unit) + widest)
    for old, new in zip(ready[1:], larger[1:], strict=True):
        new[: len(old)] = old
    return larger


@compiled
def _begin(tables: ScheduleTables, allowed: BoolArray, plan: Planned, ready: _Ready) -> None:
    for unit in range(len(ready.missing)):
        if ready.missing[unit] == 0:
            _make_ready(tables, allowed, plan, ready, unit)


@compiled
def plan_some_earliest(
    tables: ScheduleTables,
    allowed: BoolArray,
    memory: FreeMemory,
    devices: _Devices,
    plan: Planned,
    ready: _Ready,
    rank: FloatArray,
    favourite: IntArray,
    first: int,
    stop: int,
) -> int:
    """Plan units number `first` to before `stop`; stops earlier if more rows may be needed.

    Args:
        tables, allowed: the problem; allowed by unit, (n_units, n_devices).
        memory, devices, plan, ready: the state.
        rank: decides between units that start at the same time, (n_units,).
        favourite: child of each unit, or empty.
        first, stop: places in the sequence of planned units.

    Returns:
        The number of units that are planned.
    """
    usable = np.empty(len(devices.free), np.bool_)
    has_favourites = len(favourite) > 0
    for step in range(first, stop):
        if has_favourites:
            for row in range(ready.n_rows[0]):
                ready.device[row] = -1
                ready.start[row] = -np.inf
        row = _next_row(tables, allowed, memory, devices, plan, ready, rank, favourite, usable)
        unit, device = ready.unit[row], ready.device[row]
        if not _has_rows_for(tables, ready, unit):
            return step
        is_first_of_class = memory.device_of_class[tables.group_of[unit]] < 0
        take(memory, tables.group_of[unit], device)
        _plan(tables, devices, plan, unit, device, ready.arrival[row, device])
        _drop(ready, row)
        has_class = is_first_of_class and len(memory.device_of_class) < len(rank)
        _update_starts(tables, memory, devices, ready, unit, device, has_class)
        for index in range(tables.output_ptr[unit], tables.output_ptr[unit + 1]):
            tensor = tables.outputs[index]
            for edge in range(tables.consumer_ptr[tensor], tables.consumer_ptr[tensor + 1]):
                consumer = tables.consumers[edge]
                ready.missing[consumer] -= 1
                if ready.missing[consumer] == 0:
                    _make_ready(tables, allowed, plan, ready, consumer)
    return stop


@inlined
def _has_rows_for(tables: ScheduleTables, ready: _Ready, unit: int) -> bool:
    n_fresh = 0
    for index in range(tables.output_ptr[unit], tables.output_ptr[unit + 1]):
        tensor = tables.outputs[index]
        n_fresh += tables.consumer_ptr[tensor + 1] - tables.consumer_ptr[tensor]
    return bool(ready.n_rows[0] + n_fresh <= len(ready.unit))


@inlined
def _make_ready(
    tables: ScheduleTables, allowed: BoolArray, plan: Planned, ready: _Ready, unit: int
) -> None:
    row = ready.n_rows[0]
    ready.n_rows[0] = row + 1
    ready.unit[row] = unit
    ready.device[row] = -1
    ready.start[row] = -np.inf
    note_arrivals(tables, plan.device_of, plan.end, unit, ready.arrival[row])
    for device in range(allowed.shape[1]):
        if not allowed[unit, device]:
            ready.arrival[row, device] = np.inf


@inlined
def _drop(ready: _Ready, row: int) -> None:
    """Move the last row to the place of this one."""
    last = ready.n_rows[0] - 1
    ready.n_rows[0] = last
    if row == last:
        return
    ready.unit[row] = ready.unit[last]
    ready.device[row] = ready.device[last]
    ready.start[row] = ready.start[last]
    ready.second[row] = ready.second[last]
    for device in range(ready.arrival.shape[1]):
        ready.arrival[row, device] = ready.arrival[last, device]


@compiled
def _next_row(
    tables: ScheduleTables,
    allowed: BoolArray,
    memory: FreeMemory,
    devices: _Devices,
    plan: Planned,
    ready: _Ready,
    rank: FloatArray,
    favourite: IntArray,
    usable: BoolArray,
) -> int:
    """Row of the ready unit that starts first; of equals of highest rank, then lowest number."""
    best, first_free = -1, devices.free.min()
    for row in range(ready.n_rows[0]):
        if ready.device[row] >= 0 and _precedes(ready, rank, row, best):
            best = row
    for row in range(ready.n_rows[0]):
        if ready.device[row] >= 0:
            continue
        ready.start[row] = max(ready.start[row], first_free)
        if _precedes(ready, rank, row, best):
            _choose(tables, allowed, memory, devices, plan, ready, favourite, row, usable)
            if _precedes(ready, rank, row, best):
                best = row
    return best


@inlined
def _precedes(ready: _Ready, rank: FloatArray, row: int, best: int) -> bool:
    if best < 0:
        return True
    if ready.start[row] != ready.start[best]:
        return bool(ready.start[row] < ready.start[best])
    unit, other = ready.unit[row], ready.unit[best]
    if rank[unit] != rank[other]:
        return bool(rank[unit] > rank[other])
    return bool(unit < other)


@compiled
def _choose(
    tables: ScheduleTables,
    allowed: BoolArray,
    memory: FreeMemory,
    devices: _Devices,
    plan: Planned,
    ready: _Ready,
    favourite: IntArray,
    row: int,
    usable: BoolArray,
) -> None:
    """Find the device on which a ready unit would end first, and its end on the second best."""
    unit = ready.unit[row]
    mark_usable(tables.allowed, memory, tables.group_of[unit], usable)
    chosen, start, least, second = -1, np.inf, np.inf, np.inf
    for device in range(len(usable)):
        if not usable[device]:
            continue
        begin = max(devices.free[device], ready.arrival[row, device])
        if len(favourite):
            begin = _after_favourite(
                tables, allowed, devices, plan, ready, favourite, row, device, begin
            )
        end = begin + tables.seconds[unit, device]
        if chosen < 0 or end < least:
            second = least
            chosen, start, least = device, begin, end
        elif end < second:
            second = end
    ready.device[row] = chosen
    ready.start[row] = start
    ready.second[row] = second


@inlined
def _after_favourite(
    tables: ScheduleTables,
    allowed: BoolArray,
    devices: _Devices,
    plan: Planned,
    ready: _Ready,
    favourite: IntArray,
    row: int,
    device: int,
    start: float,
) -> float:
    """Start of a ready unit; later if the device waits for its last unit's favourite child."""
    unit, last = ready.unit[row], devices.last[device]
    child = favourite[last] if last >= 0 else -1
    if child < 0 or child == unit or plan.device_of[child] >= 0:
        return start
    is_urgent = True
    for other in range(len(devices.free)):
        if allowed[unit, other] and ready.arrival[row, other] > start:
            is_urgent = False
    if is_urgent:
        return start
    way = longest_way(tables, last, child, plan.device_of[last])
    return float(max(start, plan.end[last] + way))


@inlined
def _plan(
    tables: ScheduleTables,
    devices: _Devices,
    plan: Planned,
    unit: int,
    device: int,
    ready_at: float,
) -> None:
    """Put a unit on the first stream of its device that can start it earliest."""
    first, stop = tables.stream_ptr[device], tables.stream_ptr[device + 1]
    start = max(ready_at, devices.free[device])
    end = start + tables.seconds[unit, device]
    if tables.holds_all[device]:
        for at in range(first, stop):
            devices.stream_end[tables.streams[at]] = end
        for other in range(len(devices.free)):
            if other == device or tables.excludes[device, other]:
                devices.free[other] = max(devices.free[other], end)
                devices.last[other] = unit
    else:
        chosen = tables.streams[first]
        for at in range(first + 1, stop):
            if max(ready_at, devices.stream_end[chosen]) <= start:
                break
            chosen = tables.streams[at]
        devices.stream_end[chosen] = end
        free = np.inf
        for at in range(first, stop):
            free = min(free, devices.stream_end[tables.streams[at]])
        devices.free[device], devices.last[device] = free, unit
    plan.device_of[unit], plan.start[unit], plan.end[unit] = device, start, end


@inlined
def _update_starts(
    tables: ScheduleTables,
    memory: FreeMemory,
    devices: _Devices,
    ready: _Ready,
    planned: int,
    device: int,
    has_class: bool,
) -> None:
    """Recompute or invalidate the start times on the device just used, and on what shares with it.

    Devices share processors, or a pool of memory. Units of the planned unit's class, which is now
    bound to its device, are invalidated on all devices.
    """
    for row in range(ready.n_rows[0]):
        unit, at = ready.unit[row], ready.device[row]
        if at < 0:
            continue
        free = devices.free[at]
        has_less = at == device or have_common_pool(memory.weights, at, device)
        is_of_class = has_class and tables.group_of[unit] == tables.group_of[planned]
        if is_of_class or (memory.is_limited and has_less):
            ready.device[row], ready.start[row] = -1, -np.inf
        elif ready.start[row] < free and (at == device or tables.excludes[device, at]):
            if free + tables.seconds[unit, at] < ready.second[row]:
                ready.start[row] = free
            else:
                ready.start[row] = _earliest(devices, ready, row)
                ready.device[row] = -1


@inlined
def _earliest(devices: _Devices, ready: _Ready, row: int) -> float:
    """The least start of a ready unit on any device, now and later."""
    least = np.inf
    for device in range(len(devices.free)):
        start = max(devices.free[device], ready.arrival[row, device])
        least = start if start < least else least
    return float(least)

"""Units in a given order, each to the device where it ends first: the engine of HEFT and its kin.

Idle gaps between earlier units are used ("insertion").
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from placewright.core.arrays import BoolArray, FloatArray, IntArray, frozen_floats, frozen_ints
from placewright.core.problem import Problem
from placewright.placers.legal import Proposal
from placewright.placers.list_scheduling.intervals import (
    Intervals,
    add_interval,
    first_start,
    grown,
    has_room,
    new_intervals,
)
from placewright.placers.list_scheduling.room import Room, mark_devices_with_room, new_room, take
from placewright.placers.list_scheduling.slices import in_slices
from placewright.placers.list_scheduling.tables import (
    ScheduleTables,
    note_arrivals,
    schedule_tables,
)
from placewright.simulation.compiled import compiled
from placewright.simulation.evaluator import Evaluator

NO_TABLE = frozen_floats(np.zeros((0, 0)))
NO_DEVICES = frozen_ints([])


class Planned(NamedTuple):
    """Units with their planned times."""

    device_of: IntArray  # (n_units,): -1 for what is not planned yet
    start: FloatArray  # (n_units,) seconds
    end: FloatArray  # (n_units,) seconds


@dataclass(frozen=True)
class Preferences:
    """What enters the choice of a device beside the end of the unit.

    Attributes:
        after: seconds that follow the unit's end on each device, (n_units, n_devices), or empty.
        wanted: device that takes the unit wherever it may run there, (n_units,), -1 for none, or
            empty.
    """

    after: FloatArray = field(default_factory=lambda: NO_TABLE)
    wanted: IntArray = field(default_factory=lambda: NO_DEVICES)


def new_plan(n_units: int) -> Planned:
    """Nothing planned."""
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

    Args:
        problem: what is placed.
        order: producers before consumers, shape (n_units,).
        limits: resident bytes of each device, shape (n_devices,); default its memory.
        preferences: of devices.
        is_over: asked now and then; True ends the work.
        tables: the problem with other times than it has, default with its own.

    Raises:
        BudgetSpent: it was over before all units were planned.
    """
    tables, preferences = tables or schedule_tables(problem), preferences or Preferences()
    plan, room = new_plan(problem.n_units), new_room(problem, limits)
    state = [new_intervals(int(tables.stream_ptr[-1]), problem.n_units)]
    order, after, wanted = (
        frozen_ints(order),
        _read_only(preferences.after),
        frozen_ints(preferences.wanted),
    )

    def advance(first: int, stop: int) -> int:
        reached = plan_some(tables, room, state[0], plan, order, after, wanted, first, stop)
        if reached < stop:
            state[0] = grown(state[0])
        return int(reached)

    in_slices(advance, problem.n_units, is_over)
    return plan


def propose_in_order(
    evaluator: Evaluator, order: IntArray, preferences: Preferences | None = None
) -> Callable[[FloatArray], Proposal]:
    """For `evaluate_within_memory`: plans with limits; arguments as in `planned_in_order`."""
    problem = evaluator.problem

    def propose(limits: FloatArray) -> Proposal:
        plan = planned_in_order(problem, order, limits, preferences, lambda: evaluator.is_spent)
        return proposal_of(problem, plan)

    return propose


def _read_only(table: FloatArray) -> FloatArray:
    view = np.ascontiguousarray(table).view()
    view.setflags(write=False)
    return view


def proposal_of(problem: Problem, plan: Planned) -> Proposal:
    """Devices, and all units by start time, producers before consumers."""
    position = np.empty(problem.n_units, dtype=np.int64)
    position[problem.unit_graph.topological_order] = np.arange(problem.n_units)
    return plan.device_of, np.lexsort((position, plan.start)).astype(np.int64)


@compiled
def plan_some(
    tables: ScheduleTables,
    room: Room,
    intervals: Intervals,
    plan: Planned,
    order: IntArray,
    after: FloatArray,
    wanted: IntArray,
    first: int,
    stop: int,
) -> int:
    """Plan ``order[first:stop]``; stops earlier where intervals need more room.

    Args:
        tables, room, intervals, plan: the problem and the state.
        order: (n_units,).
        after, wanted: as `Preferences` has them.
        first, stop: places in `order`.

    Returns:
        The first place of `order` that is not planned.
    """
    n_devices = tables.seconds.shape[1]
    arrival, usable = np.empty(n_devices), np.empty(n_devices, np.bool_)
    for at in range(first, stop):
        if not has_room(intervals):
            return int(at)
        unit = order[at]
        note_arrivals(tables, plan.device_of, plan.end, unit, arrival)
        mark_devices_with_room(tables.allowed, room, tables.group_of[unit], usable)
        if len(wanted) and wanted[unit] >= 0 and usable[wanted[unit]]:
            device = wanted[unit]
        else:
            device = _best_device(tables, intervals, arrival, usable, after, unit)
        take(room, tables.group_of[unit], device)
        stream, start = _best_stream(tables, intervals, unit, device, arrival[device])
        end = start + tables.seconds[unit, device]
        add_interval(intervals, stream, start, end)
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
    """Where the unit ends first, what follows included; of equal devices the first."""
    chosen, best = -1, np.inf
    for device in range(len(arrival)):
        if not usable[device]:
            continue
        seconds = tables.seconds[unit, device]
        least = arrival[device] + seconds
        follows = after[unit, device] if len(after) else 0.0
        if chosen >= 0 and not least + follows < best:
            continue  # it cannot end before its inputs are there
        _, start = _best_stream(tables, intervals, unit, device, arrival[device])
        end = start + seconds + follows
        if chosen < 0 or end < best:
            chosen, best = device, end
    return chosen


@compiled
def _best_stream(
    tables: ScheduleTables, intervals: Intervals, unit: int, device: int, ready: float
) -> tuple[int, float]:
    """The stream of the device on which the unit starts first, and when."""
    chosen, best = -1, np.inf
    for stream in range(tables.stream_ptr[device], tables.stream_ptr[device + 1]):
        start = first_start(intervals, stream, ready, tables.seconds[unit, device])
        if chosen < 0 or start < best:
            chosen, best = stream, start
            if best <= ready:
                break
    return chosen, best

"""Playing one placement: what the simulator calls."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
from numba import types

from placewright.core.arrays import BoolArray, FloatArray, IntArray
from placewright.simulation.blocks import Bytes
from placewright.simulation.compiled import compiled, machine_code, uncounted
from placewright.simulation.event.kernel import advance
from placewright.simulation.event.memory import holds_everything, memory_peaks
from placewright.simulation.event.prepare import prepare
from placewright.simulation.event.state import FAULT, FAULT_AT, State, state_in
from placewright.simulation.event.tables import (
    AS_LISTED,
    BY_RANK,
    DISPATCH,
    HAS_OVERHEADS,
    IS_PLAIN,
    EventTables,
    tables_in,
)
from placewright.simulation.legality import CUT_OFF, FINE, NOT_ALLOWED, TOO_LARGE


@uncounted
def play(
    seconds: FloatArray,
    allowed: BoolArray,
    factors: FloatArray,
    tables_block: Bytes,
    tables_places: IntArray,
    device_of: IntArray,
    order: IntArray,
    block: Bytes,
    places: IntArray,
    peaks: FloatArray,
) -> tuple[float, int, int]:
    """Let one placement that breaks neither colocation nor the order run to its end.

    Nothing but numbers comes back: to make a named tuple Numba calls Python, and it does not look
    whether that raised, as a signal's handler may.

    Args:
        seconds, allowed, factors, tables_block, tables_places: the problem, as `PackedTables`.
        device_of: (n_units,).
        order: topological order of all units, or empty for the problem's rule of dispatch.
        block, places: working memory, as `state_in` takes it; holds all that happened afterwards.
        peaks: (n_devices,) bytes, to write into.

    Returns:
        Makespan in seconds (inf with a fault), the fault, and where it is.
    """
    tables = tables_in(seconds, allowed, factors, tables_block, tables_places)
    state = state_in(block, places)
    makespan, fault, at = _play(tables, state, device_of, order, True)
    memory_peaks(tables, state, makespan, peaks)
    return makespan, fault, at


@uncounted
def _play(
    tables: EventTables, state: State, device_of: IntArray, order: IntArray, keeps_segments: bool
) -> tuple[float, int, int]:
    rule = AS_LISTED if len(order) > 0 else tables.scalars[DISPATCH]
    keeps_segments = keeps_segments or tables.scalars[HAS_OVERHEADS] > 0
    if not prepare(tables, state, device_of, order, keeps_segments):
        return np.inf, NOT_ALLOWED, 0
    # Constants, so that the loop is compiled a second time without what most problems lack.
    if tables.scalars[IS_PLAIN] and rule == BY_RANK and not keeps_segments:
        makespan = advance(tables, state, BY_RANK, False, True)
    else:
        makespan = advance(tables, state, rule, keeps_segments, False)
    if state.counts[FAULT] != FINE:
        return np.inf, CUT_OFF, state.counts[FAULT_AT]
    return makespan, FINE, -1


@uncounted
def evaluate(
    seconds: FloatArray,
    allowed: BoolArray,
    factors: FloatArray,
    tables_block: Bytes,
    tables_places: IntArray,
    device_of: IntArray,
    order: IntArray,
    block: Bytes,
    places: IntArray,
    peaks: FloatArray,
    wants_peaks: bool,
) -> tuple[float, int, int]:
    """Like `play`, and no more than the value, the fault and the peak bytes need.

    Peaks are held against the devices' memory where `peaks` has a place for each device, and not
    where it is empty. Without `wants_peaks` they are found only where they may be too large, and
    `peaks` is working memory.
    """
    tables = tables_in(seconds, allowed, factors, tables_block, tables_places)
    state = state_in(block, places)
    makespan, fault, at = _play(tables, state, device_of, order, False)
    if fault != FINE or len(peaks) == 0:
        return makespan, fault, at
    if not wants_peaks and holds_everything(tables, state, peaks):
        return makespan, FINE, -1
    memory_peaks(tables, state, makespan, peaks)
    for device in range(len(peaks)):
        if peaks[device] > tables.devices[device].memory:
            return np.inf, TOO_LARGE, device
    return makespan, FINE, -1


@compiled
def evaluate_all(
    seconds: FloatArray,
    allowed: BoolArray,
    factors: FloatArray,
    tables_block: Bytes,
    tables_places: IntArray,
    devices_of: IntArray,
    order: IntArray,
    block: Bytes,
    places: IntArray,
    peaks: FloatArray,
) -> FloatArray:
    """Makespans of placements without order; inf where one is infeasible.

    Args:
        seconds, allowed, factors, tables_block, tables_places: the problem, as `PackedTables`.
        devices_of: (n_placements, n_units).
        order: empty.
        block, places: working memory.
        peaks: (n_devices,) to write into, or empty where no placement can exceed the memory.
    """
    values = np.empty(len(devices_of))
    for index in range(len(devices_of)):
        values[index], _, _ = evaluate(
            seconds,
            allowed,
            factors,
            tables_block,
            tables_places,
            devices_of[index],
            order,
            block,
            places,
            peaks,
            False,
        )
    return values


class Entries(NamedTuple):
    """The functions above for the types that `EventModel` has; rows of devices may be read-only."""

    play: Callable[..., tuple[float, int, int]]
    evaluate: Callable[..., tuple[float, int, int]]
    evaluate_all: Callable[..., FloatArray]


@cache
def entries() -> Entries:
    """Compile what is not compiled yet."""
    tables = (
        types.Array(types.float64, 2, "C", readonly=True),
        types.Array(types.boolean, 2, "C", readonly=True),
        types.Array(types.float64, 2, "C"),
        types.Array(types.uint8, 1, "C"),
        types.Array(types.int64, 2, "C"),
    )
    row, rows = (types.Array(types.int64, n, "C", readonly=True) for n in (1, 2))
    block, places, peaks = tables[3], tables[4], types.Array(types.float64, 1, "C")
    return Entries(
        machine_code(play, (*tables, row, row, block, places, peaks)),
        machine_code(evaluate, (*tables, row, row, block, places, peaks, types.boolean)),
        machine_code(evaluate_all, (*tables, rows, row, block, places, peaks)),
    )

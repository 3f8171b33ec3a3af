"""The event kernel: one placement through time, as the design's execution model `event` says.

When a tensor is sent, first come first served fixes the time at which each channel delivers it,
so that only ends of units, arrivals at idle devices and first hops of two are events. All that
happens at one instant is handled, in the order of (unit, tensor, endpoint), before any device
begins a unit.
"""

from __future__ import annotations

import numpy as np

from placewright.simulation.compiled import inlined, uncounted
from placewright.simulation.event_queue import WINDOW, drop, put
from placewright.simulation.event_ready import add_ready, take_ready
from placewright.simulation.event_segments import overhead_seconds
from placewright.simulation.event_sending import second_hop, send
from placewright.simulation.event_state import ARRIVING, N_RELAYS, RUNNING, State
from placewright.simulation.event_tables import HOST, EventTables
from placewright.simulation.records import NO_INDEX, ONE, ZERO, U


# Without reference counts: nothing in the loop allocates, and counting would take most of the time.
@uncounted
def advance(tables: EventTables, state: State, has_order: bool, keeps_segments: bool) -> float:
    """Let time pass until nothing more happens.

    Args:
        tables: the problem.
        state: prepared.
        has_order: each device follows its list instead of ranks.
        keeps_segments: number segments, and charge what they cost.

    Returns:
        The time at which the last unit has ended and the last graph output has arrived, seconds.
    """
    n_units, n_devices = U(len(state.units)), U(len(state.devices))
    delivered = _begin_time(tables, state, has_order)
    for index in range(ZERO, n_devices):
        _begin_units(tables, state, index, 0.0, has_order, keeps_segments)
    last = 0.0
    while True:
        index, now, is_tied = _next_event(tables, state, has_order)
        if now == np.inf:
            return max(last, delivered)
        last = now
        n_touched = ZERO
        while True:
            state.touched[n_touched] = index
            n_touched += ONE
            unit = U(state.devices[index].unit)
            is_tied |= _leave(state, index, now)
            if unit < n_units:
                for tensor in range(
                    U(tables.units[unit].tensor), U(tables.units[unit + ONE].tensor)
                ):
                    arrival, ties = send(tables, state, tensor, index, now, has_order)
                    is_tied |= ties
                    delivered = max(delivered, arrival)
            if not is_tied:
                break
            index, time, is_tied = _next_event(tables, state, has_order)
            if time != now:
                break
        for at in range(ZERO, n_touched):
            _begin_units(tables, state, U(state.touched[at]), now, has_order, keeps_segments)


@inlined
def _begin_time(tables: EventTables, state: State, has_order: bool) -> float:
    """Make ready what reads nothing, and send the graph inputs; when the last output arrives."""
    n_units = U(len(state.units))
    if not has_order:
        for index in range(ZERO, n_units):
            unit = state.units[index]
            is_ready = U(unit.missing == ZERO)
            add_ready(tables, state, U(unit.device), U(unit.place), is_ready)
    for index in range(ZERO, U(len(state.devices))):
        state.devices[index].decides = 0.0
    delivered = 0.0
    for tensor in range(ZERO, U(tables.units[ZERO].tensor)):
        arrival, _ = send(tables, state, tensor, U(tables.scalars[HOST]), 0.0, has_order)
        delivered = max(delivered, arrival)
    while state.counts[N_RELAYS] > 0 and state.relays[ZERO].time == 0.0:
        second_hop(tables, state, has_order)
    return delivered


@inlined
def _next_event(tables: EventTables, state: State, has_order: bool) -> tuple[int, float, bool]:
    """Device and time of the next event, and whether another device has one at that time."""
    index, time, is_tied = _first_device(state)
    while state.counts[N_RELAYS] > 0:
        relay = state.relays[ZERO]
        producer = tables.origins[relay.tensor].producer
        # Graph inputs come before all units; among others a unit comes before its own tensors.
        is_first = producer == U(len(state.units)) or producer < state.devices[index].unit
        if relay.time > time or (relay.time == time and not is_first):
            break
        second_hop(tables, state, has_order)
        index, time, is_tied = _first_device(state)
    if state.counts[N_RELAYS] > 0:
        is_tied |= state.relays[ZERO].time == time
    return index, time, is_tied


@inlined
def _first_device(state: State) -> tuple[int, float, bool]:
    """The device with the earliest event; of several, the one whose ending unit comes first.

    Written without a choice that depends on the data, which a processor would mispredict.
    """
    devices = state.devices
    n_devices = U(len(devices))
    time = devices[ZERO].time
    for index in range(ONE, n_devices):
        time = min(time, devices[index].time)
    first, count = ZERO, ZERO
    for index in range(ZERO, n_devices):
        is_it = U(devices[index].time == time)
        first += index * is_it
        count += is_it
    if count > ONE:
        unit = NO_INDEX
        for index in range(ZERO, n_devices):
            if devices[index].time == time and devices[index].unit < unit:
                first, unit = index, U(devices[index].unit)
    return first, time, count > ONE


@inlined
def _leave(state: State, index: int, now: float) -> bool:
    """Take the event off a device, whose next one may be at the same time (True then)."""
    device, n_units = state.devices[index], U(len(state.units))
    is_end = device.unit < n_units
    device.decides = now
    device.time = np.inf
    device.unit = n_units
    if device.streams == ONE:
        device.busy = ZERO
        return False
    if is_end:
        device.busy -= ONE
        at = U(RUNNING) * U(len(state.devices)) + index
        drop(state.queues, state.window, state.heap, at)
    _show_running(state, index)
    return bool(device.time == now)


@inlined
def _show_running(state: State, index: int) -> None:
    """Make the first end of a device with several streams its next event."""
    device, at = state.devices[index], U(RUNNING) * U(len(state.devices)) + index
    if device.busy > ZERO:
        entry = state.window[at * WINDOW + state.queues[at].head]
        device.time = entry.key
        device.unit = entry.unit


@inlined
def _begin_units(
    tables: EventTables,
    state: State,
    index: int,
    now: float,
    has_order: bool,
    keeps_segments: bool,
) -> None:
    """Let a device begin what it may on its free streams; say when its next event is."""
    device = state.devices[index]
    if has_order:
        wakes = _begin_listed(tables, state, index, now, keeps_segments)
    else:
        wakes = _begin_ready(tables, state, index, now, keeps_segments)
    if device.busy == device.streams:
        device.decides = device.time
    else:
        device.decides = -1.0
        if wakes < device.time:
            device.time = wakes
            device.unit = U(len(state.units))


@inlined
def _begin_ready(
    tables: EventTables, state: State, index: int, now: float, keeps_segments: bool
) -> float:
    """Highest rank first; when the first input arrives that is still under way."""
    device, queues, window = state.devices[index], state.queues, state.window
    arriving = U(ARRIVING) * U(len(state.devices)) + index
    base = arriving * WINDOW
    while queues[arriving].head < queues[arriving].tail:
        entry = window[base + queues[arriving].head]
        if entry.key > now:
            break
        unit = U(entry.unit)
        drop(queues, window, state.heap, arriving)
        add_ready(tables, state, index, U(state.units[unit].place), ONE)
    while device.busy < device.streams and device.ready > ZERO:
        unit = take_ready(tables, state, index)
        _begin_unit(tables, state, index, unit, now, keeps_segments)
    if queues[arriving].head < queues[arriving].tail:
        return float(window[base + queues[arriving].head].key)
    return np.inf


@inlined
def _begin_listed(
    tables: EventTables, state: State, index: int, now: float, keeps_segments: bool
) -> float:
    """In the given order; when the inputs of the next unit will all be there."""
    device = state.devices[index]
    while device.next < device.stop and device.busy < device.streams:
        unit = U(state.listed[device.next])
        if state.units[unit].missing > ZERO:
            return np.inf
        if state.units[unit].available > now:
            return float(state.units[unit].available)
        device.next += ONE
        _begin_unit(tables, state, index, unit, now, keeps_segments)
    return np.inf


@inlined
def _begin_unit(
    tables: EventTables, state: State, index: int, number: int, now: float, keeps_segments: bool
) -> None:
    device, seconds = state.devices[index], float(state.spans[number].end)
    if keeps_segments:
        seconds += overhead_seconds(tables, state, index, number)
    end = now + seconds
    state.spans[number].start = now
    state.spans[number].end = end
    device.busy += ONE
    if device.streams == ONE:
        device.time = end
        device.unit = number
        return
    at = U(RUNNING) * U(len(state.devices)) + index
    put(state.queues, state.window, state.heap, at, end, number)
    _show_running(state, index)

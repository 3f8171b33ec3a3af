"""The event loop: simulates one placement under execution model `event`.

When a tensor is sent, first come first served fixes the time at which each channel delivers it,
so that only ends of units, arrivals at idle devices and first hops of two are events. All that
happens at one instant is handled, in the order of (unit, tensor, endpoint), before any device
begins a unit.
"""

from __future__ import annotations

import numpy as np

from placewright.simulation.compiled import inlined, uncounted
from placewright.simulation.event.instructions import choose, prefetch, unlikely
from placewright.simulation.event.records import (
    FOUR,
    NO_INDEX,
    NO_SLOT,
    ONE,
    THREE,
    TWO,
    WINDOW,
    ZERO,
    Record,
    U,
)
from placewright.simulation.event.sending import (
    add_ready,
    drop,
    join_queue,
    put,
    second_hop,
    send,
    take_ready,
)
from placewright.simulation.event.tables import (
    ARRIVING,
    AS_LISTED,
    BY_RANK,
    HOST,
    IN_TURN,
    N_RELAYS,
    N_SEGMENTS,
    RUNNING,
    EventTables,
    State,
)

_CACHED = U(2**13)  # units whose records stay in the cache anyway


# Without reference counts: the loop allocates nothing, and counting would take most of the time.
@uncounted
def advance(
    tables: EventTables, state: State, rule: int, keeps_segments: bool, is_plain: bool
) -> float:
    """Handle events in the order of time until none is left.

    Args:
        state: prepared.
        rule: `BY_RANK`, `IN_TURN` or `AS_LISTED`: which unit a device begins.
        keeps_segments: number segments, and charge their costs.
        is_plain: every device has one stream, and every way is one hop.

    Returns:
        The time at which the last unit has ended and the last graph output has arrived, seconds.
    """
    delivered, now = _send_inputs(tables, state, rule, is_plain), 0.0
    for index in range(ZERO, U(len(state.devices))):
        _begin(tables, state, index, now, rule, keeps_segments, is_plain)
    index, time = _next_event(tables, state, np.inf, rule, is_plain)
    while time < np.inf:
        now = time
        delivered = max(delivered, _end(tables, state, index, now, rule, is_plain))
        other, time = _next_event(tables, state, now, rule, is_plain)
        if unlikely(time == now):
            arrival = _settle(tables, state, index, other, now, rule, keeps_segments, is_plain)
            delivered = max(delivered, arrival)
            index, time = _next_event(tables, state, np.inf, rule, is_plain)
            continue
        _begin(tables, state, index, now, rule, keeps_segments, is_plain)
        own = state.devices[index].time
        if is_plain and own != time:
            # The first event of the other devices is known. A branch lets the processor go on with
            # it while it still computes the event of this device.
            if unlikely(own < time):
                time = own
            else:
                index = other
        else:
            index, time = _next_event(tables, state, np.inf, rule, is_plain)
    return max(now, delivered)


@uncounted
def _settle(
    tables: EventTables,
    state: State,
    first: int,
    index: int,
    now: float,
    rule: int,
    keeps_segments: bool,
    is_plain: bool,
) -> float:
    """Handle the other events of one instant, then let the devices begin units.

    Args:
        first: device whose event was handled already.
        index: device of the next event.

    Returns:
        When the last graph output is delivered, as `_end` returns it.
    """
    state.touched[ZERO] = first
    n_touched, time, delivered = ONE, now, 0.0
    while time == now:
        state.touched[n_touched] = index
        n_touched += ONE
        delivered = max(delivered, _end(tables, state, index, now, rule, is_plain))
        index, time = _next_event(tables, state, now, rule, is_plain)
    for at in range(ZERO, n_touched):
        touched = U(state.touched[at])
        _begin(tables, state, touched, now, rule, keeps_segments, is_plain)
    return delivered


@inlined
def _send_inputs(tables: EventTables, state: State, rule: int, is_plain: bool) -> float:
    """Make units without inputs ready, send graph inputs, and return when outputs are delivered."""
    if rule == BY_RANK:
        for index in range(ZERO, U(len(state.units))):
            unit = state.units[index]
            add_ready(state, U(unit.device), U(unit.place), U(unit.missing == ZERO))
    elif rule == IN_TURN:
        for index in range(ZERO, U(len(state.units))):
            if state.units[index].missing == ZERO:
                join_queue(state, U(state.units[index].device), 0.0, index)
    delivered, host = 0.0, U(tables.scalars[HOST])
    for tensor in range(ZERO, U(tables.units[ZERO].tensor)):
        arrival = send(tables, state, tensor, host, 0.0, rule, is_plain)
        delivered = max(delivered, arrival)
    while not is_plain and state.counts[N_RELAYS] > 0 and state.relays[ZERO].time == 0.0:
        second_hop(tables, state, rule)
    return delivered


@inlined
def _end(
    tables: EventTables, state: State, index: int, now: float, rule: int, is_plain: bool
) -> float:
    """End the event of a device and send the unit's tensors; when an output is delivered."""
    unit, delivered = U(state.devices[index].unit), 0.0
    _leave(state, index, is_plain)
    if unit < U(len(state.units)):
        for tensor in range(U(tables.units[unit].tensor), U(tables.units[unit + ONE].tensor)):
            arrival = send(tables, state, tensor, index, now, rule, is_plain)
            delivered = max(delivered, arrival)
    return delivered


@inlined
def _next_event(
    tables: EventTables, state: State, latest: float, rule: int, is_plain: bool
) -> tuple[int, float]:
    """Continue relays that reach the host by `latest`; then device and time of the next event."""
    index, time = _first_device(state)
    while not is_plain and state.counts[N_RELAYS] > 0:
        relay = state.relays[ZERO]
        producer = tables.origins[relay.tensor].producer
        # Graph inputs come before all units; among others a unit comes before its own tensors.
        is_first = producer == U(len(state.units)) or producer < state.devices[index].unit
        if relay.time > min(time, latest) or (relay.time == time and not is_first):
            break
        second_hop(tables, state, rule)
        index, time = _first_device(state)
    return index, time


@inlined
def _first_device(state: State) -> tuple[int, float]:
    """The device with the earliest event; among equals, that whose ending unit comes first.

    Four at a time, since most problems have no more, and without a choice that depends on the data.
    """
    devices, first, time, second = state.devices, ZERO, np.inf, np.inf
    for index in range(ZERO, U(len(devices)), FOUR):
        one, two = devices[index].time, devices[index + ONE].time
        three, four = devices[index + TWO].time, devices[index + THREE].time
        left, right = min(one, two), min(three, four)
        on_left = choose(two < one, index + ONE, index)
        on_right = choose(four < three, index + THREE, index + TWO)
        here, at = min(left, right), choose(right < left, on_right, on_left)
        # The second smallest of those here, or less.
        later = min(max(left, right), min(max(one, two), max(three, four)))
        second = min(min(second, later), max(here, time))
        first, time = choose(here < time, at, first), min(here, time)
    if unlikely(second == time) and time < np.inf:
        unit = NO_INDEX
        for index in range(ZERO, U(len(devices))):
            if devices[index].time == time and devices[index].unit < unit:
                first, unit = index, U(devices[index].unit)
    return first, time


@inlined
def _leave(state: State, index: int, is_plain: bool) -> None:
    """Remove the event of a device; its next event may be at the same time."""
    device, n_units = state.devices[index], U(len(state.units))
    is_end = device.unit < n_units
    device.wake = -1.0
    device.time = np.inf
    device.unit = n_units
    if is_plain or device.streams == ONE:
        device.busy = ZERO
        return
    if is_end:
        device.busy -= ONE
        at = U(RUNNING) * U(len(state.devices)) + index
        drop(state.queues, state.window, state.heap, at)
    _show_running(state, index)


@inlined
def _show_running(state: State, index: int) -> None:
    """Make the first end among its streams the next event of a device."""
    device, at = state.devices[index], U(RUNNING) * U(len(state.devices)) + index
    if device.busy > ZERO:
        entry = state.window[at * WINDOW + state.queues[at].head]
        device.time = entry.key
        device.unit = entry.unit


@inlined
def _begin(
    tables: EventTables,
    state: State,
    index: int,
    now: float,
    rule: int,
    keeps_segments: bool,
    is_plain: bool,
) -> None:
    """Begin units on a device, or on all that share processors if it does."""
    if not is_plain and len(tables.excludes) > 0 and _shares(tables, index):
        _begin_sharing(tables, state, now, rule, keeps_segments)
    else:
        _begin_units(tables, state, index, now, rule, keeps_segments, is_plain)


@uncounted
def _shares(tables: EventTables, index: int) -> bool:
    """True for a device that shares a processor; the added ones do not."""
    n_devices = U(tables.seconds.shape[1])
    for other in range(ZERO, n_devices if index < n_devices else ZERO):
        if tables.excludes[index * n_devices + other] > ZERO:
            return True
    return False


@uncounted
def _begin_sharing(
    tables: EventTables, state: State, now: float, rule: int, keeps_segments: bool
) -> None:
    """Begin units on the devices that share processors, and set their next events.

    Of all units that could begin, that of the highest priority does, until none can.
    """
    n_devices = U(tables.seconds.shape[1])
    first = _first_to_begin(tables, state, now, rule)
    while first < n_devices:
        _begin_alone(tables, state, first, now, rule, keeps_segments)
        first = _first_to_begin(tables, state, now, rule)
    for index in range(ZERO, n_devices):
        if state.devices[index].busy > ZERO or not _shares(tables, index):
            continue
        if _is_held(tables, state, index, rule):  # the end of what holds it is an event
            state.devices[index].time = np.inf
            state.devices[index].wake = -1.0
        else:  # nothing begins: it sets when the next input arrives
            _begin_alone(tables, state, index, now, rule, keeps_segments)


@uncounted
def _begin_alone(
    tables: EventTables, state: State, index: int, now: float, rule: int, keeps_segments: bool
) -> None:
    """Begin a unit on an idle device, which then has no other event."""
    device = state.devices[index]
    device.time = np.inf
    device.wake = -1.0
    device.unit = U(len(state.units))
    _begin_units(tables, state, index, now, rule, keeps_segments, False)


@uncounted
def _first_to_begin(tables: EventTables, state: State, now: float, rule: int) -> int:
    """The sharing device whose next unit begins before those of the others; n_devices for none."""
    n_devices = U(tables.seconds.shape[1])
    chosen, highest, number = n_devices, 0.0, NO_INDEX
    for index in range(ZERO, n_devices):
        if state.devices[index].busy > ZERO or not _shares(tables, index):
            continue
        if _is_held(tables, state, index, rule):
            continue
        unit = _next_unit(state, index, now, rule)
        if unit == NO_INDEX:
            continue
        priority = -state.units[unit].seconds if rule == IN_TURN else state.priority[unit]
        is_first = priority > highest or (priority == highest and unit < number)
        if chosen == n_devices or is_first:
            chosen, highest, number = index, priority, unit
    return chosen


@uncounted
def _is_held(tables: EventTables, state: State, index: int, rule: int) -> bool:
    """True if a processor of an idle device is busy, or the order wants it for another one."""
    devices, n_devices = state.devices, U(tables.seconds.shape[1])
    for other in range(ZERO, n_devices):
        if tables.excludes[index * n_devices + other] == ZERO:
            continue
        if devices[other].busy > ZERO:
            return True
        if rule == AS_LISTED and devices[other].next < devices[other].stop:
            own = U(devices[index].next)
            theirs = U(state.slots[devices[other].next].unit)
            has_own = own < devices[index].stop
            if has_own and state.priority[theirs] > state.priority[U(state.slots[own].unit)]:
                return True
    return False


@uncounted
def _next_unit(state: State, index: int, now: float, rule: int) -> int:
    """The unit that an idle device would begin; the largest index if none is ready."""
    device = state.devices[index]
    waiting = U(ARRIVING) * U(len(state.devices)) + index
    if rule == AS_LISTED:
        if device.next < device.stop:
            unit = U(state.slots[device.next].unit)
            if state.units[unit].missing == ZERO and state.units[unit].seconds <= now:
                return unit
    elif rule == IN_TURN:
        if state.queues[waiting].head < state.queues[waiting].tail:
            entry = state.window[waiting * WINDOW + state.queues[waiting].head]
            if entry.key <= now:
                return U(entry.unit)
    else:
        _take_arrived(state, index, now)
        while device.best != NO_SLOT:
            unit = U(state.slots[U(device.best) - U(device.shift)].unit)
            if state.units[unit].seconds <= now:
                return unit
            _set_aside(state, index, U(take_ready(state, index)))
    return NO_INDEX


@inlined
def _begin_units(
    tables: EventTables,
    state: State,
    index: int,
    now: float,
    rule: int,
    keeps_segments: bool,
    is_plain: bool,
) -> None:
    """Begin units on the free streams of a device, and set its next event."""
    device = state.devices[index]
    if rule == AS_LISTED:
        wakes = _begin_listed(tables, state, index, now, keeps_segments, is_plain)
    elif rule == IN_TURN:
        wakes = _begin_in_turn(tables, state, index, now, keeps_segments, is_plain)
    else:
        wakes = _begin_ready(tables, state, index, now, keeps_segments, is_plain)
    if device.busy < (ONE if is_plain else U(device.streams)):
        if wakes < device.time:
            device.time = wakes
            device.unit = U(len(state.units))
        device.wake = device.time


@inlined
def _begin_ready(
    tables: EventTables,
    state: State,
    index: int,
    now: float,
    keeps_segments: bool,
    is_plain: bool,
) -> float:
    """Begin ready units, highest rank first; return when the next input arrives."""
    device = state.devices[index]
    _take_arrived(state, index, now)
    while device.best != NO_SLOT and (is_plain or device.busy < device.streams):
        at = take_ready(state, index)
        slot = state.slots[at]
        if state.units[slot.unit].seconds > now:
            _set_aside(state, index, at)
            continue
        _begin_unit(tables, state, index, slot, now, keeps_segments, is_plain)
        if U(len(state.units)) > _CACHED:
            _expect(tables, state, index, slot)
        if is_plain:
            return np.inf
    return float(device.arrival)


@inlined
def _take_arrived(state: State, index: int, now: float) -> None:
    """Make units ready whose last input has arrived at a device by now."""
    device, queues, window = state.devices[index], state.queues, state.window
    arriving = U(ARRIVING) * U(len(state.devices)) + index
    base = arriving * WINDOW
    while device.arrival <= now:
        unit = U(window[base + queues[arriving].head].unit)
        drop(queues, window, state.heap, arriving)
        add_ready(state, index, U(state.units[unit].place), ONE)
        device.arrival = np.inf
        if queues[arriving].head < queues[arriving].tail:
            device.arrival = window[base + queues[arriving].head].key


@inlined
def _set_aside(state: State, index: int, at: int) -> None:
    """Queue the unit of a slot, which waits for an input on its way.

    Each unit comes here at most once, so that units on their way are not checked again.
    """
    device, number = state.devices[index], U(state.slots[at].unit)
    arriving = U(ARRIVING) * U(len(state.devices)) + index
    available = state.units[number].seconds
    put(state.queues, state.window, state.heap, arriving, available, number)
    device.arrival = min(device.arrival, available)


@inlined
def _expect(tables: EventTables, state: State, index: int, begun: Record) -> None:
    """Prefetch the records needed when this unit ends and when the next unit there begins."""
    edge = U(tables.tensors[begun.tensor].edge)
    prefetch(tables.readers, edge)
    prefetch(state.copy_of_edge, edge)
    device = state.devices[index]
    best = U(device.best)
    following = state.slots[best - U(device.shift) if best != NO_SLOT else ZERO]
    prefetch(state.units, U(following.unit))
    prefetch(state.spans, U(following.unit))
    prefetch(tables.units, U(following.unit))
    prefetch(tables.tensors, U(following.tensor))


@inlined
def _begin_listed(
    tables: EventTables,
    state: State,
    index: int,
    now: float,
    keeps_segments: bool,
    is_plain: bool,
) -> float:
    """Begin units in the given order; return when the next unit has all its inputs."""
    device = state.devices[index]
    while device.next < device.stop and device.busy < device.streams:
        slot = state.slots[device.next]
        unit = state.units[slot.unit]
        if unit.missing > ZERO:
            return np.inf
        if unit.seconds > now:
            return float(unit.seconds)
        device.next += ONE
        _begin_unit(tables, state, index, slot, now, keeps_segments, is_plain)
    return np.inf


@inlined
def _begin_in_turn(
    tables: EventTables,
    state: State,
    index: int,
    now: float,
    keeps_segments: bool,
    is_plain: bool,
) -> float:
    """Begin units in the order in which they became ready; return when the next unit will be."""
    device, queues, window = state.devices[index], state.queues, state.window
    waiting = U(ARRIVING) * U(len(state.devices)) + index
    while queues[waiting].head < queues[waiting].tail and device.busy < device.streams:
        entry = window[waiting * WINDOW + queues[waiting].head]
        if entry.key > now:
            return float(entry.key)
        slot = state.slots[U(state.units[entry.unit].place) - U(device.shift)]
        drop(queues, window, state.heap, waiting)
        _begin_unit(tables, state, index, slot, now, keeps_segments, is_plain)
    return np.inf


@inlined
def _begin_unit(
    tables: EventTables,
    state: State,
    index: int,
    slot: Record,
    now: float,
    keeps_segments: bool,
    is_plain: bool,
) -> None:
    device, number, seconds = state.devices[index], U(slot.unit), float(slot.seconds)
    if keeps_segments:
        seconds += _overhead_seconds(tables, state, index, number)
    end = now + seconds
    state.spans[number].start = now
    state.spans[number].end = end
    device.busy = ONE if is_plain else U(device.busy) + ONE
    if is_plain or device.streams == ONE:
        device.time = end
        device.unit = number
        return
    at = U(RUNNING) * U(len(state.devices)) + index
    put(state.queues, state.window, state.heap, at, end, number)
    _show_running(state, index)


@inlined
def _overhead_seconds(tables: EventTables, state: State, index: int, number: int) -> float:
    """Put the unit that a device begins into a segment, and return the seconds that this adds.

    A segment begins if none is open or the unit reads a tensor of another device, and ends
    with a unit that another device reads, or before it is longer than the device allows. A tensor's
    cut is paid once per copy and segment.
    """
    device, unit = state.devices[index], state.cuts[number]
    seconds = 0.0
    if len(tables.segment_limits) > 0:
        _count_segment(tables, state, index, number)
    if device.segment == NO_INDEX or unit.reads_remote > ZERO:
        unit.segment = state.counts[N_SEGMENTS]
        state.counts[N_SEGMENTS] += 1
        seconds += tables.devices[index].dispatch
    else:
        unit.segment = device.segment
    device.segment = NO_INDEX if unit.read_remotely > ZERO else U(unit.segment)
    n_units = U(len(state.units))
    for at in range(U(tables.units[number].input), U(tables.units[number + ONE].input)):
        edge = U(tables.input_edges[at])
        tensor = tables.origins[tables.edge_tensors[edge]]
        if tensor.producer == n_units or state.cuts[tensor.producer].segment == unit.segment:
            continue
        copy = U(state.copy_of_edge[edge])
        if state.charged[copy] != unit.segment:
            if len(tables.occupied) > 0 and state.charged[copy] == NO_INDEX:
                seconds += _received_seconds(tables, state, index, edge)
            state.charged[copy] = unit.segment
            table = tables.devices[index]
            seconds += table.cut + tensor.bytes * table.cut_per_byte
            layout = table.layout + tensor.bytes * table.layout_per_byte
            seconds += layout * tensor.has_layout
    if len(tables.occupied) > 0:
        seconds += _sent_seconds(tables, state, index, number)
    return seconds


@uncounted
def _count_segment(tables: EventTables, state: State, index: int, number: int) -> None:
    """Close the open segment of a device if a unit would make it too long, and count."""
    device, count, ops = state.devices[index], state.segments[index], U(tables.unit_ops[number])
    is_full = count.ops + ops > tables.segment_limits[index].ops
    if device.segment == NO_INDEX or state.cuts[number].reads_remote > ZERO or is_full:
        device.segment = NO_INDEX
        count.segments += ONE
        count.ops = ZERO
    count.ops += ops


@uncounted
def _received_seconds(tables: EventTables, state: State, index: int, edge: int) -> float:
    """Seconds in which a device copies a tensor for its first reader there."""
    tensor = tables.origins[tables.edge_tensors[edge]]
    source = U(state.units[tensor.producer].device)
    pair = tables.occupied[source * U(len(state.endpoints)) + index]
    return float(pair.of_receiver * (pair.latency + tensor.bytes * pair.per_byte))


@uncounted
def _sent_seconds(tables: EventTables, state: State, index: int, number: int) -> float:
    """Seconds in which a device copies the outputs of a unit, once to each other device."""
    seconds, row = 0.0, index * U(len(state.endpoints))
    for tensor in range(U(tables.units[number].tensor), U(tables.units[number + ONE].tensor)):
        first, stop = U(tables.tensors[tensor].edge), U(tables.tensors[tensor + ONE].edge)
        for edge in range(first, stop):
            target = U(state.units[tables.readers[edge]].device)
            pair = tables.occupied[row + target]
            if pair.of_sender > ZERO and state.segments[target].copied != tensor + ONE:
                state.segments[target].copied = tensor + ONE
                seconds += pair.latency + tables.origins[tensor].bytes * pair.per_byte
    return seconds

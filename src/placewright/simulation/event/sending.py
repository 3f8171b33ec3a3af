"""Transfers: a tensor reaches its readers at once, by one hop, or by two through the host."""

from __future__ import annotations

import numpy as np

from placewright.simulation.compiled import inlined, uncounted
from placewright.simulation.event.instructions import choose
from placewright.simulation.event.queues import add_ready, add_relay, join_queue, pop_relay
from placewright.simulation.event.records import (
    FIRST_HOP,
    IN_ONE_HOP,
    LOWER_HALF,
    MADE_HERE,
    NOWHERE,
    ONE,
    QUARTER,
    SECOND_HOP,
    ZERO,
    Record,
    U,
)
from placewright.simulation.event.tables import (
    AS_LISTED,
    FAULT,
    FAULT_AT,
    HOST,
    IN_TURN,
    N_COPIES,
    EventTables,
    State,
)
from placewright.simulation.legality import CUT_OFF


@inlined
def send(
    tables: EventTables,
    state: State,
    number: int,
    source: int,
    now: float,
    rule: int,
    is_plain: bool,
) -> float:
    """Send a tensor that exists now to its readers: at once here, by a transfer elsewhere.

    Returns:
        When a graph output reaches the host; 0 for other tensors.
    """
    tensor, endpoints = tables.tensors[number], state.endpoints
    row, load = source * U(len(endpoints)), float(tensor.load)
    n_copies = U(state.counts[N_COPIES])
    first_copy, until = n_copies, now
    endpoints[source].arrival = now
    endpoints[source].copy = MADE_HERE | number
    for edge in range(U(tensor.edge), U(tables.tensors[number + ONE].edge)):
        reader = U(tables.readers[edge])
        target = U(state.units[reader].device)
        if not is_plain and tables.pairs[row + target].route > IN_ONE_HOP:
            if endpoints[target].copy < first_copy:
                n_copies = _first_hop(tables, state, n_copies, number, source, target, now)
            until = max(until, endpoints[target].arrival)
            continue
        copies = (first_copy, n_copies)
        n_copies, copy, arrival = _add_hop(tables, state, copies, number, load, row, target, now)
        until = max(until, arrival)
        state.copy_of_edge[edge] = copy
        _deliver(state, reader, target, arrival, rule)
    delivered = 0.0
    if tensor.is_output > ZERO:
        host = U(tables.scalars[HOST])
        if tables.pairs[row + host].route == NOWHERE:
            state.counts[FAULT], state.counts[FAULT_AT] = CUT_OFF, number
        copies, until = (first_copy, n_copies), np.inf
        n_copies, copy, delivered = _add_hop(tables, state, copies, number, load, row, host, now)
        state.copy_ends[copy & LOWER_HALF] = np.inf
    state.copy_ends[number] = until
    endpoints[source].copy = ZERO
    state.counts[N_COPIES] = n_copies
    return delivered


@inlined
def _add_hop(
    tables: EventTables,
    state: State,
    copies: tuple[int, int],
    number: int,
    load: float,
    row: int,
    target: int,
    now: float,
) -> tuple[int, int, float]:
    """Queue a tensor on the channel to `target` unless it went there before, without branches.

    Args:
        copies: number of copies before those of this tensor, and number of copies now.

    Returns:
        Number of copies afterwards, the copy at `target`, and when it is there.
    """
    first_copy, n_copies = copies
    end, pair = state.endpoints[target], tables.pairs[row + target]
    before, channel = U(end.copy), U(pair.channel)
    is_new, free = before < first_copy, state.free[channel]
    start = now if now > free else free
    stop = start + (pair.latency + load * pair.per_load)
    hop = state.hops[n_copies]
    hop.start = start
    hop.end = stop
    hop.tensor = number
    hop.way = target
    state.copy_ends[n_copies] = start
    state.free[channel] = choose(is_new, stop, free) * pair.queues
    arrival = choose(is_new, stop, float(end.arrival))
    copy = choose(is_new, n_copies, before)
    end.arrival = arrival
    end.copy = copy
    return n_copies + U(is_new), copy, arrival


@inlined
def _deliver(state: State, number: int, index: int, arrival: float, rule: int) -> None:
    """Count an input that arrives at a unit's device, and wake the device if it idles.

    A unit is ready as soon as its last input has been sent. The device checks whether that has
    arrived when it would begin the unit, which is mostly later.
    """
    unit, device = state.units[number], state.devices[index]
    missing, available = U(unit.missing) - ONE, unit.seconds
    available = arrival if arrival > available else available
    unit.missing = missing
    unit.seconds = available
    is_last = U(missing == ZERO)
    if rule == AS_LISTED:
        is_last &= U(unit.place == U(device.next) + U(device.shift))
    elif rule == IN_TURN:
        if is_last > ZERO:
            join_queue(state, index, available, number)
    else:
        add_ready(state, index, U(unit.place), is_last)
    if device.wake < 0.0:  # asked first, because a processor foresees it
        return
    if is_last & U(available < device.wake):
        device.time = available
        device.wake = available
        device.unit = U(len(state.units))


@uncounted
def _first_hop(
    tables: EventTables,
    state: State,
    copy: int,
    number: int,
    source: int,
    target: int,
    now: float,
) -> int:
    """Send a tensor to the host, on its way to `target`; number of copies afterwards."""
    pair, end = tables.pairs[source * U(len(state.endpoints)) + target], state.endpoints[target]
    if pair.route == NOWHERE:
        state.counts[FAULT], state.counts[FAULT_AT] = CUT_OFF, number
        return copy
    host = U(tables.scalars[HOST])
    end.arrival = _log_hop(tables, state, pair, copy, number, now, host | FIRST_HOP << QUARTER)
    end.copy = copy
    add_relay(state, float(end.arrival), number, target)
    return copy + ONE


@uncounted
def second_hop(tables: EventTables, state: State, rule: int) -> None:
    """Forward the tensor that reached the host first, and count it as input of its readers."""
    now, number, target = pop_relay(state)
    pair = tables.pairs[U(tables.scalars[HOST]) * U(len(state.endpoints)) + target]
    copy = U(state.counts[N_COPIES])
    arrival = _log_hop(tables, state, pair, copy, number, now, target | SECOND_HOP << QUARTER)
    state.counts[N_COPIES] = copy + ONE
    tensor = tables.tensors[number]
    for edge in range(U(tensor.edge), U(tables.tensors[number + ONE].edge)):
        reader = U(tables.readers[edge])
        if state.units[reader].device == target:
            state.copy_of_edge[edge] = copy
            _deliver(state, reader, target, arrival, rule)


@inlined
def _log_hop(
    tables: EventTables,
    state: State,
    pair: Record,
    copy: int,
    number: int,
    now: float,
    way: int,
) -> float:
    """Queue a tensor on the channel of one of its two hops, and return when the hop ends."""
    start = max(now, state.free[pair.channel])
    end = start + (pair.latency + tables.tensors[number].load * pair.per_load)
    state.free[pair.channel] = end * pair.queues
    state.copy_ends[copy] = start
    hop = state.hops[copy]
    hop.start = start
    hop.end = end
    hop.tensor = number
    hop.way = way
    return float(end)

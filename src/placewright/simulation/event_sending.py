"""How a tensor gets to its readers: at once, by one hop, or by two through the host."""

from __future__ import annotations

from placewright.simulation.compiled import inlined, uncounted
from placewright.simulation.event_ready import add_ready
from placewright.simulation.event_relays import add_relay, pop_relay
from placewright.simulation.event_state import FAULT, FAULT_AT, N_HOPS, State
from placewright.simulation.event_tables import HOST, EventTables
from placewright.simulation.instructions import choose
from placewright.simulation.legality import CUT_OFF
from placewright.simulation.records import (
    FIRST_HOP,
    IN_ONE_HOP,
    NOWHERE,
    ONE,
    ONLY_HOP,
    SECOND_HOP,
    ZERO,
    U,
)


@inlined
def send(
    tables: EventTables,
    state: State,
    number: int,
    source: int,
    now: float,
    has_order: bool,
    is_plain: bool,
) -> float:
    """Hand a tensor that exists now to its readers: here at once, elsewhere by a transfer.

    Returns:
        When it is with the host as a graph output; 0 where it is none.
    """
    tensor, endpoints = tables.tensors[number], state.endpoints
    row, load = source * U(len(endpoints)), float(tensor.load)
    endpoints[source].tensor = number
    endpoints[source].arrival = now
    endpoints[source].copy = number
    for edge in range(U(tensor.edge), U(tables.tensors[number + ONE].edge)):
        reader = U(tables.readers[edge])
        target = U(state.units[reader].device)
        end = endpoints[target]
        if not is_plain and tables.pairs[row + target].route > IN_ONE_HOP:
            if end.tensor != number:
                end.tensor = number
                _first_hop(tables, state, number, source, target, now)
            continue
        _add_hop(tables, state, number, load, row, target, now)
        state.copy_of_edge[edge] = end.copy
        _deliver(state, reader, target, end.arrival, has_order)
    if tensor.is_output == ZERO:
        return 0.0
    host = U(tables.scalars[HOST])
    if tables.pairs[row + host].route == NOWHERE:
        state.counts[FAULT], state.counts[FAULT_AT] = CUT_OFF, number
    _add_hop(tables, state, number, load, row, host, now)
    return float(endpoints[host].arrival)


@inlined
def _add_hop(
    tables: EventTables,
    state: State,
    number: int,
    load: float,
    row: int,
    target: int,
    now: float,
) -> None:
    """Put a tensor on the channel to `target` unless it went there before, without branches."""
    end, n_hops = state.endpoints[target], U(state.counts[N_HOPS])
    pair = tables.pairs[row + target]
    is_new, channel = end.tensor != number, U(pair.channel)
    free, before, copy = state.free[channel], end.arrival, U(end.copy)
    its_copy = U(len(tables.tensors) - 1) + n_hops
    start = now if now > free else free
    arrival = start + (pair.latency + load * pair.per_load)
    hop = state.hops[n_hops]
    hop.start = start
    hop.end = arrival
    hop.tensor = number
    hop.target = target
    hop.kind = ONLY_HOP
    state.free[channel] = choose(is_new, arrival, free) * pair.queues
    end.arrival = choose(is_new, arrival, before)
    end.copy = choose(is_new, its_copy, copy)
    end.tensor = number
    state.counts[N_HOPS] = n_hops + U(is_new)


@inlined
def _deliver(state: State, number: int, index: int, arrival: float, has_order: bool) -> None:
    """Tell a unit when an input arrives at its device, and wake the device where it idles.

    A unit is ready as soon as its last input has been sent: whether it has arrived is asked when
    the device would begin the unit, which is mostly later.
    """
    unit, device = state.units[number], state.devices[index]
    missing, available = U(unit.missing) - ONE, unit.seconds
    available = arrival if arrival > available else available
    unit.missing = missing
    unit.seconds = available
    is_last = U(missing == ZERO)
    if has_order:
        is_last &= U(unit.place == device.next)
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
    tables: EventTables, state: State, number: int, source: int, target: int, now: float
) -> None:
    """Send a tensor to the host, from where it will go on to `target`."""
    pair = tables.pairs[source * U(len(state.endpoints)) + target]
    if pair.route == NOWHERE:
        state.counts[FAULT], state.counts[FAULT_AT] = CUT_OFF, number
        return
    start = max(now, state.free[pair.channel])
    end = start + (pair.latency + tables.tensors[number].load * pair.per_load)
    state.free[pair.channel] = end * pair.queues
    _log_hop(state, number, U(tables.scalars[HOST]), start, end, FIRST_HOP)
    add_relay(state, end, number, target)


@uncounted
def second_hop(tables: EventTables, state: State, has_order: bool) -> None:
    """Send on what has reached the host first, and tell its readers."""
    now, number, target = pop_relay(state)
    host = U(tables.scalars[HOST])
    pair = tables.pairs[host * U(len(state.endpoints)) + target]
    tensor = tables.tensors[number]
    start = max(now, state.free[pair.channel])
    end = start + (pair.latency + tensor.load * pair.per_load)
    state.free[pair.channel] = end * pair.queues
    copy = U(len(tables.tensors) - 1) + U(state.counts[N_HOPS])
    _log_hop(state, number, target, start, end, SECOND_HOP)
    for edge in range(U(tensor.edge), U(tables.tensors[number + ONE].edge)):
        reader = U(tables.readers[edge])
        if state.units[reader].device == target:
            state.copy_of_edge[edge] = copy
            _deliver(state, reader, target, end, has_order)


@inlined
def _log_hop(state: State, number: int, target: int, start: float, end: float, kind: int) -> None:
    hop = state.hops[U(state.counts[N_HOPS])]
    hop.start = start
    hop.end = end
    hop.tensor = number
    hop.target = target
    hop.kind = kind
    state.counts[N_HOPS] += 1

"""How a tensor gets to its readers: at once, by one hop, or by two through the host."""

from __future__ import annotations

from placewright.simulation.compiled import inlined, uncounted
from placewright.simulation.event_queue import put
from placewright.simulation.event_ready import add_ready
from placewright.simulation.event_relays import add_relay, pop_relay
from placewright.simulation.event_state import ARRIVING, FAULT, FAULT_AT, N_HOPS, State
from placewright.simulation.event_tables import HOST, EventTables
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
    tables: EventTables, state: State, number: int, source: int, now: float, has_order: bool
) -> tuple[float, bool]:
    """Hand a tensor that exists now to its readers: here at once, elsewhere by a transfer.

    Returns:
        When it is with the host as a graph output, and whether it gave a device an event now.
    """
    tensor, endpoints = tables.tensors[number], state.endpoints
    row = source * U(len(endpoints))
    endpoints[source].tensor = number
    endpoints[source].arrival = now
    endpoints[source].copy = number
    ties = False
    for edge in range(U(tensor.edge), U(tables.tensors[number + ONE].edge)):
        reader = U(tables.readers[edge])
        target = U(state.units[reader].device)
        end, pair = endpoints[target], tables.pairs[row + target]
        if pair.route > IN_ONE_HOP:
            if end.tensor != number:
                end.tensor = number
                ties |= _first_hop(tables, state, number, source, target, now)
            continue
        is_new = end.tensor != number
        _add_hop(tables, state, number, source, target, now, is_new)
        state.copy_of_edge[edge] = end.copy
        ties |= _deliver(tables, state, reader, target, end.arrival, now, has_order)
    if tensor.is_output == ZERO:
        return 0.0, ties
    host = U(tables.scalars[HOST])
    if tables.pairs[row + host].route == NOWHERE:
        state.counts[FAULT], state.counts[FAULT_AT] = CUT_OFF, number
    _add_hop(tables, state, number, source, host, now, endpoints[host].tensor != number)
    return float(endpoints[host].arrival), ties


@inlined
def _add_hop(
    tables: EventTables,
    state: State,
    number: int,
    source: int,
    target: int,
    now: float,
    is_new: bool,
) -> None:
    """Put a tensor on the channel to `target` unless it went there before, without branches."""
    end, n_hops = state.endpoints[target], U(state.counts[N_HOPS])
    pair = tables.pairs[source * U(len(state.endpoints)) + target]
    free, before, copy = state.free[pair.channel], end.arrival, U(end.copy)
    its_copy = U(len(tables.tensors) - 1) + n_hops
    tensor = tables.tensors[number]
    start = now if now > free else free
    arrival = start + (pair.latency + tensor.load * pair.per_load)
    hop = state.hops[n_hops]
    hop.start = start
    hop.end = arrival
    hop.tensor = number
    hop.source = source
    hop.target = target
    hop.kind = ONLY_HOP
    state.free[pair.channel] = (arrival if is_new else free) * pair.queues
    end.arrival = arrival if is_new else before
    end.copy = copy + (its_copy - copy) * U(is_new)
    end.tensor = number
    state.counts[N_HOPS] = n_hops + U(is_new)


@inlined
def _deliver(
    tables: EventTables,
    state: State,
    number: int,
    index: int,
    arrival: float,
    now: float,
    has_order: bool,
) -> bool:
    """An input of a unit arrives at its device; True when that gives the device an event now."""
    unit, device = state.units[number], state.devices[index]
    missing, available = U(unit.missing) - ONE, unit.available
    available = arrival if arrival > available else available
    unit.missing = missing
    unit.available = available
    if has_order:
        if missing > ZERO or device.decides >= 0.0 or state.listed[device.next] != number:
            return False
    else:
        is_last, is_late = U(missing == ZERO), U(available > device.decides)
        # What is there before the device can begin anything is ready.
        add_ready(tables, state, index, U(unit.place), is_last & (is_late ^ ONE))
        if is_last & is_late == ZERO:
            return False
        arriving = U(ARRIVING) * U(len(state.devices)) + index
        put(state.queues, state.window, state.heap, arriving, available, number)
        if device.decides >= 0.0:
            return False
    if available < device.time:
        device.time = available
        device.unit = U(len(state.units))
    return bool(available == now)


@uncounted
def _first_hop(
    tables: EventTables, state: State, number: int, source: int, target: int, now: float
) -> bool:
    """Send a tensor to the host, from where it will go on to `target`; True when it is there."""
    pair = tables.pairs[source * U(len(state.endpoints)) + target]
    if pair.route == NOWHERE:
        state.counts[FAULT], state.counts[FAULT_AT] = CUT_OFF, number
        return False
    start = max(now, state.free[pair.channel])
    end = start + (pair.latency + tables.tensors[number].load * pair.per_load)
    state.free[pair.channel] = end * pair.queues
    _log_hop(tables, state, number, source, U(tables.scalars[HOST]), start, end, FIRST_HOP)
    add_relay(state, end, number, target)
    return bool(end == now)


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
    _log_hop(tables, state, number, host, target, start, end, SECOND_HOP)
    for edge in range(U(tensor.edge), U(tables.tensors[number + ONE].edge)):
        reader = U(tables.readers[edge])
        if state.units[reader].device == target:
            state.copy_of_edge[edge] = copy
            _deliver(tables, state, reader, target, end, now, has_order)


@inlined
def _log_hop(
    tables: EventTables,
    state: State,
    number: int,
    source: int,
    target: int,
    start: float,
    end: float,
    kind: int,
) -> None:
    hop = state.hops[U(state.counts[N_HOPS])]
    hop.start = start
    hop.end = end
    hop.tensor = number
    hop.source = source
    hop.target = target
    hop.kind = kind
    state.counts[N_HOPS] += 1

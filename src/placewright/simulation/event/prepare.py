"""What the event kernel does before time starts: costs, ranks, queues, which edges cross."""

from __future__ import annotations

import numpy as np

from placewright.core.arrays import IntArray
from placewright.simulation.compiled import uncounted
from placewright.simulation.event.ranking import list_by_rank
from placewright.simulation.event.state import ARRIVING, N_COPIES, PLACES, RUNNING, State, n_above
from placewright.simulation.event.tables import DISPATCH, IN_TURN, EventTables
from placewright.simulation.instructions import prefetch
from placewright.simulation.records import NO_INDEX, NO_SLOT, ONE, ZERO, U

_AHEAD = U(16)  # slots, whose units are asked for before they are needed


@uncounted
def prepare(
    tables: EventTables, state: State, device_of: IntArray, order: IntArray, keeps_segments: bool
) -> bool:
    """Bring a placement into the state; False when a unit may not run on its device.

    Args:
        tables: the problem.
        state: new.
        device_of: (n_units,).
        order: topological order of all units, or empty for the problem's rule of dispatch.
        keeps_segments: find out which units begin or end a segment.
    """
    if not _load_units(tables, state, device_of):
        return False
    _set_devices(tables, state)
    _set_queues(tables, state)
    if len(order) > 0:
        _list_by_order(state, order)
    elif tables.scalars[DISPATCH] == IN_TURN:
        _list_by_number(state)
    else:
        _rank(tables, state)
        list_by_rank(state)
    if len(tables.factors):
        _contend(tables, state)
    _fill_slots(tables, state)
    if keeps_segments:
        _mark_crossings(tables, state)
    return True


@uncounted
def _load_units(tables: EventTables, state: State, device_of: IntArray) -> bool:
    n_units, n_devices = U(len(device_of)), U(tables.seconds.shape[1])
    devices = state.devices
    for device in range(ZERO, U(len(devices))):
        devices[device].stop = ZERO
    is_allowed = True
    for index in range(ZERO, n_units):
        unit, device = state.units[index], U(device_of[index])
        if device >= n_devices:
            return False
        is_allowed &= tables.allowed[index, device]
        seconds = tables.seconds[index, device]
        state.spans[index].end = seconds
        unit.seconds = seconds
        unit.device = device
        unit.missing = tables.units[index].n_inputs
        devices[device].stop += ONE
    return is_allowed


@uncounted
def _rank(tables: EventTables, state: State) -> None:
    """Upward ranks with this placement's own costs: Topcuoglu et al. 2002, equation 8.

    Edges come in an order in which a reader's rank is final before it is read, so that one loop
    without branches does it.
    """
    n_endpoints = U(len(state.endpoints))
    for index in range(ZERO, U(len(tables.rank_edges))):
        edge = tables.rank_edges[index]
        producer, reader = state.units[edge.producer], state.units[edge.reader]
        pair = tables.pairs[producer.device * n_endpoints + reader.device]
        transfer = pair.latency + edge.load * pair.per_load
        if len(tables.relay_pairs):
            second = tables.relay_pairs[producer.device * n_endpoints + reader.device]
            transfer += second.latency + edge.load * second.per_load
        rank, before = (
            state.spans[edge.producer].end + (reader.seconds + transfer),
            producer.seconds,
        )
        producer.seconds = rank if rank > before else before


@uncounted
def _contend(tables: EventTables, state: State) -> None:
    """Multiply seconds by the factor for the number of devices in use of each memory domain."""
    n_units, n_devices = U(len(state.units)), U(tables.seconds.shape[1])
    for index in range(ZERO, n_units):
        unit = state.units[index]
        domain = U(tables.devices[unit.device].domain)
        if domain == NO_INDEX:
            continue
        n_used = 0
        for device in range(ZERO, n_devices):
            is_used = state.devices[device].stop > state.devices[device].first
            n_used += is_used and tables.devices[device].domain == domain
        state.spans[index].end *= tables.factors[domain, n_used]


@uncounted
def _set_devices(tables: EventTables, state: State) -> None:
    n_units = U(len(state.units))
    for index in range(ZERO, U(len(state.devices))):
        device = state.devices[index]
        device.time = np.inf
        device.wake = -1.0
        device.arrival = np.inf
        device.best = NO_SLOT
        device.unit = n_units
        device.busy = ZERO
        device.streams = tables.devices[index].streams
        device.segment = NO_INDEX
    for index in range(ZERO, U(len(state.ready))):
        state.ready[index] = ZERO
    for index in range(ZERO, U(len(state.endpoints))):
        state.endpoints[index].copy = ZERO
    for index in range(ZERO, U(len(state.free))):
        state.free[index] = 0.0
    for index in range(ZERO, U(len(state.queues))):
        state.queues[index].head = ZERO
        state.queues[index].tail = ZERO
        state.queues[index].spilled = ZERO
    for index in range(ZERO, U(len(state.counts))):
        state.counts[index] = 0
    state.counts[N_COPIES] = len(tables.tensors) - 1


@uncounted
def _set_queues(tables: EventTables, state: State) -> None:
    """Each device's part of lists and heaps; `stop` is the number of its units."""
    n_units, n_devices = U(len(state.units)), U(len(state.devices))
    first, place, block = ZERO, U(n_above(n_units, n_devices)) * U(PLACES), U(PLACES)
    for index in range(ZERO, n_devices):
        device = state.devices[index]
        state.queues[U(ARRIVING) * n_devices + index].heap = first
        state.queues[U(RUNNING) * n_devices + index].heap = n_units + first
        device.first = first
        device.next = first
        device.shift = place - first
        place += (U(device.stop) + block - ONE) // block * block
        first += U(device.stop)
        device.stop = first


@uncounted
def _list_by_order(state: State, order: IntArray) -> None:
    for index in range(ZERO, U(len(state.devices))):
        state.devices[index].stop = state.devices[index].first
    for at in range(ZERO, U(len(order))):
        device = state.devices[state.units[U(order[at])].device]
        state.slots[device.stop].unit = order[at]
        device.stop += ONE


@uncounted
def _list_by_number(state: State) -> None:
    """List units where nothing asks for their order, because they come as they become ready."""
    for index in range(ZERO, U(len(state.devices))):
        state.devices[index].stop = state.devices[index].first
    for index in range(ZERO, U(len(state.units))):
        device = state.devices[state.units[index].device]
        state.slots[device.stop].unit = index
        device.stop += ONE


@uncounted
def _fill_slots(tables: EventTables, state: State) -> None:
    """Bring what the loop needs next into each slot; tell each unit its own."""
    n_units = U(len(state.slots))
    for index in range(ZERO, U(len(state.devices))):
        first, stop = U(state.devices[index].first), U(state.devices[index].stop)
        shift = U(state.devices[index].shift)
        for at in range(first, stop):
            ahead = U(state.slots[min(at + _AHEAD, n_units - ONE)].unit)
            prefetch(state.units, ahead)
            prefetch(state.spans, ahead)
            prefetch(tables.units, ahead)
            slot = state.slots[at]
            number = U(slot.unit)
            unit = state.units[number]
            unit.place = at + shift
            unit.seconds = 0.0
            slot.seconds = state.spans[number].end
            slot.tensor = tables.units[number].tensor


@uncounted
def _mark_crossings(tables: EventTables, state: State) -> None:
    n_units = U(len(state.units))
    for copy in range(ZERO, U(len(state.charged))):
        state.charged[copy] = NO_INDEX
    for index in range(ZERO, n_units):
        state.cuts[index].reads_remote = ZERO
        state.cuts[index].read_remotely = ZERO
    for edge in range(ZERO, U(len(tables.readers))):
        producer = U(tables.origins[tables.edge_tensors[edge]].producer)
        if producer == n_units:
            continue
        reader = U(tables.readers[edge])
        if state.units[producer].device != state.units[reader].device:
            state.cuts[reader].reads_remote = ONE
            state.cuts[producer].read_remotely = ONE

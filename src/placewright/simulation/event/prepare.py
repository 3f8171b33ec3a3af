"""Preparation of one placement before time starts: costs, ranks, lists of units, crossing edges.

Each device gets a list of its units by falling rank. Units go into as many buckets as there are
units, by rank, and units that share a bucket are then sorted: linear time if ranks are spread out.
Crowded buckets are divided once; if that does not help, a heap sorts.
"""

from __future__ import annotations

import numpy as np

from placewright.core.arrays import IntArray
from placewright.simulation.compiled import inlined, uncounted
from placewright.simulation.event.instructions import prefetch
from placewright.simulation.event.records import (
    NO_INDEX,
    NO_SLOT,
    ONE,
    TWO,
    ZERO,
    Record,
    Records,
    U,
)
from placewright.simulation.event.tables import (
    ARRIVING,
    DISPATCH,
    IN_TURN,
    N_COPIES,
    PLACES,
    RUNNING,
    EventTables,
    State,
    n_above,
)

_AHEAD = U(16)  # slots, whose units are asked for before they are needed
_CROWD = U(2)  # pairs in one bucket, per unit, above which buckets are divided
_PATIENCE = U(8)  # moves per unit after which a heap takes over


@uncounted
def prepare(
    tables: EventTables, state: State, device_of: IntArray, order: IntArray, keeps_segments: bool
) -> bool:
    """Write a placement into the state; False if a unit may not run on its device.

    Args:
        device_of: (n_units,).
        order: topological order of all units, or empty for the problem's rule of dispatch.
        keeps_segments: mark the units that begin or end a segment.
    """
    if not _load_units(tables, state, device_of):
        return False
    _set_devices(tables, state)
    _set_queues(state)
    if len(order) > 0:
        _list_by_order(state, order)
    elif tables.scalars[DISPATCH] == IN_TURN:
        _list_by_number(state)
    else:
        _rank(tables, state)
        _list_by_rank(state)
    if len(tables.factors):
        _contend(tables, state)
    if len(state.priority) > ZERO:
        _set_priorities(state, order)
    _fill_slots(tables, state)
    if keeps_segments:
        _mark_crossings(tables, state)
        for index in range(ZERO, U(len(state.segments))):
            state.segments[index].segments = ZERO
            state.segments[index].ops = ZERO
            state.segments[index].copied = ZERO
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
def _set_queues(state: State) -> None:
    """Assign each device its part of lists and heaps; `stop` holds the number of its units."""
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
    """List units by number: under `fifo` their order in the list does not matter."""
    for index in range(ZERO, U(len(state.devices))):
        state.devices[index].stop = state.devices[index].first
    for index in range(ZERO, U(len(state.units))):
        device = state.devices[state.units[index].device]
        state.slots[device.stop].unit = index
        device.stop += ONE


@uncounted
def _set_priorities(state: State, order: IntArray) -> None:
    """Keep what decides between devices that share processors: places in the order, or ranks."""
    for index in range(ZERO, U(len(state.units))):
        state.priority[index] = state.units[index].seconds
    for at in range(ZERO, U(len(order))):
        state.priority[U(order[at])] = -float(at)


@uncounted
def _fill_slots(tables: EventTables, state: State) -> None:
    """Copy the fields that the loop needs into each slot; set the place of each unit."""
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


@uncounted
def _list_by_rank(state: State) -> None:
    """Put each device's units into its slots by falling rank, equal ranks by number."""
    _fill_buckets(state)
    for index in range(ZERO, U(len(state.devices))):
        device = state.devices[index]
        first, stop = U(device.first), U(device.stop)
        if not _sort_by_insertion(state.slots, first, stop):
            _sort_by_heap(state.slots, first, stop - first)


@uncounted
def _fill_buckets(state: State) -> None:
    """List units by device and bucket, units of one bucket by number."""
    n_units, buckets, units = U(len(state.units)), state.buckets, state.units
    n_ranks = n_units // U(len(state.devices)) + ONE
    longest = 0.0
    for index in range(ZERO, n_units):
        rank = units[index].seconds
        longest = rank if rank > longest else longest
    per_second = float(n_ranks) / longest if longest > 0.0 else 0.0
    for index in range(ZERO, U(len(buckets))):
        buckets[index] = ZERO
    for index in range(ZERO, n_units):
        unit = units[index]
        bucket, _ = _bucket(unit, longest, per_second, n_ranks)
        unit.place = bucket
        buckets[bucket] += ONE
    if _number(buckets) > _CROWD * n_units:
        _divide(state, longest, per_second, n_ranks)
        buckets = state.parts
        _number(buckets)
    for index in range(ZERO, n_units):
        unit = units[index]
        bucket = U(unit.place)
        at = U(buckets[bucket])
        buckets[bucket] = at + ONE
        state.slots[at].seconds = unit.seconds
        state.slots[at].unit = index


@inlined
def _bucket(unit: Record, longest: float, per_second: float, n_ranks: int) -> tuple[int, float]:
    """Bucket of a unit, and its position within the bucket, 0 to 1."""
    below, last = (longest - unit.seconds) * per_second, float(n_ranks - ONE)
    # NaN, from an infinite rank, goes to the last bucket.
    at = U(np.int64(below if below < last else last))
    return U(unit.device) * n_ranks + at, below - float(at)


@uncounted
def _number(buckets: IntArray) -> int:
    """Replace each count by the number of units before; return the pairs that share a bucket."""
    first, pairs = ZERO, ZERO
    for index in range(ZERO, U(len(buckets))):
        count = U(buckets[index])
        pairs += count * count - count
        buckets[index] = first
        first += count
    return pairs >> ONE


@uncounted
def _divide(state: State, longest: float, per_second: float, n_ranks: int) -> None:
    """Give each bucket as many parts as it has units, and count the units of each part."""
    parts, buckets, n_units = state.parts, state.buckets, U(len(state.units))
    for index in range(ZERO, n_units):
        parts[index] = ZERO
    for index in range(ZERO, n_units):
        unit = state.units[index]
        bucket, within = _bucket(unit, longest, per_second, n_ranks)
        first = U(buckets[bucket])
        count = U(buckets[bucket + ONE]) - first
        part, last = within * float(count), float(count - ONE)
        unit.place = first + U(np.int64(part if part < last else last))
        parts[unit.place] += ONE


@uncounted
def _sort_by_insertion(slots: Records, first: int, stop: int) -> bool:
    """Sort ``slots[first:stop]``; False, with the slots permuted, if that takes too long."""
    moves, limit = ZERO, _PATIENCE * (stop - first)
    for at in range(first + ONE, stop):
        rank, number, place = slots[at].seconds, U(slots[at].unit), U(at)
        while place > first and slots[place - ONE].seconds < rank:
            slots[place].seconds = slots[place - ONE].seconds
            slots[place].unit = slots[place - ONE].unit
            place -= ONE
        slots[place].seconds = rank
        slots[place].unit = number
        moves += at - place
        if moves > limit:
            return False
    return True


@uncounted
def _sort_by_heap(slots: Records, first: int, size: int) -> None:
    for root in range(size // TWO, ZERO, -1):
        at = first + U(root) - ONE
        _sift(slots, first, U(root) - ONE, size, slots[at].seconds, U(slots[at].unit))
    last = size
    while last > ONE:
        last -= ONE
        rank, number = slots[first + last].seconds, U(slots[first + last].unit)
        slots[first + last].seconds = slots[first].seconds
        slots[first + last].unit = slots[first].unit
        _sift(slots, first, ZERO, last, rank, number)


@uncounted
def _sift(slots: Records, first: int, at: int, size: int, rank: float, number: int) -> None:
    """Sift a unit down from `at` in a heap with the last unit on top."""
    while TWO * at + ONE < size:
        child = TWO * at + ONE
        below = slots[first + child]
        if child + ONE < size:
            other = slots[first + child + ONE]
            if _precedes(below.seconds, U(below.unit), other.seconds, U(other.unit)):
                child += ONE
        below = slots[first + child]
        if not _precedes(rank, number, below.seconds, U(below.unit)):
            break
        slots[first + at].seconds = below.seconds
        slots[first + at].unit = below.unit
        at = child
    slots[first + at].seconds = rank
    slots[first + at].unit = number


@inlined
def _precedes(rank: float, unit: int, other_rank: float, other: int) -> bool:
    return bool(rank > other_rank or (rank == other_rank and unit < other))

"""Transfers: a tensor reaches its readers at once, by one hop, or by two through the host.

Queues of the event kernel: entries by time, ready units, tensors on their way to the host.

*Entries*, smallest (key, unit) first, are units on their way, and units that end. Their queue is a
short sorted window, because most have a handful of entries and a new one mostly goes to the end;
what does not fit spills into a binary heap behind it, so that the cost of an entry stays
logarithmic. Every entry of the window precedes every entry of the heap.

*Ready units* of a device are a set of bits by falling rank, so that the first one is next. A word
has a bit for each of 64 places, a word above it one for each of 64 words that is not empty. All
words are one array, in which word w has its bit in word w // 64, so the upper ones come first. The
first place is always known before it is asked for. To add and to take touch one word of each level,
without a choice that depends on the data, however many units are ready. The places of a device
begin with an upper word, so that no two devices share one. Where devices take units in the order in
which they become ready, a queue of entries takes the place of the set: a unit joins it when its
last input is sent, with the time at which that will arrive.

*Relays* are first hops of two that are under way, a heap by (end, tensor, target).
"""

from __future__ import annotations

import numpy as np

from placewright.simulation.compiled import inlined, uncounted
from placewright.simulation.event.instructions import choose, trailing_zeros
from placewright.simulation.event.records import (
    FIRST_HOP,
    IN_ONE_HOP,
    LOWER_HALF,
    MADE_HERE,
    NO_SLOT,
    NOWHERE,
    ONE,
    QUARTER,
    SECOND_HOP,
    TWO,
    WINDOW,
    ZERO,
    Record,
    Records,
    U,
)
from placewright.simulation.event.tables import (
    ARRIVING,
    AS_LISTED,
    FAULT,
    FAULT_AT,
    HOST,
    IN_TURN,
    N_COPIES,
    N_RELAYS,
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


_HALF = U(32)  # of a window
_BITS = U(6)  # of the number of a bit in its word
_MASK = U(63)


@inlined
def put(queues: Records, window: Records, heap: Records, at: int, key: float, unit: int) -> None:
    """Add an entry to queue `at`."""
    queue = queues[at]
    if queue.tail == WINDOW:
        _make_room(queues, window, heap, at)
    base = at * WINDOW
    first, place = base + queue.head, base + queue.tail
    if queue.spilled > ZERO and _entry_precedes(window[place - ONE], key, unit):
        _push(heap, U(queue.heap), U(queue.spilled), key, unit)
        queue.spilled += ONE
    else:
        while place > first:
            other = window[place - ONE].key
            if other <= key and (other < key or window[place - ONE].unit < unit):
                break
            window[place].key = other
            window[place].unit = window[place - ONE].unit
            place -= ONE
        window[place].key = key
        window[place].unit = unit
        queue.tail += ONE


@inlined
def _entry_precedes(entry: Record, key: float, unit: int) -> bool:
    return bool(entry.key < key or (entry.key == key and entry.unit < unit))


@inlined
def drop(queues: Records, window: Records, heap: Records, at: int) -> None:
    """Remove the first entry of queue `at`, which is ``window[at * WINDOW + queues[at].head]``."""
    queue = queues[at]
    queue.head += ONE
    if queue.head == queue.tail:
        queue.head = ZERO
        queue.tail = ZERO
        if queue.spilled > ZERO:
            _refill(queues, window, heap, at)


@uncounted
def _make_room(queues: Records, window: Records, heap: Records, at: int) -> None:
    """Move a full window to its front, or its later half into the heap."""
    queue, base = queues[at], at * WINDOW
    head = U(queue.head)
    if head > ZERO:
        for index in range(head, WINDOW):
            window[base + index - head].key = window[base + index].key
            window[base + index - head].unit = window[base + index].unit
        queue.head = ZERO
        queue.tail = WINDOW - head
        return
    for index in range(_HALF, WINDOW):
        entry = window[base + index]
        _push(heap, U(queue.heap), U(queue.spilled), entry.key, U(entry.unit))
        queue.spilled += ONE
    queue.tail = _HALF


@uncounted
def _refill(queues: Records, window: Records, heap: Records, at: int) -> None:
    """Move the heap's first entries into an empty window."""
    queue, base = queues[at], at * WINDOW
    n_moved = min(U(queue.spilled), _HALF)
    for index in range(ZERO, n_moved):
        top = heap[U(queue.heap)]
        window[base + index].key = top.key
        window[base + index].unit = top.unit
        queue.spilled -= ONE
        _drop_top(heap, U(queue.heap), U(queue.spilled))
    queue.tail = n_moved


@uncounted
def _push(heap: Records, base: int, size: int, key: float, unit: int) -> None:
    at = size
    while at > ZERO:
        above = (at - ONE) >> ONE
        entry = heap[base + above]
        if entry.key < key or (entry.key == key and entry.unit < unit):
            break
        heap[base + at].key = entry.key
        heap[base + at].unit = entry.unit
        at = above
    heap[base + at].key = key
    heap[base + at].unit = unit


@uncounted
def _drop_top(heap: Records, base: int, size: int) -> None:
    """Remove the top: sift the last entry, at `size`, down from there."""
    key, unit = heap[base + size].key, heap[base + size].unit
    at = ZERO
    while TWO * at + ONE < size:
        child = TWO * at + ONE
        below = heap[base + child]
        if child + ONE < size:
            other = heap[base + child + ONE]
            if other.key < below.key or (other.key == below.key and other.unit < below.unit):
                child += ONE
        below = heap[base + child]
        if key < below.key or (key == below.key and unit < below.unit):
            break
        heap[base + at].key = below.key
        heap[base + at].unit = below.unit
        at = child
    heap[base + at].key = key
    heap[base + at].unit = unit


@inlined
def add_ready(state: State, index: int, place: int, is_ready: int) -> None:
    """Add a place to the set of device `index` if `is_ready` is 1, else do nothing."""
    device, words = state.devices[index], state.ready
    word = place >> _BITS
    words[word] |= is_ready << (place & _MASK)
    words[word >> _BITS] |= is_ready << (word & _MASK)
    candidate = place | (is_ready - ONE)  # the largest number where it is not ready
    device.best = min(U(device.best), candidate)


@uncounted
def join_queue(state: State, index: int, time: float, number: int) -> None:
    """Queue a unit that becomes ready at `time`; among equal times lower numbers go first."""
    at = U(ARRIVING) * U(len(state.devices)) + index
    put(state.queues, state.window, state.heap, at, time, number)


@inlined
def take_ready(state: State, index: int) -> int:
    """Remove the first slot of a set that is not empty, and return it."""
    device, words = state.devices[index], state.ready
    place = U(device.best)
    word = place >> _BITS
    left = words[word] & (words[word] - ONE)
    words[word] = left
    at = word >> _BITS
    left_above = words[at] & ~(U(left == ZERO) << (word & _MASK))
    words[at] = left_above
    last = (U(device.stop) + U(device.shift) - ONE) >> (_BITS + _BITS)
    while left_above == ZERO and at < last:
        at += ONE
        left_above = words[at]
    word = at << _BITS | trailing_zeros(left_above)
    device.best = NO_SLOT
    if left_above != ZERO:
        device.best = word << _BITS | trailing_zeros(words[word])
    return place - U(device.shift)


@inlined
def _relay_precedes(relay: Record, other: Record) -> bool:
    if relay.time != other.time:
        return bool(relay.time < other.time)
    if relay.tensor != other.tensor:
        return bool(relay.tensor < other.tensor)
    return bool(relay.target < other.target)


@uncounted
def add_relay(state: State, time: float, tensor: int, target: int) -> None:
    """Add a tensor that reaches the host at `time` and then goes on to `target`."""
    relays, at = state.relays, U(state.counts[N_RELAYS])
    state.counts[N_RELAYS] += 1
    relays[at].time = time
    relays[at].tensor = tensor
    relays[at].target = target
    while at > ZERO:
        above = (at - ONE) >> ONE
        if _relay_precedes(relays[above], relays[at]):
            break
        _swap_relays(relays, above, at)
        at = above


@uncounted
def pop_relay(state: State) -> tuple[float, int, int]:
    """Remove the first relay and return its time, tensor and target."""
    relays = state.relays
    time, tensor, target = relays[ZERO].time, U(relays[ZERO].tensor), U(relays[ZERO].target)
    state.counts[N_RELAYS] -= 1
    size = U(state.counts[N_RELAYS])
    _swap_relays(relays, ZERO, size)
    at = ZERO
    while TWO * at + ONE < size:
        child = TWO * at + ONE
        if child + ONE < size and _relay_precedes(relays[child + ONE], relays[child]):
            child += ONE
        if _relay_precedes(relays[at], relays[child]):
            break
        _swap_relays(relays, at, child)
        at = child
    return time, tensor, target


@inlined
def _swap_relays(relays: Records, at: int, other: int) -> None:
    time, tensor, target = relays[at].time, relays[at].tensor, relays[at].target
    relays[at].time = relays[other].time
    relays[at].tensor = relays[other].tensor
    relays[at].target = relays[other].target
    relays[other].time = time
    relays[other].tensor = tensor
    relays[other].target = target

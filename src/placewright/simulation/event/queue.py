"""Queues of the event kernel: smallest (key, unit) first.

A queue is a short sorted window, because most have a handful of entries and a new one mostly goes
to the end; what does not fit spills into a binary heap behind it, so that the cost of an entry
stays logarithmic. Every entry of the window precedes every entry of the heap.
"""

from __future__ import annotations

from placewright.simulation.compiled import inlined, uncounted
from placewright.simulation.records import ONE, TWO, ZERO, Record, Records, U

WINDOW = U(64)
_HALF = U(32)


@inlined
def put(queues: Records, window: Records, heap: Records, at: int, key: float, unit: int) -> None:
    """Add an entry to queue `at`."""
    queue = queues[at]
    if queue.tail == WINDOW:
        _make_room(queues, window, heap, at)
    base = at * WINDOW
    first, place = base + queue.head, base + queue.tail
    if queue.spilled > ZERO and _precedes(window[place - ONE], key, unit):
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
def _precedes(entry: Record, key: float, unit: int) -> bool:
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
    """Bring the heap's first entries into an empty window."""
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
    """Move the entry at `size`, the last, to where it belongs after the top is gone."""
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

"""Peak bytes of each device, computed after a placement was played.

A copy of a tensor occupies its device from the start of its producer, or of the hop that brings it,
until its last reader there and its last outgoing hop have ended. Intervals are half open, so that
copies that end and begin at one instant never count together.

Time is divided into slices. All bytes that come within a slice bound the bytes in it from above,
and the bytes at its end are a true value; only slices whose bound exceeds the largest true value
are examined event by event.
"""

from __future__ import annotations

import numpy as np

from placewright.core.arrays import FloatArray
from placewright.simulation.compiled import inlined, uncounted
from placewright.simulation.event.instructions import choose
from placewright.simulation.event.records import (
    FIRST_HOP,
    LOWER_QUARTER,
    NO_SLOT,
    ONE,
    QUARTER,
    TWO,
    ZERO,
    Records,
    U,
)
from placewright.simulation.event.tables import (
    FEW,
    HOST,
    N_COPIES,
    EventTables,
    State,
    slices_per_device,
)

_ROUNDED_UP = 1.0 + 1e-9  # sums in another order differ by less


@uncounted
def memory_peaks(tables: EventTables, state: State, makespan: float, peaks: FloatArray) -> None:
    """Write peak bytes (n_devices,) of a placement that has been played to its end."""
    n_units, n_devices = tables.seconds.shape
    n_slices = U(slices_per_device(n_units, n_devices))
    per_second = float(n_slices) / makespan if makespan > 0.0 else 0.0
    _find_ends(tables, state)
    _fill_slices(tables, state, n_slices, per_second if per_second < np.inf else 0.0, makespan)
    for device in range(n_devices):
        peaks[device] = 0.0
    _add_resident(tables, state, peaks)
    for device in range(ZERO, U(n_devices)):
        first = device * (n_slices + ONE)
        peaks[device] = _peak(tables, state, first, first + n_slices + ONE, peaks[device])


@uncounted
def holds_everything(tables: EventTables, state: State, held: FloatArray) -> bool:
    """True if each device has room for all tensors that were ever on it: no peak is too large.

    Args:
        held: shape (n_devices,), to write into.
    """
    n_devices, n_tensors = U(tables.seconds.shape[1]), U(len(tables.tensors) - 1)
    for device in range(n_devices):
        held[device] = 0.0
    _add_resident(tables, state, held)
    for number in range(ZERO, n_tensors):
        device, _ = _made(tables, state, number)
        if device < n_devices:
            held[device] += tables.origins[number].bytes
    for copy in range(n_tensors, U(state.counts[N_COPIES])):
        hop = state.hops[copy]
        target = hop.way & LOWER_QUARTER
        if target < n_devices and hop.way >> QUARTER != FIRST_HOP:
            held[target] += tables.origins[hop.tensor].bytes
    for device in range(n_devices):
        if held[device] * _ROUNDED_UP > tables.devices[device].memory:
            return False
    return bool(full_pool(tables, held, _ROUNDED_UP) < 0)


@uncounted
def full_pool(tables: EventTables, used: FloatArray, factor: float) -> int:
    """The first shared pool whose devices take too much together; -1 for none.

    Args:
        used: bytes of each device, shape (n_devices,).
        factor: that their sum is multiplied by.
    """
    n_members, total = U(len(tables.pools)), 0.0
    for at in range(ZERO, n_members):
        member = tables.pools[at]
        total += used[member.device] * member.share
        if at + ONE == n_members or tables.pools[at + ONE].pool != member.pool:
            if total * factor > member.bytes:
                return int(member.pool)
            total = 0.0
    return -1


@uncounted
def _peak(tables: EventTables, state: State, first: int, stop: int, resident: float) -> float:
    """Most bytes within the slices ``first:stop`` of a device.

    The slice with the highest bound comes first, because its peak rules out most of the others.
    No slice comes twice: looking at it may sort its chain, so that its head is no longer first.
    """
    slices, used = state.slices, resident
    most, highest, before = _most_at_ends(slices, first, stop, resident)
    most = max(most, _most_within(tables, state, U(slices[highest].head), before))
    for at in range(first, stop):
        bound = used + slices[at].come
        if bound > most and at != highest:
            most = max(most, _most_within(tables, state, U(slices[at].head), used))
        used = bound - slices[at].go
    return most


@uncounted
def _find_ends(tables: EventTables, state: State) -> None:
    """Raise `copy_ends`, so far the last use by a hop, to the last end of a reader."""
    ends = state.copy_ends
    for edge in range(ZERO, U(len(tables.readers))):
        copy, end = state.copy_of_edge[edge], state.spans[tables.readers[edge]].end
        before = ends[copy]
        ends[copy] = end if end > before else before


@uncounted
def _fill_slices(
    tables: EventTables, state: State, n_slices: int, per_second: float, makespan: float
) -> None:
    n_tensors, n_devices = U(len(tables.tensors) - 1), U(tables.seconds.shape[1])
    slices = state.slices
    for index in range(ZERO, U(len(slices))):
        slices[index].come = 0.0
        slices[index].go = 0.0
        slices[index].head = ZERO
    for number in range(ZERO, n_tensors):
        device, start = _made(tables, state, number)
        if device < n_devices:
            size = tables.origins[number].bytes
            _add(state, number, device, n_slices, per_second, makespan, size, start)
    for copy in range(n_tensors, U(state.counts[N_COPIES])):
        hop = state.hops[copy]
        target = hop.way & LOWER_QUARTER
        if target < n_devices and hop.way >> QUARTER != FIRST_HOP:
            size = tables.origins[hop.tensor].bytes
            _add(state, copy, target, n_slices, per_second, makespan, size, hop.start)


@inlined
def _made(tables: EventTables, state: State, number: int) -> tuple[int, float]:
    """Endpoint on which a tensor is made, and the time in seconds from which it occupies bytes."""
    producer = tables.origins[number].producer
    if producer < U(len(state.units)):
        return U(state.units[producer].device), float(state.spans[producer].start)
    return U(tables.scalars[HOST]), 0.0


@inlined
def _add(
    state: State,
    copy: int,
    device: int,
    n_slices: int,
    per_second: float,
    makespan: float,
    size: float,
    start: float,
) -> None:
    """Count a copy in the slices where it comes and goes, and chain it to their events.

    A copy comes as event 2 * copy + 1 and goes as the next event; 0 ends a chain. Copies that stay
    count as if they went with the makespan, which, rounded, is in the slice behind the last.
    """
    slices, following, first = state.slices, state.chain, device * (n_slices + ONE)
    here = slices[first + U(np.int64(start * per_second))]
    here.come += size
    following[copy + copy] = here.head
    here.head = copy + copy + ONE
    end = min(state.copy_ends[copy], makespan)
    there = slices[first + U(np.int64(end * per_second))]
    there.go += size
    following[copy + copy + ONE] = there.head
    there.head = copy + copy + TWO


@uncounted
def _add_resident(tables: EventTables, state: State, used: FloatArray) -> None:
    """Add weights, each once per device that has a unit that keeps it."""
    n_weights = U(len(tables.weights) - 1)
    for index in range(ZERO, U(len(state.endpoints))):
        state.endpoints[index].copy = NO_SLOT
    for weight in range(ZERO, n_weights):
        first, stop = U(tables.weights[weight].unit), U(tables.weights[weight + ONE].unit)
        for at in range(first, stop):
            device = U(state.units[tables.weight_units[at]].device)
            if state.endpoints[device].copy != weight:
                state.endpoints[device].copy = weight
                used[device] += tables.weights[weight].bytes


@uncounted
def _most_at_ends(slices: Records, first: int, stop: int, used: float) -> tuple[float, int, float]:
    """Most bytes at an end of a slice, the slice with the highest bound, bytes at its beginning."""
    most, highest, highest_at, before = used, used, first, used
    for at in range(first, stop):
        bound = used + slices[at].come
        if bound > highest:
            highest, highest_at, before = bound, at, used
        used = bound - slices[at].go
        most = max(most, used)
    return most, highest_at, before


@uncounted
def _most_within(tables: EventTables, state: State, head: int, used: float) -> float:
    """Most bytes in one slice that begins with `used` bytes."""
    changes, event, n_changes = state.changes, head, ZERO
    while event > ZERO and n_changes < FEW:
        change, time = _change_and_time(tables, state, event)
        changes[n_changes].bytes = change
        changes[n_changes].time = time
        n_changes += ONE
        event = U(state.chain[event - ONE])
    if event > ZERO:
        return _most_of_many(tables, state, head, used)
    # Comparing all pairs needs no branch; sorting so few would mostly be mispredicted branches.
    most = used
    for index in range(ZERO, n_changes):
        time, total = changes[index].time, used
        for other in range(ZERO, n_changes):
            total += choose(changes[other].time <= time, changes[other].bytes, 0.0)
        most = max(most, total)
    return most


@uncounted
def _most_of_many(tables: EventTables, state: State, head: int, used: float) -> float:
    """Most bytes in one slice, by sorting its events."""
    event, most = _sorted_chain(tables, state, head), used
    while event > ZERO:
        following = U(state.chain[event - ONE])
        size, time = _change_and_time(tables, state, event)
        used += size
        if following == ZERO or _change_and_time(tables, state, following)[1] > time:
            most = max(most, used)
        event = following
    return most


@uncounted
def _sorted_chain(tables: EventTables, state: State, head: int) -> int:
    """Sort a chain by time in place, merging runs of 1, 2, 4 ... events, and return its head."""
    length = ONE
    while True:
        left, head, tail, n_merges = head, ZERO, ZERO, 0
        while left > ZERO:
            n_merges += 1
            right, n_left = left, ZERO
            while n_left < length and right > ZERO:
                right = U(state.chain[right - ONE])
                n_left += ONE
            n_right = length
            while n_left > ZERO or (n_right > ZERO and right > ZERO):
                takes_left = n_right == ZERO or right == ZERO
                if not takes_left and n_left > ZERO:
                    left_time = _change_and_time(tables, state, left)[1]
                    takes_left = left_time <= _change_and_time(tables, state, right)[1]
                if takes_left:
                    event, n_left = left, n_left - ONE
                    left = U(state.chain[left - ONE])
                else:
                    event, n_right = right, n_right - ONE
                    right = U(state.chain[right - ONE])
                if tail == ZERO:
                    head = event
                else:
                    state.chain[tail - ONE] = event
                tail = event
            left = right
        if tail > ZERO:
            state.chain[tail - ONE] = ZERO
        if n_merges <= 1:
            return head
        length += length


@inlined
def _change_and_time(tables: EventTables, state: State, event: int) -> tuple[float, float]:
    """Bytes that an event adds, and when."""
    copy = (event - ONE) >> ONE
    size, start = _size_and_start(tables, state, copy)
    if (event - ONE) & ONE == ZERO:
        return size, start
    return -size, float(state.copy_ends[copy])


@inlined
def _size_and_start(tables: EventTables, state: State, copy: int) -> tuple[float, float]:
    n_tensors, n_units = U(len(tables.tensors) - 1), U(len(state.units))
    if copy >= n_tensors:
        hop = state.hops[copy]
        return float(tables.origins[hop.tensor].bytes), float(hop.start)
    tensor = tables.origins[copy]
    if tensor.producer == n_units:
        return float(tensor.bytes), 0.0
    return float(tensor.bytes), float(state.spans[tensor.producer].start)

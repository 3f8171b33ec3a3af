"""The event kernel: one placement through time, as the design's execution model `event` says.

All events of one instant are handled in the order of (unit, tensor, endpoint) before any device
begins a unit. A tensor occupies memory in half-open intervals, so that what ends and what begins at
one instant never count together.
"""

from __future__ import annotations

import numpy as np

from placewright.core.arrays import FloatArray, IntArray
from placewright.simulation.compiled import compiled, inlined, uncounted
from placewright.simulation.event_arrays import DIRECT, NO_ROUTE, EventArrays
from placewright.simulation.event_state import (
    CUT_OFF,
    FAULT,
    FAULT_AT,
    FINE,
    N_DONE,
    N_EVENTS,
    N_HOPS,
    N_SEGMENTS,
    N_TOUCHED,
    N_TRANSFERS,
    TOO_LARGE,
    State,
    check,
    new_state,
)
from placewright.simulation.heap import drop_first, pop_ready, push, push_ready
from placewright.simulation.ranks import hop_seconds, ranks_of


@compiled
def run(
    arrays: EventArrays, device_of: IntArray, order: IntArray, record: bool
) -> tuple[float, int, int, State]:
    """Simulate one placement.

    Args:
        arrays: the problem.
        device_of: (n_units,).
        order: topological order of all units, or empty for rank dispatch.
        record: keep a log of all transfers.

    Returns:
        Makespan in seconds (inf with a fault), the fault, where it is, and the final state.
    """
    fault, at = check(arrays, device_of, order)
    if fault != FINE:
        empty = np.zeros(len(device_of), np.int64)
        return np.inf, fault, at, new_state(arrays, empty, order, np.empty(0), False)
    rank = np.empty(0) if len(order) else ranks_of(arrays, device_of)
    state = new_state(arrays, device_of, order, rank, record)
    last = _advance(arrays, state, device_of)
    if state.counts[FAULT] != FINE:
        return np.inf, state.counts[FAULT], state.counts[FAULT_AT], state
    return last, FINE, -1, state


# Without reference counts: nothing in the loop allocates, and counting would take most of the time.
@uncounted
def _advance(arrays: EventArrays, state: State, device_of: IntArray) -> float:
    """Let time pass until nothing more happens; the time of the last event."""
    _begin_time(arrays, state, device_of)
    last = 0.0
    while state.counts[N_EVENTS] > 0:
        now = state.times[0]
        last = max(last, now)
        while state.counts[N_EVENTS] > 0 and state.times[0] == now:
            load = state.loads[0]
            state.counts[N_EVENTS] = drop_first(
                state.times, state.keys, state.loads, state.counts[N_EVENTS]
            )
            if load < len(device_of):
                _end_unit(arrays, state, device_of, load, now)
            else:
                _end_hop(arrays, state, device_of, load - len(device_of), now)
        _begin_units(arrays, state, now)
    if state.counts[FAULT] == FINE:
        _check_memory(arrays, state)
    return last


@compiled
def evaluate(
    arrays: EventArrays, device_of: IntArray, order: IntArray
) -> tuple[float, int, int, FloatArray]:
    """Like `run`, for peak bytes (n_devices,) instead of the whole state."""
    value, fault, at, state = run(arrays, device_of, order, False)
    return value, fault, at, state.peak


@inlined
def _begin_time(arrays: EventArrays, state: State, device_of: IntArray) -> None:
    """Make ready what reads nothing, then send the graph inputs, which makes others ready."""
    for unit in range(len(device_of)):
        if state.missing[unit] == 0:
            _make_ready(state, device_of, unit)
    for tensor in range(len(arrays.producer)):
        if arrays.producer[tensor] < 0:
            _send(arrays, state, device_of, tensor, arrays.host, 0.0)
            if arrays.host < len(state.busy) and state.tensor_users[tensor] > 0:
                _use_memory(state, arrays.host, arrays.tensor_bytes[tensor], 0.0)
    for device in range(len(state.busy)):
        _touch(state, device)
    _begin_units(arrays, state, 0.0)


@inlined
def _make_ready(state: State, device_of: IntArray, unit: int) -> None:
    device = device_of[unit]
    if len(state.rank):
        state.queue_size[device] = push_ready(
            state.queue, state.queue_start[device], state.queue_size[device], unit, state.rank
        )
    _touch(state, device)


@inlined
def _touch(state: State, device: int) -> None:
    if not state.is_touched[device]:
        state.is_touched[device] = True
        state.touched[state.counts[N_TOUCHED]] = device
        state.counts[N_TOUCHED] += 1


@inlined
def _begin_units(arrays: EventArrays, state: State, now: float) -> None:
    """Let every device with a free stream begin what it may, in the order of its rule."""
    for index in range(state.counts[N_TOUCHED]):
        device = state.touched[index]
        state.is_touched[device] = False
        start, stop = state.queue_start[device], state.queue_start[device + 1]
        while state.busy[device] < arrays.streams[device]:
            if len(state.rank):
                if state.queue_size[device] == 0:
                    break
                unit = pop_ready(state.queue, start, state.queue_size[device], state.rank)
                state.queue_size[device] -= 1
            else:
                at = start + state.queue_size[device]
                if at == stop or state.missing[state.queue[at]] > 0:
                    break
                unit = state.queue[at]
                state.queue_size[device] += 1
            _begin_unit(arrays, state, device, unit, now)
    state.counts[N_TOUCHED] = 0


@inlined
def _begin_unit(arrays: EventArrays, state: State, device: int, unit: int, now: float) -> None:
    seconds = state.duration[unit]
    if state.open_segment[device] < 0 or state.remote_in[unit]:
        state.segment[unit] = state.counts[N_SEGMENTS]
        state.counts[N_SEGMENTS] += 1
        seconds += arrays.dispatch[device]
    else:
        state.segment[unit] = state.open_segment[device]
    state.open_segment[device] = -1 if state.remote_out[unit] else state.segment[unit]
    if arrays.has_cuts:
        seconds += _cut_seconds(arrays, state, device, unit)
    state.start[unit] = now
    state.end[unit] = now + seconds
    state.busy[device] += 1
    for index in range(arrays.output_ptr[unit], arrays.output_ptr[unit + 1]):
        _use_memory(state, device, arrays.tensor_bytes[arrays.outputs[index]], now)
    stride = len(arrays.producer) * arrays.route.shape[0] + 1
    state.counts[N_EVENTS] = push(
        state.times,
        state.keys,
        state.loads,
        state.counts[N_EVENTS],
        now + seconds,
        (unit + 1) * stride,
        unit,
    )


@inlined
def _cut_seconds(arrays: EventArrays, state: State, device: int, unit: int) -> float:
    """What the tensors cost that enter the unit's segment with it."""
    seconds = 0.0
    segment = state.segment[unit]
    for index in range(arrays.input_ptr[unit], arrays.input_ptr[unit + 1]):
        tensor = arrays.inputs[index]
        producer = arrays.producer[tensor]
        if producer < 0 or state.segment[producer] == segment:
            continue
        place = len(arrays.consumers) + tensor
        slot = state.slot_of_edge[arrays.input_edge[index]]
        if slot >= 0:
            place = slot
        if state.charged[place] != segment:
            state.charged[place] = segment
            seconds += (
                arrays.cut[device] + arrays.tensor_bytes[tensor] * arrays.cut_per_byte[device]
            )
    return seconds


@inlined
def _end_unit(
    arrays: EventArrays, state: State, device_of: IntArray, unit: int, now: float
) -> None:
    device = device_of[unit]
    state.busy[device] -= 1
    state.counts[N_DONE] += 1
    _touch(state, device)
    for index in range(arrays.output_ptr[unit], arrays.output_ptr[unit + 1]):
        tensor = arrays.outputs[index]
        _send(arrays, state, device_of, tensor, device, now)
        if state.tensor_users[tensor] == 0:
            _use_memory(state, device, -arrays.tensor_bytes[tensor], now)
    for index in range(arrays.input_ptr[unit], arrays.input_ptr[unit + 1]):
        tensor = arrays.inputs[index]
        slot = state.slot_of_edge[arrays.input_edge[index]]
        if slot >= 0:
            state.slot_readers[slot] -= 1
            if state.slot_readers[slot] == 0:
                _use_memory(state, device, -arrays.tensor_bytes[tensor], now)
        else:
            _release(arrays, state, tensor, device, now)


@inlined
def _release(arrays: EventArrays, state: State, tensor: int, endpoint: int, now: float) -> None:
    """One reader or outgoing transfer of a tensor's original is done."""
    state.tensor_users[tensor] -= 1
    if state.tensor_users[tensor] == 0 and endpoint < len(state.busy):
        _use_memory(state, endpoint, -arrays.tensor_bytes[tensor], now)


@inlined
def _send(
    arrays: EventArrays, state: State, device_of: IntArray, tensor: int, source: int, now: float
) -> None:
    """Hand a tensor that exists now to its readers: here at once, elsewhere by a transfer."""
    first, stop = arrays.consumer_ptr[tensor], arrays.consumer_ptr[tensor + 1]
    users = 1 if arrays.is_output[tensor] else 0
    queued = state.counts[N_TRANSFERS]
    for edge in range(first, stop):
        reader = arrays.consumers[edge]
        device = device_of[reader]
        state.next_edge[edge] = -1
        if device == source:
            state.slot_of_edge[edge] = -1
            users += 1
            state.missing[reader] -= 1
            if state.missing[reader] == 0:
                _make_ready(state, device_of, reader)
        elif state.stamp[device] != tensor:
            state.stamp[device] = tensor
            state.first_edge[device] = state.last_edge[device] = edge
            state.slot_of_edge[edge] = edge
            state.slot_readers[edge] = 1
            _new_transfer(state, tensor, edge, device)
            users += 1
        else:
            slot = state.first_edge[device]
            state.slot_of_edge[edge] = slot
            state.slot_readers[slot] += 1
            state.next_edge[state.last_edge[device]] = edge
            state.last_edge[device] = edge
    if arrays.is_output[tensor] and source != arrays.host:
        if state.stamp[arrays.host] == tensor:
            state.slot_readers[state.first_edge[arrays.host]] += 1
        else:
            state.stamp[arrays.host] = tensor
            _new_transfer(state, tensor, -1, arrays.host)
            users += 1
    state.tensor_users[tensor] = users
    for transfer in range(queued, state.counts[N_TRANSFERS]):
        _first_hop(arrays, state, transfer, source, now)


@inlined
def _new_transfer(state: State, tensor: int, slot: int, target: int) -> None:
    transfer = state.counts[N_TRANSFERS]
    state.counts[N_TRANSFERS] += 1
    state.transfer_tensor[transfer] = tensor
    state.transfer_slot[transfer] = slot
    state.transfer_target[transfer] = target


@inlined
def _first_hop(arrays: EventArrays, state: State, transfer: int, source: int, now: float) -> None:
    target = state.transfer_target[transfer]
    route = arrays.route[source, target]
    if route == NO_ROUTE:
        state.counts[FAULT] = CUT_OFF
        state.counts[FAULT_AT] = state.transfer_tensor[transfer]
        return
    _queue_hop(arrays, state, transfer, source, target if route == DIRECT else arrays.host, now)


@inlined
def _queue_hop(
    arrays: EventArrays, state: State, transfer: int, source: int, target: int, now: float
) -> None:
    """Wait for the channel, first come first served, or take it at once."""
    channel = arrays.channel[source, target]
    state.transfer_from[transfer] = source
    state.transfer_to[transfer] = target
    state.transfer_next[transfer] = -1
    if state.head[channel] >= 0:
        state.transfer_next[state.tail[channel]] = transfer
        state.tail[channel] = transfer
        return
    state.head[channel] = state.tail[channel] = transfer
    _begin_hop(arrays, state, transfer, now)


@inlined
def _begin_hop(arrays: EventArrays, state: State, transfer: int, now: float) -> None:
    tensor = state.transfer_tensor[transfer]
    source, target = state.transfer_from[transfer], state.transfer_to[transfer]
    if target == state.transfer_target[transfer] and target < len(state.busy):
        _use_memory(state, target, arrays.tensor_bytes[tensor], now)
    end = now + hop_seconds(arrays, tensor, source, target)
    if len(state.hop_end):
        hop = state.counts[N_HOPS]
        state.hops[0, hop], state.hops[1, hop] = transfer, source
        state.hops[2, hop], state.hops[3, hop] = target, now
        state.hop_end[hop] = end
        state.counts[N_HOPS] += 1
    n_endpoints = arrays.route.shape[0]
    stride = len(arrays.producer) * n_endpoints + 1
    key = (arrays.producer[tensor] + 1) * stride + 1
    key += tensor * n_endpoints + state.transfer_target[transfer]
    state.counts[N_EVENTS] = push(
        state.times,
        state.keys,
        state.loads,
        state.counts[N_EVENTS],
        end,
        key,
        len(state.missing) + transfer,
    )


@inlined
def _end_hop(
    arrays: EventArrays, state: State, device_of: IntArray, transfer: int, now: float
) -> None:
    """Free the channel for the next transfer; go on to the second hop, or arrive."""
    source, target = state.transfer_from[transfer], state.transfer_to[transfer]
    channel = arrays.channel[source, target]
    following = state.transfer_next[transfer]
    state.head[channel] = following
    if following >= 0:
        _begin_hop(arrays, state, following, now)
    tensor = state.transfer_tensor[transfer]
    producer = arrays.producer[tensor]
    if source == (device_of[producer] if producer >= 0 else arrays.host):
        _release(arrays, state, tensor, source, now)
    if target != state.transfer_target[transfer]:
        _queue_hop(arrays, state, transfer, target, state.transfer_target[transfer], now)
        return
    edge = state.transfer_slot[transfer]
    while edge >= 0:
        reader = arrays.consumers[edge]
        state.missing[reader] -= 1
        if state.missing[reader] == 0:
            _make_ready(state, device_of, reader)
        edge = state.next_edge[edge]


@inlined
def _use_memory(state: State, device: int, size: float, now: float) -> None:
    if now > state.changed[device]:
        state.peak[device] = max(state.peak[device], state.usage[device])
        state.changed[device] = now
    state.usage[device] += size


@inlined
def _check_memory(arrays: EventArrays, state: State) -> None:
    for device in range(len(state.busy)):
        state.peak[device] = max(state.peak[device], state.usage[device])
        if state.peak[device] > arrays.memory[device] and state.counts[FAULT] == FINE:
            state.counts[FAULT] = TOO_LARGE
            state.counts[FAULT_AT] = device

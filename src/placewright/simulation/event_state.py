"""The event kernel's working memory, and what of it is prepared before time starts."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewright.core.arrays import BoolArray, FloatArray, IntArray
from placewright.simulation.compiled import compiled, uncounted
from placewright.simulation.event_arrays import EventArrays

# Why a placement has no value.
FINE, NOT_ALLOWED, SPLIT_CLASS, BAD_ORDER, CUT_OFF, TOO_LARGE = 0, 1, 2, 3, 4, 5
# Entries of State.counts.
N_EVENTS, N_TRANSFERS, N_DONE, N_SEGMENTS, N_HOPS, FAULT, FAULT_AT, N_TOUCHED = range(8)


class State(NamedTuple):
    """Arrays that change while time passes.

    A *slot* is the copy of a tensor on a device that did not make it, named by the first edge
    that reads it there. A *transfer* is a tensor on its way to one endpoint, in one or two hops.
    """

    duration: FloatArray  # (n_units,) seconds without overheads, contention included
    rank: FloatArray  # (n_units,); empty where an order is given
    missing: IntArray  # (n_units,) inputs that are not there yet
    start: FloatArray
    end: FloatArray
    segment: IntArray  # (n_units,)
    remote_in: BoolArray  # (n_units,) reads a tensor that another device made
    remote_out: BoolArray  # (n_units,) makes a tensor that another device reads
    queue: IntArray  # per device: ready heap, or its part of the order
    queue_start: IntArray  # (n_devices + 1,)
    queue_size: IntArray  # (n_devices,): entries of the heap, or units begun in order
    busy: IntArray  # (n_devices,) streams
    touched: IntArray  # (n_devices,) devices that may begin a unit now
    is_touched: BoolArray
    times: FloatArray
    keys: IntArray
    loads: IntArray
    head: IntArray  # (n_channels,) transfer on the channel, -1 when idle
    tail: IntArray
    transfer_tensor: IntArray
    transfer_slot: IntArray  # -1 for a graph output that nobody reads at the host
    transfer_target: IntArray
    transfer_from: IntArray  # endpoints of the present hop
    transfer_to: IntArray
    transfer_next: IntArray
    slot_of_edge: IntArray
    next_edge: IntArray  # next reader on the same device, -1 at the end
    slot_readers: IntArray
    tensor_users: IntArray  # readers and outgoing transfers of the original
    usage: FloatArray  # (n_devices,) bytes
    peak: FloatArray
    changed: FloatArray  # (n_devices,) when usage last changed
    stamp: IntArray  # (M,)
    first_edge: IntArray  # (M,)
    last_edge: IntArray  # (M,)
    open_segment: IntArray  # (n_devices,) -1 where the next unit begins a segment
    charged: IntArray  # per edge slot, then per tensor: segment that paid its cut
    hops: FloatArray  # (4, n) log: transfer, source, target, start; empty when not recorded
    hop_end: FloatArray
    counts: IntArray


@compiled
def new_state(
    arrays: EventArrays, device_of: IntArray, order: IntArray, rank: FloatArray, record: bool
) -> State:
    """Allocate and prepare: durations, queues, resident weights, which edges cross."""
    n_units, n_devices = arrays.seconds.shape
    n_edges, n_tensors = len(arrays.consumers), len(arrays.tensor_bytes)
    n_endpoints = arrays.route.shape[0]
    n_transfers = n_edges + n_tensors
    n_sources = arrays.n_channels + n_units + 1
    n_hops = 2 * n_transfers if record else 0
    n_charged = n_edges + n_tensors if arrays.has_cuts else 0
    state = State(
        np.empty(n_units),
        rank,
        np.zeros(n_units, np.int64),
        np.empty(n_units),
        np.empty(n_units),
        np.empty(n_units, np.int64),
        np.zeros(n_units, np.bool_),
        np.zeros(n_units, np.bool_),
        np.empty(n_units, np.int64),
        np.zeros(n_devices + 1, np.int64),
        np.zeros(n_devices, np.int64),
        np.zeros(n_devices, np.int64),
        np.empty(n_devices, np.int64),
        np.zeros(n_devices, np.bool_),
        np.empty(n_sources),
        np.empty(n_sources, np.int64),
        np.empty(n_sources, np.int64),
        np.full(arrays.n_channels, -1, np.int64),
        np.full(arrays.n_channels, -1, np.int64),
        np.empty(n_transfers, np.int64),
        np.empty(n_transfers, np.int64),
        np.empty(n_transfers, np.int64),
        np.empty(n_transfers, np.int64),
        np.empty(n_transfers, np.int64),
        np.empty(n_transfers, np.int64),
        np.empty(n_edges, np.int64),
        np.empty(n_edges, np.int64),
        np.empty(n_edges, np.int64),
        np.zeros(n_tensors, np.int64),
        np.zeros(n_devices),
        np.zeros(n_devices),
        np.zeros(n_devices),
        np.full(n_endpoints, -1, np.int64),
        np.empty(n_endpoints, np.int64),
        np.empty(n_endpoints, np.int64),
        np.full(n_devices, -1, np.int64),
        np.full(n_charged, -1, np.int64),
        np.empty((4, n_hops)),
        np.empty(n_hops),
        np.zeros(8, np.int64),
    )
    _mark_edges(arrays, state, device_of)
    _set_durations(arrays, state, device_of)
    _set_queues(state, device_of, order)
    _set_weights(arrays, state, device_of)
    return state


@compiled
def check(arrays: EventArrays, device_of: IntArray, order: IntArray) -> tuple[int, int]:
    """Support, pins, colocation and the order: what is wrong (FINE when nothing), and where."""
    n_units = len(device_of)
    of_class = np.full(arrays.n_classes, -1, np.int64)
    for unit in range(n_units):
        device = device_of[unit]
        if device < 0 or device >= arrays.seconds.shape[1] or not arrays.allowed[unit, device]:
            return NOT_ALLOWED, unit
        group = arrays.colocation[unit]
        if of_class[group] >= 0 and of_class[group] != device:
            return SPLIT_CLASS, unit
        of_class[group] = device
    if len(order) == 0:
        return FINE, -1
    position = np.full(n_units, -1, np.int64)
    if len(order) != n_units:
        return BAD_ORDER, 0
    for at in range(n_units):
        if order[at] < 0 or order[at] >= n_units or position[order[at]] >= 0:
            return BAD_ORDER, at
        position[order[at]] = at
    for tensor in range(len(arrays.producer)):
        producer = arrays.producer[tensor]
        for edge in range(arrays.consumer_ptr[tensor], arrays.consumer_ptr[tensor + 1]):
            if producer >= 0 and position[producer] >= position[arrays.consumers[edge]]:
                return BAD_ORDER, position[arrays.consumers[edge]]
    return FINE, -1


@uncounted
def _mark_edges(arrays: EventArrays, state: State, device_of: IntArray) -> None:
    for tensor in range(len(arrays.producer)):
        producer = arrays.producer[tensor]
        for edge in range(arrays.consumer_ptr[tensor], arrays.consumer_ptr[tensor + 1]):
            consumer = arrays.consumers[edge]
            state.missing[consumer] += 1
            if producer >= 0 and device_of[producer] != device_of[consumer]:
                state.remote_in[consumer] = True
                state.remote_out[producer] = True


@compiled
def _set_durations(arrays: EventArrays, state: State, device_of: IntArray) -> None:
    n_units, n_devices = arrays.seconds.shape
    factor = np.ones(n_devices)
    if arrays.factors.shape[0]:
        used = np.zeros(n_devices, np.bool_)
        for unit in range(n_units):
            used[device_of[unit]] = True
        for device in range(n_devices):
            if arrays.domain[device] >= 0:
                n_used = np.sum(used & (arrays.domain == arrays.domain[device]))
                factor[device] = arrays.factors[arrays.domain[device], n_used]
    for unit in range(n_units):
        device = device_of[unit]
        state.duration[unit] = arrays.seconds[unit, device] * factor[device]


@compiled
def _set_queues(state: State, device_of: IntArray, order: IntArray) -> None:
    for unit in range(len(device_of)):
        state.queue_start[device_of[unit] + 1] += 1
    for device in range(len(state.busy)):
        state.queue_start[device + 1] += state.queue_start[device]
    if len(order):
        filled = state.queue_start.copy()
        for at in range(len(order)):
            device = device_of[order[at]]
            state.queue[filled[device]] = order[at]
            filled[device] += 1


@uncounted
def _set_weights(arrays: EventArrays, state: State, device_of: IntArray) -> None:
    for weight in range(len(arrays.weight_bytes)):
        for at in range(arrays.weight_ptr[weight], arrays.weight_ptr[weight + 1]):
            device = device_of[arrays.weight_units[at]]
            if state.stamp[device] != weight:
                state.stamp[device] = weight
                state.usage[device] += arrays.weight_bytes[weight]
    state.stamp[:] = -1

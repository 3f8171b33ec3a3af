"""Execution model `max-load`: time per sample of a full pipeline.

Tarnawski et al. 2020: the load of a device is its compute plus the tensors that it receives and
sends, each once; the value is the largest load. Here also with links, channels, streams, overlap.
"""

from __future__ import annotations

import numpy as np

from placewright.core.arrays import BoolArray, FloatArray, IntArray
from placewright.core.graph import FORWARD
from placewright.core.problem import Problem
from placewright.simulation.compiled import compiled
from placewright.simulation.event_arrays import DIRECT, NO_ROUTE, EventArrays
from placewright.simulation.legality import CUT_OFF, FINE, TOO_LARGE, check
from placewright.simulation.ranks import hop_seconds

NO_ORDER = np.empty(0, dtype=np.int64)


class MaxLoad:
    """Loads of placements of one problem."""

    def __init__(self, problem: Problem, arrays: EventArrays) -> None:
        graph, cluster = problem.unit_graph, problem.cluster
        self._arrays = arrays
        self._phase = np.where(graph.op_phases == FORWARD, 0, 1).astype(np.int64)
        self._n_phases = 2 if problem.split_phases else 1
        if not problem.split_phases:
            self._phase[:] = 0
        self._pays = np.array([device.pays_transfers for device in cluster.devices])
        self._overlaps = np.array([device.overlaps_transfers for device in cluster.devices])
        self._in_flight = float(problem.samples_in_flight)
        named = np.zeros(max(1, arrays.n_channels), dtype=np.bool_)
        for link in cluster.links:
            ends = cluster.endpoint_index[link.source], cluster.endpoint_index[link.destination]
            named[cluster.link_channel[ends]] |= link.channel is not None
        self._is_shared = named

    def evaluate(self, device_of: IntArray) -> tuple[float, int, int, FloatArray]:
        """Value (inf with a fault), fault, where, and bytes of each device (n_devices,)."""
        arrays = self._arrays
        fault, at = check(arrays, device_of, NO_ORDER)
        if fault != FINE:
            return np.inf, fault, at, np.zeros(len(self._pays))
        loads, fault, at = self._loads(device_of)
        memory = memory_of(arrays, device_of, self._in_flight)
        over = np.flatnonzero(memory > arrays.memory)
        if fault == FINE and len(over):
            fault, at = TOO_LARGE, int(over[0])
        if fault != FINE:
            return np.inf, fault, at, memory
        return float(loads.max(axis=1).sum()), FINE, -1, memory

    def loads(self, device_of: IntArray) -> FloatArray:
        """Load of each device, then of each shared channel: shape (n_phases, n), seconds."""
        return self._loads(np.asarray(device_of, dtype=np.int64))[0]

    def _loads(self, device_of: IntArray) -> tuple[FloatArray, int, int]:
        arrays = self._arrays
        compute, transfers, channels, missing = loads_of(
            arrays, device_of, self._phase, self._n_phases, self._pays
        )
        together = np.where(self._overlaps, np.maximum(compute, transfers), compute + transfers)
        fault = FINE if missing < 0 else CUT_OFF
        return np.hstack([together, channels * self._is_shared]), fault, int(missing)


@compiled
def loads_of(
    arrays: EventArrays, device_of: IntArray, phase: IntArray, n_phases: int, pays: BoolArray
) -> tuple[FloatArray, FloatArray, FloatArray, int]:
    """Compute and transfer seconds of each device, and seconds of each channel, by phase.

    A receiver pays the hop that reaches it; a sender pays the longest of its first hops, once. The
    last result is a tensor without a route, -1 where all have one.
    """
    n_units, n_devices = arrays.seconds.shape
    compute = np.zeros((n_phases, n_devices))
    transfers = np.zeros((n_phases, n_devices))
    channels = np.zeros((n_phases, max(1, arrays.n_channels)))
    stamp = np.full(arrays.route.shape[0], -1, np.int64)
    missing = -1
    for unit in range(n_units):
        device = device_of[unit]
        compute[phase[unit], device] += arrays.seconds[unit, device] / arrays.streams[device]
    for tensor in range(len(arrays.producer)):
        producer = arrays.producer[tensor]
        source = device_of[producer] if producer >= 0 else arrays.host
        part = phase[producer] if producer >= 0 else 0
        sent = 0.0
        stop = arrays.consumer_ptr[tensor + 1]
        for edge in range(arrays.consumer_ptr[tensor], stop + 1):
            if edge < stop:
                target = device_of[arrays.consumers[edge]]
            elif arrays.is_output[tensor]:
                target = arrays.host
            else:
                break
            if target == source or stamp[target] == tensor:
                continue
            stamp[target] = tensor
            route = arrays.route[source, target]
            if route == NO_ROUTE:
                missing = tensor
                continue
            middle = target if route == DIRECT else arrays.host
            first = hop_seconds(arrays, tensor, source, middle)
            channels[part, arrays.channel[source, middle]] += first
            sent = max(sent, first)
            if route != DIRECT:
                first = hop_seconds(arrays, tensor, middle, target)
                channels[part, arrays.channel[middle, target]] += first
            if target < n_devices and pays[target]:
                transfers[part, target] += first
        if source < n_devices and pays[source]:
            transfers[part, source] += sent
    return compute, transfers, channels, missing


@compiled
def memory_of(arrays: EventArrays, device_of: IntArray, in_flight: float) -> FloatArray:
    """Resident bytes, plus bytes of tensors made or received times samples in flight."""
    n_devices = arrays.seconds.shape[1]
    memory = np.zeros(n_devices)
    stamp = np.full(n_devices, -1, np.int64)
    for weight in range(len(arrays.weight_bytes)):
        for at in range(arrays.weight_ptr[weight], arrays.weight_ptr[weight + 1]):
            device = device_of[arrays.weight_units[at]]
            if stamp[device] != weight:
                stamp[device] = weight
                memory[device] += arrays.weight_bytes[weight]
    if in_flight == 0.0:
        return memory
    stamp[:] = -1
    for tensor in range(len(arrays.producer)):
        producer = arrays.producer[tensor]
        if producer >= 0:
            stamp[device_of[producer]] = tensor
            memory[device_of[producer]] += in_flight * arrays.tensor_bytes[tensor]
        for edge in range(arrays.consumer_ptr[tensor], arrays.consumer_ptr[tensor + 1]):
            device = device_of[arrays.consumers[edge]]
            if stamp[device] != tensor:
                stamp[device] = tensor
                memory[device] += in_flight * arrays.tensor_bytes[tensor]
    return memory

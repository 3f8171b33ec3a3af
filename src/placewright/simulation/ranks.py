"""Upward ranks: how long the longest path from a unit to the end is."""

from __future__ import annotations

import numpy as np

from placewright.core.arrays import FloatArray, IntArray
from placewright.core.problem import Problem
from placewright.simulation.compiled import compiled, inlined, uncounted
from placewright.simulation.event.arrays import DIRECT, VIA_HOST, EventArrays, event_arrays


@inlined
def transfer_seconds(arrays: EventArrays, tensor: int, source: int, target: int) -> float:
    """Seconds of all hops of a tensor between two endpoints; inf without a route."""
    kind = arrays.route[source, target]
    if source == target:
        return 0.0
    if kind == DIRECT:
        return hop_seconds(arrays, tensor, source, target)
    if kind == VIA_HOST:
        return hop_seconds(arrays, tensor, source, arrays.host) + hop_seconds(
            arrays, tensor, arrays.host, target
        )
    return np.inf


@inlined
def hop_seconds(arrays: EventArrays, tensor: int, source: int, target: int) -> float:
    """Seconds of a tensor on one link."""
    if len(arrays.own_transfer):
        return float(arrays.own_transfer[tensor])
    per_byte = arrays.seconds_per_byte[source, target]
    return float(arrays.latency[source, target] + arrays.tensor_bytes[tensor] * per_byte)


@compiled
def ranks_of(arrays: EventArrays, device_of: IntArray) -> FloatArray:
    """Upward rank of each unit with a placement's own costs, shape (n_units,)."""
    rank = np.zeros(len(device_of))
    _fill_ranks(arrays, device_of, rank)
    return rank


@uncounted
def _fill_ranks(arrays: EventArrays, device_of: IntArray, rank: FloatArray) -> None:
    for at in range(len(rank) - 1, -1, -1):
        unit = arrays.topological[at]
        device = device_of[unit]
        longest = 0.0
        for index in range(arrays.output_ptr[unit], arrays.output_ptr[unit + 1]):
            tensor = arrays.outputs[index]
            for edge in range(arrays.consumer_ptr[tensor], arrays.consumer_ptr[tensor + 1]):
                consumer = arrays.consumers[edge]
                path = rank[consumer]
                if device_of[consumer] != device:
                    path += transfer_seconds(arrays, tensor, device, device_of[consumer])
                longest = max(longest, path)
        rank[unit] = arrays.seconds[unit, device] + longest


def upward_ranks(problem: Problem, device_of: IntArray) -> FloatArray:
    """Upward rank of each unit with this placement's own costs.

    Topcuoglu et al. 2002, equation 8, with the costs of the chosen devices instead of means.

    Args:
        problem: what is placed.
        device_of: device of each unit, shape (n_units,), int64.

    Returns:
        Seconds from the start of each unit to the end of the longest path, shape (n_units,).
    """
    return np.asarray(ranks_of(event_arrays(problem), np.asarray(device_of, dtype=np.int64)))


def mean_costs(problem: Problem) -> FloatArray:
    """Mean seconds of each unit over the devices that may run it, shape (n_units,)."""
    allowed = problem.allowed
    total = np.where(allowed, problem.costs.seconds, 0.0).sum(axis=1)
    return np.asarray(total / np.maximum(1, allowed.sum(axis=1)))


def mean_transfer_seconds(problem: Problem) -> FloatArray:
    """Mean seconds of each unit tensor over all ordered pairs of distinct devices.

    Pairs without a route are left out; shape (unit_graph.n_tensors,).
    """
    arrays = event_arrays(problem)
    n_devices = problem.n_devices
    total = np.zeros(problem.unit_graph.n_tensors)
    pairs = 0
    for source in range(n_devices):
        for target in range(n_devices):
            if source != target and arrays.route[source, target] > 0:
                total += _way_seconds(arrays, source, target)
                pairs += 1
    return total / max(1, pairs)


def _way_seconds(arrays: EventArrays, source: int, target: int) -> FloatArray:
    """Seconds of every tensor between two different endpoints that have a route."""
    if arrays.route[source, target] == VIA_HOST:
        first = _link_seconds(arrays, source, arrays.host)
        return first + _link_seconds(arrays, arrays.host, target)
    return _link_seconds(arrays, source, target)


def _link_seconds(arrays: EventArrays, source: int, target: int) -> FloatArray:
    if len(arrays.own_transfer):
        return arrays.own_transfer
    per_byte = arrays.seconds_per_byte[source, target]
    return np.asarray(arrays.latency[source, target] + arrays.tensor_bytes * per_byte)


def mean_upward_ranks(problem: Problem) -> FloatArray:
    """Upward ranks with mean costs and mean transfers, as HEFT uses them, shape (n_units,)."""
    graph = problem.unit_graph
    costs, transfers = mean_costs(problem), mean_transfer_seconds(problem)
    rank = np.zeros(problem.n_units)
    for unit in graph.topological_order[::-1].tolist():
        longest = 0.0
        for tensor in graph.op_outputs.row(unit).tolist():
            for consumer in graph.tensor_consumers.row(tensor).tolist():
                longest = max(longest, float(transfers[tensor] + rank[consumer]))
        rank[unit] = costs[unit] + longest
    return rank

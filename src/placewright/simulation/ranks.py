"""Upward ranks: seconds of the longest path from a unit to the end."""

from __future__ import annotations

import numpy as np

from placewright.core.arrays import FloatArray, IntArray
from placewright.core.problem import Problem
from placewright.simulation.compiled import compiled, uncounted
from placewright.simulation.layout import ProblemArrays, problem_arrays, transfer_seconds

_ROWS = 1 << 16  # units whose costs are looked at together, so that no copy of all is made


@compiled
def ranks_of(arrays: ProblemArrays, device_of: IntArray) -> FloatArray:
    """Upward rank of each unit with a placement's own costs, shape (n_units,)."""
    rank = np.zeros(len(device_of))
    _fill_ranks(arrays, device_of, rank)
    return rank


@uncounted
def _fill_ranks(arrays: ProblemArrays, device_of: IntArray, rank: FloatArray) -> None:
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
        device_of: device of each unit, shape (n_units,), int64.

    Returns:
        Seconds from the start of each unit to the end of the longest path, shape (n_units,).
    """
    return np.asarray(ranks_of(problem_arrays(problem), np.asarray(device_of, dtype=np.int64)))


def mean_costs(problem: Problem) -> FloatArray:
    """Mean seconds of each unit over the devices that may run it, shape (n_units,)."""
    allowed, seconds = problem.allowed, problem.costs.seconds
    mean = np.empty(problem.n_units)
    for first in range(0, problem.n_units, _ROWS):
        rows = slice(first, first + _ROWS)
        total = np.where(allowed[rows], seconds[rows], 0.0).sum(axis=1)
        mean[rows] = total / np.maximum(1, allowed[rows].sum(axis=1))
    return mean


def mean_transfer_seconds(problem: Problem) -> FloatArray:
    """Mean seconds of each unit tensor over all ordered pairs of distinct devices.

    Pairs without a route are left out; shape (unit_graph.n_tensors,).
    """
    arrays, n_devices = problem_arrays(problem), problem.n_devices
    route = arrays.route[:n_devices, :n_devices]
    pairs = np.argwhere((route > 0) & ~np.eye(n_devices, dtype=np.bool_))
    if len(pairs) == 0:
        return np.zeros(problem.unit_graph.n_tensors)
    own = arrays.own_transfer
    _, first, place = np.unique(
        own if len(own) else arrays.tensor_bytes, return_index=True, return_inverse=True
    )
    return np.asarray(_summed_ways(arrays, pairs, first)[place.ravel()] / len(pairs))


@compiled
def _summed_ways(arrays: ProblemArrays, pairs: IntArray, tensors: IntArray) -> FloatArray:
    """Seconds of some tensors over all pairs of endpoints, summed, (len(tensors),)."""
    total = np.zeros(len(tensors))
    for at in range(len(pairs)):
        for index in range(len(tensors)):
            total[index] += transfer_seconds(arrays, tensors[index], pairs[at, 0], pairs[at, 1])
    return total

"""Weights of colocation classes as arrays, and which of them each device holds."""

from __future__ import annotations

from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from placewright.core.arrays import FloatArray, IntArray
from placewright.core.problem import Problem
from placewright.simulation.compiled import compiled, inlined, read_only


class ClassWeights(NamedTuple):
    """Resident bytes of colocation classes.

    A weight of a single class is part of that class' bytes; a weight of several classes has a
    number of its own, since a device keeps it once.
    """

    own_bytes: FloatArray  # (n_classes,): of weights that no other class reads
    shared_ptr: IntArray  # (n_classes + 1,)
    shared: IntArray  # numbers of the shared weights that each class reads
    shared_bytes: FloatArray  # (n_shared,)
    pool_at: IntArray  # (n_devices,): place of the device's shared pool in a row of limits, or -1
    pool_share: FloatArray  # (n_devices,): times that the pool keeps what the device keeps


_known: WeakKeyDictionary[Problem, ClassWeights] = WeakKeyDictionary()


def weights_of(problem: Problem) -> ClassWeights:
    """Weights of each colocation class of the problem, cached."""
    if problem not in _known:
        _known[problem] = _weights_of(problem)
    return _known[problem]


def _weights_of(problem: Problem) -> ClassWeights:
    kept, classes = problem.kept, problem.colocation
    n_weights = max(1, len(kept.sizes))
    readers = classes.group_of[kept.of_units.row_of_each()]
    pairs = np.unique(readers * n_weights + kept.of_units.indices)
    group, weight = pairs // n_weights, pairs % n_weights
    n_readers = np.bincount(weight, minlength=n_weights)
    alone = n_readers[weight] == 1
    own = np.bincount(group[alone], kept.sizes[weight[alone]], minlength=classes.n_groups).astype(
        np.float64
    )
    shared = np.flatnonzero(n_readers > 1)
    number = np.full(n_weights, -1, dtype=np.int64)
    number[shared] = np.arange(len(shared))
    pointer = np.zeros(classes.n_groups + 1, dtype=np.int64)
    np.cumsum(np.bincount(group[~alone], minlength=classes.n_groups), out=pointer[1:])
    sizes = kept.sizes[shared] if len(shared) else np.zeros(0)
    cluster = problem.cluster
    pool_at = np.where(cluster.pool_of >= 0, cluster.n_devices + cluster.pool_of, -1)
    share = cluster.replicas.astype(np.float64)
    return read_only(ClassWeights(own, pointer, number[weight[~alone]], sizes, pool_at, share))


def new_holdings(weights: ClassWeights, n_devices: int) -> IntArray:
    """Counts of classes per device that read each shared weight: zeros, (n_shared, n_devices)."""
    return np.zeros((len(weights.shared_bytes), n_devices), dtype=np.int64)


@inlined
def needed_bytes(weights: ClassWeights, held: IntArray, group: int, device: int) -> float:
    """Bytes that a class would add to a device."""
    total = weights.own_bytes[group]
    for at in range(weights.shared_ptr[group], weights.shared_ptr[group + 1]):
        weight = weights.shared[at]
        if held[weight, device] == 0:
            total += weights.shared_bytes[weight]
    return float(total)


@inlined
def has_room(
    weights: ClassWeights, held: IntArray, free: FloatArray, group: int, device: int
) -> bool:
    """True if the weights of a class fit into the free memory of a device and of its pool."""
    needed, pool = needed_bytes(weights, held, group, device), weights.pool_at[device]
    in_pool = pool < 0 or needed * weights.pool_share[device] <= free[pool]
    return bool(needed <= free[device] and in_pool)


@inlined
def keep(weights: ClassWeights, held: IntArray, free: FloatArray, group: int, device: int) -> None:
    """Add the weights of a class to a device; `free` is of devices, then of shared pools."""
    needed, pool = needed_bytes(weights, held, group, device), weights.pool_at[device]
    free[device] -= needed
    if pool >= 0:
        free[pool] -= needed * weights.pool_share[device]
    for at in range(weights.shared_ptr[group], weights.shared_ptr[group + 1]):
        held[weights.shared[at], device] += 1


@inlined
def release(
    weights: ClassWeights, held: IntArray, free: FloatArray, group: int, device: int
) -> None:
    """Remove the weights of a class from a device."""
    for at in range(weights.shared_ptr[group], weights.shared_ptr[group + 1]):
        held[weights.shared[at], device] -= 1
    needed, pool = needed_bytes(weights, held, group, device), weights.pool_at[device]
    free[device] += needed
    if pool >= 0:
        free[pool] += needed * weights.pool_share[device]


@compiled
def class_bytes(weights: ClassWeights) -> FloatArray:
    """Bytes of all weights of each class, shape (n_classes,)."""
    total = weights.own_bytes.copy()
    for group in range(len(total)):
        for at in range(weights.shared_ptr[group], weights.shared_ptr[group + 1]):
            total[group] += weights.shared_bytes[weights.shared[at]]
    return total

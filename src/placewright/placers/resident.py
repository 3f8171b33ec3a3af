"""Memory while a placement grows: weights of classes, which devices hold them, what is free."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewright.core.arrays import BoolArray, FloatArray, IntArray
from placewright.core.problem import Problem
from placewright.simulation.compiled import compiled, inlined, read_only
from placewright.simulation.layout import once_per_problem


class ClassWeights(NamedTuple):
    """Resident bytes of colocation classes.

    A weight of a single class is part of that class' bytes; a weight of several classes has a
    number of its own, since a device keeps it once.
    """

    own_bytes: FloatArray  # (n_classes,): of weights that no other class reads
    shared_ptr: IntArray  # (n_classes + 1,)
    shared: IntArray  # numbers of the shared weights that each class reads
    shared_bytes: FloatArray  # (n_shared,)
    pool_ptr: IntArray  # (n_devices + 1,)
    pool_at: IntArray  # places of the shared pools of each device in a row of limits
    pool_share: FloatArray  # bytes that each of these pools keeps for a byte of the device


@once_per_problem
def weights_of(problem: Problem) -> ClassWeights:
    """Weights of each colocation class of the problem."""
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
    devices, pools = np.nonzero(cluster.pool_shares.T)
    share = cluster.pool_shares[pools, devices]
    ends = np.cumsum(np.bincount(devices, minlength=cluster.n_devices))
    return read_only(
        ClassWeights(
            own_bytes=own,
            shared_ptr=pointer,
            shared=number[weight[~alone]],
            shared_bytes=sizes,
            pool_ptr=np.concatenate([[0], ends]).astype(np.int64),
            pool_at=cluster.n_devices + pools,
            pool_share=share,
        )
    )


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
    """True if the weights of a class fit into the free memory of a device and of its pools."""
    needed = needed_bytes(weights, held, group, device)
    fits = needed <= free[device]
    for at in range(weights.pool_ptr[device], weights.pool_ptr[device + 1]):
        fits = fits and needed * weights.pool_share[at] <= free[weights.pool_at[at]]
    return bool(fits)


@inlined
def keep(weights: ClassWeights, held: IntArray, free: FloatArray, group: int, device: int) -> None:
    """Add the weights of a class to a device; `free` is of devices, then of shared pools."""
    needed = needed_bytes(weights, held, group, device)
    free[device] -= needed
    for at in range(weights.pool_ptr[device], weights.pool_ptr[device + 1]):
        free[weights.pool_at[at]] -= needed * weights.pool_share[at]
    for at in range(weights.shared_ptr[group], weights.shared_ptr[group + 1]):
        held[weights.shared[at], device] += 1


@inlined
def release(
    weights: ClassWeights, held: IntArray, free: FloatArray, group: int, device: int
) -> None:
    """Remove the weights of a class from a device."""
    for at in range(weights.shared_ptr[group], weights.shared_ptr[group + 1]):
        held[weights.shared[at], device] -= 1
    needed = needed_bytes(weights, held, group, device)
    free[device] += needed
    for at in range(weights.pool_ptr[device], weights.pool_ptr[device + 1]):
        free[weights.pool_at[at]] += needed * weights.pool_share[at]


@inlined
def share_in_pool(weights: ClassWeights, device: int, pool: int) -> float:
    """Bytes that a pool, by its place in a row of limits, keeps for a byte of a device."""
    share = 0.0
    for at in range(weights.pool_ptr[device], weights.pool_ptr[device + 1]):
        if weights.pool_at[at] == pool:
            share = weights.pool_share[at]
    return share


@inlined
def have_common_pool(weights: ClassWeights, one: int, other: int) -> bool:
    """True if two devices take bytes from the same shared pool."""
    found = False
    for at in range(weights.pool_ptr[one], weights.pool_ptr[one + 1]):
        found = found or share_in_pool(weights, other, weights.pool_at[at]) > 0.0
    return found


@compiled
def class_bytes(weights: ClassWeights) -> FloatArray:
    """Bytes of all weights of each class, shape (n_classes,)."""
    total = weights.own_bytes.copy()
    for group in range(len(total)):
        for at in range(weights.shared_ptr[group], weights.shared_ptr[group + 1]):
            total[group] += weights.shared_bytes[weights.shared[at]]
    return total


class FreeMemory(NamedTuple):
    """Free bytes of each device and the devices of classes, while a schedule grows."""

    weights: ClassWeights
    held: IntArray  # (n_shared weights, n_devices); empty where no device has a limit
    free: FloatArray  # (n_devices + n_pools,) bytes: of devices, then of shared pools
    device_of_class: IntArray  # (n_classes,): -1 before its first unit is placed
    is_limited: bool


def new_free_memory(problem: Problem, limits: FloatArray | None) -> FreeMemory:
    """Make the memory before any placement; limits as `Cluster.memory_limits`, the default."""
    free = np.array(problem.cluster.memory_limits if limits is None else limits, dtype=np.float64)
    weights = weights_of(problem)
    is_limited = bool(np.isfinite(free).any())
    held = new_holdings(weights, problem.n_devices if is_limited else 0)
    device_of_class = np.full(problem.colocation.n_groups, -1, dtype=np.int64)
    return FreeMemory(weights, held, free, device_of_class, is_limited)


@inlined
def fits(memory: FreeMemory, group: int, device: int) -> bool:
    """True if the class' weights fit beside those that the device keeps."""
    return bool(has_room(memory.weights, memory.held, memory.free, group, device))


@inlined
def mark_usable(allowed: BoolArray, memory: FreeMemory, group: int, usable: BoolArray) -> None:
    """Mark the devices that may take a unit of a class now.

    If memory leaves none, mark the allowed device with most free memory; the simulator then finds
    the violation.

    Args:
        allowed: by class, (n_classes, n_devices).
        usable: (n_devices,) to write into.
    """
    chosen = memory.device_of_class[group]
    if chosen >= 0:
        for device in range(len(usable)):
            usable[device] = device == chosen
        return
    n_fitting, emptiest = 0, -1
    for device in range(len(usable)):
        usable[device] = allowed[group, device]
        if memory.is_limited and usable[device]:
            if emptiest < 0 or memory.free[device] > memory.free[emptiest]:
                emptiest = device
            usable[device] = fits(memory, group, device)
        n_fitting += usable[device]
    if n_fitting == 0 and emptiest >= 0:
        usable[emptiest] = True


@inlined
def take(memory: FreeMemory, group: int, device: int) -> None:
    """Assign the class to the device, unless it has one."""
    if memory.device_of_class[group] < 0:
        memory.device_of_class[group] = device
        if memory.is_limited:
            keep(memory.weights, memory.held, memory.free, group, device)

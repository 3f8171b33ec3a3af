"""Devices that a unit may use while a schedule grows: support, pins, its class, free memory."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewright.core.arrays import BoolArray, FloatArray, IntArray
from placewright.core.problem import Problem
from placewright.placers.resident import (
    ClassWeights,
    has_room,
    keep,
    new_holdings,
    weights_of,
)
from placewright.simulation.compiled import inlined


class FreeMemory(NamedTuple):
    """Free bytes of each device, and the devices of classes."""

    weights: ClassWeights
    held: IntArray  # (n_shared weights, n_devices); empty where no device has a limit
    free: FloatArray  # (n_devices + n_pools,) bytes: of devices, then of shared pools
    device_of_class: IntArray  # (n_classes,): -1 before its first unit is placed
    is_limited: bool


def new_free_memory(problem: Problem, limits: FloatArray | None) -> FreeMemory:
    """The memory before any placement; limits as `Cluster.memory_limits`, the default."""
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

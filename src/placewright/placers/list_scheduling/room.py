"""Where a unit may go while a schedule grows: support, pins, its class, resident memory."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewright.core.arrays import BoolArray, FloatArray, IntArray
from placewright.core.problem import Problem
from placewright.placers.resident import (
    ClassWeights,
    keep,
    needed_bytes,
    new_holdings,
    weights_of,
)
from placewright.simulation.compiled import inlined


class Room(NamedTuple):
    """Resident memory and the devices of classes."""

    weights: ClassWeights
    held: IntArray  # (n_shared weights, n_devices); empty where no device has a limit
    free: FloatArray  # (n_devices,) bytes
    device_of_class: IntArray  # (n_classes,): -1 for a class of which nothing is placed
    is_limited: bool


def new_room(problem: Problem, limits: FloatArray | None) -> Room:
    """Nothing placed; resident bytes of each device, (n_devices,), default its memory."""
    free = np.array(problem.cluster.memory_bytes if limits is None else limits, dtype=np.float64)
    weights = weights_of(problem)
    is_limited = bool(np.isfinite(free).any())
    held = new_holdings(weights, problem.n_devices if is_limited else 0)
    device_of_class = np.full(problem.colocation.n_groups, -1, dtype=np.int64)
    return Room(weights, held, free, device_of_class, is_limited)


@inlined
def fits(room: Room, group: int, device: int) -> bool:
    """True when the class' weights fit beside those that the device keeps."""
    return bool(needed_bytes(room.weights, room.held, group, device) <= room.free[device])


@inlined
def mark_devices_with_room(allowed: BoolArray, room: Room, group: int, usable: BoolArray) -> None:
    """Devices that may take a unit of a class now.

    Where memory leaves none, the allowed device with most room (the simulator then tells).

    Args:
        allowed: by class, (n_classes, n_devices).
        room: what is taken.
        group: the class.
        usable: (n_devices,) to write into.
    """
    chosen = room.device_of_class[group]
    if chosen >= 0:
        for device in range(len(usable)):
            usable[device] = device == chosen
        return
    n_fitting, roomiest = 0, -1
    for device in range(len(usable)):
        usable[device] = allowed[group, device]
        if room.is_limited and usable[device]:
            if roomiest < 0 or room.free[device] > room.free[roomiest]:
                roomiest = device
            usable[device] = fits(room, group, device)
        n_fitting += usable[device]
    if n_fitting == 0 and roomiest >= 0:
        usable[roomiest] = True


@inlined
def take(room: Room, group: int, device: int) -> None:
    """The class goes to the device, where it is not there yet."""
    if room.device_of_class[group] < 0:
        room.device_of_class[group] = device
        if room.is_limited:
            keep(room.weights, room.held, room.free, group, device)

"""Which constraint a placement breaks before any time passes."""

from __future__ import annotations

import numpy as np

from placewright.core.arrays import IntArray, frozen_ints
from placewright.simulation.compiled import compiled
from placewright.simulation.event.arrays import EventArrays

NO_ORDER = frozen_ints([])  # the execution model's own dispatch
# Why a placement has no value.
FINE, NOT_ALLOWED, SPLIT_CLASS, BAD_ORDER, CUT_OFF, TOO_LARGE = range(6)


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

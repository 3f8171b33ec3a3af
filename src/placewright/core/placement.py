"""A placement: which device runs each unit, and optionally in which order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from placewright.core.arrays import IntArray, frozen_ints
from placewright.errors import InputError

A_PLACEMENT = "a placement is an integer for each unit, the index of its device"
_AN_ORDER = "an order is an integer for each unit, in turn"


def integers(numbers: ArrayLike, what: str, *, n_axes: int) -> IntArray:
    """Convert numbers to an array of integers, of which no fraction is cut off.

    Args:
        what: the rule, for the message.
        n_axes: the array has so many at most, and at least one.

    Raises:
        InputError: they are no integers, or have another number of axes.
    """
    try:
        array = np.asarray(numbers)
    except ValueError:
        raise InputError(f"{what}; got rows of different lengths") from None
    if array.dtype.kind == "u" and array.size and array.max() > np.iinfo(np.int64).max:
        raise InputError(f"{what}; got {array.max()}")
    is_whole = array.dtype.kind in "iu" or array.size == 0
    if not is_whole or not 1 <= array.ndim <= n_axes:
        raise InputError(f"{what}; got {array.dtype} of shape {array.shape}")
    return array.astype(np.int64, copy=False)


@dataclass(frozen=True, eq=False)
class Placement:
    """A complete placement of a problem's units.

    >>> pw.Placement.of([0, 1, 0, 0]).device_of
    array([0, 1, 0, 0])
    >>> pw.Placement.on_one_device(4, 1).device_of
    array([1, 1, 1, 1])

    Attributes:
        device_of: device of each unit, shape (n_units,), int64.
        order: a topological order of all units, shape (n_units,), int64; None leaves the order
            to the rule of dispatch of the execution model.
    """

    device_of: IntArray
    order: IntArray | None = None

    @classmethod
    def of(cls, device_of: ArrayLike, order: ArrayLike | None = None) -> Placement:
        """Freeze arrays or lists into a placement.

        Raises:
            InputError: `device_of` or `order` is not an integer for each unit.
        """
        devices = frozen_ints(integers(device_of, A_PLACEMENT, n_axes=1))
        if order is None:
            return cls(devices)
        return cls(devices, frozen_ints(integers(order, _AN_ORDER, n_axes=1)))

    @classmethod
    def on_one_device(cls, n_units: int, device: int) -> Placement:
        """All units on the device of that index."""
        return cls.of(np.full(n_units, device))

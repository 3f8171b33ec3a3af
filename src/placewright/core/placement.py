"""A placement: which device runs each unit, and optionally in which order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from placewright.core.arrays import IntArray, frozen_ints


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
        """Freeze arrays or lists into a placement."""
        return cls(frozen_ints(device_of), None if order is None else frozen_ints(order))

    @classmethod
    def on_one_device(cls, n_units: int, device: int) -> Placement:
        """All units on the device of that index."""
        return cls.of(np.full(n_units, device))

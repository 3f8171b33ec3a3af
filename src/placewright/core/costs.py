"""The cost table: seconds of each unit on each device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewright.core.arrays import FloatArray
from placewright.errors import CostError

LONGEST = 1e300  # seconds or bytes in all: products and sums of a few such are still finite


@dataclass(frozen=True, eq=False)
class CostTable:
    """Seconds of each unit on each device.

    Attributes:
        seconds: shape (n_units, n_devices), float64, >= 0; inf where the device cannot run it.
        source: where the numbers come from: ``"measured"``, ``"roofline"``, ``"recorded"``,
            ``"workload"`` or a word of the caller's own.

    Raises:
        CostError: a negative or NaN entry, another shape, or a sum that overflows: an op that ends
            at infinity would seem never to run.
    """

    seconds: FloatArray
    source: str = "measured"

    def __post_init__(self) -> None:
        if self.seconds.ndim != 2:
            raise CostError(f"costs must be a units x devices matrix, got {self.seconds.ndim} axes")
        wrong = np.argwhere(np.isnan(self.seconds) | (self.seconds < 0))
        if len(wrong):
            unit, device = (int(index) for index in wrong[0])
            value = self.seconds[unit, device]
            raise CostError(f"cost of unit {unit} on device {device} must be >= 0 s, got {value}")
        # Without a copy: the table of a large problem takes half a gibibyte.
        longest = self.seconds.max(axis=1, initial=0.0, where=np.isfinite(self.seconds))
        with np.errstate(over="ignore"):
            total = longest.sum()
        if not total < LONGEST:
            unit = int(longest.argmax())
            device = int(np.flatnonzero(self.seconds[unit] == longest[unit])[0])
            raise CostError(
                f"costs add up to more than a number can hold; unit {unit} takes {longest[unit]} s "
                f"on device {device}; inf says that a device cannot run a unit"
            )

    @property
    def n_units(self) -> int:
        """Number of units."""
        return int(self.seconds.shape[0])

    @property
    def n_devices(self) -> int:
        """Number of devices."""
        return int(self.seconds.shape[1])

"""Peak rates of a device, for costs without measurement."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from placewright.errors import ClusterError

PRECISIONS = ("f32", "tf32", "bf16", "f16", "i8")


@dataclass(frozen=True)
class DataSheet:
    """Dense peaks that the vendor of a device states.

    Attributes:
        peak: precision (one of `PRECISIONS`) -> operations per second of matrix products, a
            multiply-add being two.
        bandwidth: bytes per second of the device's memory.

    Raises:
        ClusterError: a precision is unknown, or a rate is no positive number.
    """

    peak: Mapping[str, float]
    bandwidth: float

    def __post_init__(self) -> None:
        if not self.peak:
            raise ClusterError(f"peak has no rate; give one of {', '.join(PRECISIONS)}")
        for precision, rate in self.peak.items():
            if precision not in PRECISIONS:
                raise ClusterError(
                    f"peak names precision '{precision}'; known: {', '.join(PRECISIONS)}"
                )
            if not 0 < rate < math.inf:
                raise ClusterError(f"peak of {precision} must be > 0 operations/s, got {rate:g}")
        if not 0 < self.bandwidth < math.inf:
            raise ClusterError(
                f"bandwidth of a data sheet must be > 0 B/s and finite, got {self.bandwidth:g}"
            )

"""Seconds as whole numbers of ticks, rounded down so that bounds stay bounds."""

from __future__ import annotations

import math
from dataclasses import dataclass

_ROUNDING = 1e-12  # of a product of two numbers, with room


@dataclass(frozen=True)
class Ticks:
    """A unit of time.

    Attributes:
        seconds: of one tick, > 0.
    """

    seconds: float

    def down(self, seconds: float) -> int:
        """Most whole ticks within a duration."""
        return max(0, math.floor(seconds / self.seconds * (1.0 - _ROUNDING)))

    def up(self, seconds: float) -> int:
        """Fewest whole ticks that a duration fits into."""
        return math.ceil(seconds / self.seconds * (1.0 + _ROUNDING))

"""How often to measure: until the median is known, on a machine that is not always as fast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_PRECISION = 0.01
_LEAST, _LEAST_SECONDS = 5, 2.5
_MOST_SECONDS = 10.0
_AS_OFTEN = 4


@dataclass(frozen=True)
class Rounds:
    """How many rounds a placement is measured.

    Attributes:
        least: also where all agree.
        most: where they do not.
        precision: enough are there when their median is known within this share of it.
    """

    least: int
    most: int
    precision: float = _PRECISION

    @classmethod
    def of(cls, expected: float, usual: int) -> Rounds:
        """For rounds of two requests that take `expected` seconds each.

        Args:
            expected: seconds.
            usual: rounds on a quiet machine; 5 at least of requests that take long. A restless one
                gets up to four times as many, within ten seconds.
        """
        both = max(2.0 * expected, 1e-9)
        least = int(np.clip(_LEAST_SECONDS / both, min(_LEAST, usual), usual))
        return cls(least, int(np.clip(_MOST_SECONDS / both, least, _AS_OFTEN * least)))

    def want_more(self, samples: Sequence[float]) -> bool:
        """Whether the median of these is not known yet, and may still be measured."""
        if len(samples) < self.least:
            return True
        return len(samples) < self.most and median_uncertainty(samples) > self.precision


def median_uncertainty(samples: Sequence[float]) -> float:
    """How far the median may be off, as a share of it: nine times in ten by no more.

    The notch of McGill, Tukey and Larsen, Variations of Box Plots, 1978: 1.57 times the distance of
    the quartiles over the root of the number, 1.7 standard errors where rounds are normal.
    """
    q1, median, q3 = np.percentile(samples, [25, 50, 75])
    return float(1.57 * (q3 - q1) / np.sqrt(len(samples)) / max(median, 1e-30))

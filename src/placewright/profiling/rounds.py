"""Numbers of rounds: measure until the median is known, on a machine whose speed varies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_PRECISION = 0.01
_LEAST, _LEAST_SECONDS = 5, 2.5
_MOST_SECONDS = 10.0
_MOST_TIMES = 4
_LEAST_SAMPLES = 3  # whose quartiles say something
_FEW = 1.8  # of n normal samples, the quartiles' distance is 1 / (1 + this / n) of that of many
_NOTCH = 1.7  # standard errors that a notch reaches to each side, if rounds are normal


@dataclass(frozen=True)
class Rounds:
    """Limits on the rounds of a measurement."""

    least: int  # number of rounds, even if all agree
    most: int  # number of rounds, even if they do not
    # measuring stops when the median is known within this share of it
    precision: float = _PRECISION

    @classmethod
    def of(cls, expected: float, usual: int, most_seconds: float = _MOST_SECONDS) -> Rounds:
        """Limits for rounds of two requests each.

        Args:
            expected: seconds of a request.
            usual: rounds on a quiet machine, down to 5 for long requests. A noisy machine gets up
                to four times as many, within `most_seconds`.
            most_seconds: of all rounds, if they are more than usual.
        """
        both = max(2.0 * expected, 1e-9)
        least = int(np.clip(_LEAST_SECONDS / both, min(_LEAST, usual), usual))
        return cls(least, int(np.clip(most_seconds / both, least, _MOST_TIMES * least)))

    def want_more(self, samples: Sequence[float]) -> bool:
        """True if the samples are too few, or their median is uncertain and rounds are left."""
        if len(samples) < self.least:
            return True
        return len(samples) < self.most and median_uncertainty(samples) > self.precision

    def expected(self, scatter: float) -> int:
        """The number that a scatter leads to, see `scatter_of`; the least if it is nan."""
        if math.isnan(scatter):
            return self.least
        return int(np.clip(np.ceil((scatter / self.precision) ** 2), self.least, self.most))


def scatter_of(samples: Sequence[float]) -> float:
    """Uncertainty of the median of a single round: that of n rounds is this over the root of n.

    Quartiles of few samples lie closer together than those of many: the scatter is that of many.
    It is nan for fewer than three samples.
    """
    n = len(samples)
    if n < _LEAST_SAMPLES:
        return math.nan
    return median_uncertainty(samples) * math.sqrt(n) * (1.0 + _FEW / n)


def median_uncertainty(samples: Sequence[float]) -> float:
    """Uncertainty of a median as a share of it: in nine cases of ten its error is no larger.

    The notch of McGill, Tukey and Larsen, Variations of Box Plots, 1978: 1.57 times the distance of
    the quartiles over the root of the number, 1.7 standard errors if rounds are normal.
    """
    q1, median, q3 = np.percentile(samples, [25, 50, 75])
    return float(1.57 * (q3 - q1) / np.sqrt(len(samples)) / max(median, 1e-30))


def median_error(samples: Sequence[float]) -> float:
    """Standard error of a median as a share of it, if rounds are normal."""
    return median_uncertainty(samples) / _NOTCH

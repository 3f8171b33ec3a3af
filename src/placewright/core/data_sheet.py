"""Peak rates of a device, for costs without measurement."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass

from placewright.errors import ClusterError

PRECISION = "precision"  # option of a device; one of these
PRECISIONS = ("f32", "tf32", "bf16", "f16", "i8")


@dataclass(frozen=True)
class TokenRates:
    """Measured rates of a device for language models.

    Raises:
        ClusterError: a table has another length than `rows`, or a number is negative or not finite.
    """

    rows: tuple[float, ...]  # tokens that a matrix multiplies, ascending, of the tables below
    # format of weights -> seconds per operation for each of `rows`; those of routed experts have
    # ``/experts`` behind the format
    products: Mapping[str, tuple[float, ...]]
    scores: tuple[float, ...]  # seconds per operation of attention on its cache, for each of `rows`
    launch: float  # seconds to start a kernel
    # seconds of a pass beyond its kernels: on the host, those of every pass; on a card, those of a
    # pass whose logits come from it
    per_pass: float
    source: str  # engine and machine of the measurement

    def __post_init__(self) -> None:
        tables = {"rows": self.rows, "scores": self.scores, **self.products}
        for name, table in tables.items():
            if len(table) != len(self.rows) or not table:
                raise ClusterError(f"tokens: '{name}' needs a number for each of the rows")
            if not all(0 < value < math.inf for value in table):
                raise ClusterError(f"tokens: '{name}' has a number that is not > 0 and finite")
        if list(self.rows) != sorted(set(self.rows)):
            raise ClusterError(f"tokens: rows must be in ascending order, got {list(self.rows)}")
        if not self.products:
            raise ClusterError("tokens: products has no format")
        if not (0 <= self.launch < math.inf and 0 <= self.per_pass < math.inf):
            raise ClusterError("tokens: launch and per_pass must be >= 0 s and finite")

    def product(self, dtype: str, rows: float, *, is_expert: bool) -> float:
        """Seconds per operation of a matrix product.

        A format that was not measured has the rate of the first one.

        Args:
            dtype: of the weights.
            rows: tokens that each matrix multiplies.
            is_expert: of routed experts.
        """
        names = (f"{dtype}/experts", dtype) if is_expert else (dtype, f"{dtype}/experts")
        known = next((name for name in names if name in self.products), next(iter(self.products)))
        return self._at(self.products[known], rows)

    def score(self, rows: float) -> float:
        """Seconds per operation of attention on its cache."""
        return self._at(self.scores, rows)

    def _at(self, table: tuple[float, ...], rows: float) -> float:
        """A value between those of the table, by the logarithms of both."""
        above = bisect_left(self.rows, rows)
        if above == 0 or above == len(self.rows):
            return table[min(above, len(self.rows) - 1)]
        low, high = self.rows[above - 1], self.rows[above]
        share = math.log(rows / low) / math.log(high / low)
        return float(table[above - 1] ** (1.0 - share) * table[above] ** share)


@dataclass(frozen=True)
class DataSheet:
    """Dense peaks that the vendor of a device states.

    Raises:
        ClusterError: a precision is unknown, or a rate is no positive number.
    """

    # precision (one of `PRECISIONS`) -> operations per second of matrix products, a multiply-add
    # being two
    peak: Mapping[str, float]
    bandwidth: float  # bytes per second of the device's memory
    # measured rates for language models, instead; None if none were measured
    tokens: TokenRates | None = None

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

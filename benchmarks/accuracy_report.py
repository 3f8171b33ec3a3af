"""Rows of `python -m benchmarks.accuracy` and their errors."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

KINDS = ("random", "heuristic", "near-best", "replicated")
VISITS = 3
_IQR_OF_NORMAL = 1.349  # standard deviations between the quartiles
_MEDIAN_OF_NORMAL = 1.2533  # sqrt(pi / 2): standard error of a median over that of a mean
_CONFIDENT = 1.96  # standard errors that chance exceeds once in twenty


@dataclass(frozen=True)
class AccuracyRow:
    """One placement.

    Attributes:
        model: name of the model.
        kind: ``"random"``, ``"heuristic"`` or ``"near-best"``; of streams also ``"replicated"``.
        origin: method that made it.
        predicted: seconds by the simulator.
        measured: seconds, the median over the medians of the visits.
        noise: of a single round: half the distance between the quartiles of the ratio, in seconds;
            the mean over the visits.
        key: of placement and problem; a row with this key is not measured again.
        rounds: total number over all visits.
        visits: seconds of each visit: median ratio to the reference times the reference's
            prediction. Files of earlier versions have none, because they visited once.
        n_visits: number of finished visits, of `VISITS`.
    """

    model: str
    kind: str
    origin: str
    predicted: float
    measured: float
    noise: float
    key: str
    rounds: int = 11
    visits: tuple[float, ...] = ()
    n_visits: int = VISITS

    @property
    def standard_error(self) -> float:
        """Standard error of `measured` in seconds, for normally distributed rounds.

        If visits scatter more than their rounds suggest, their own scatter counts.
        """
        deviation = 2.0 * self.noise / _IQR_OF_NORMAL
        within = deviation / math.sqrt(self.rounds)
        apart = statistics.stdev(self.visits) if len(self.visits) > 1 else 0.0
        return _MEDIAN_OF_NORMAL * max(within, apart / math.sqrt(len(self.visits) or 1))

    @property
    def error(self) -> float:
        """|predicted / measured - 1|."""
        return abs(self.predicted / self.measured - 1.0)

    def visited(self, ratios: Sequence[float], base: float) -> AccuracyRow:
        """This row after another visit.

        Args:
            ratios: of each round to the reference.
            base: predicted seconds of the reference.
        """
        low, median, high = (np.percentile(ratios, [25, 50, 75]) * base).tolist()
        visits, before = (*self.visits, median), len(self.visits)
        return replace(
            self,
            measured=statistics.median(visits),
            noise=(self.noise * before + (high - low) / 2) / len(visits),
            rounds=self.rounds + len(ratios),
            visits=visits,
            n_visits=len(visits),
        )


@dataclass(frozen=True)
class AccuracySummary:
    """Errors over some rows.

    Attributes:
        model, kind: of the rows; kind ``"all"`` contains every kind.
        placements: number of rows.
        median, p95: of the errors.
        tau: Kendall's rank correlation over pairs whose measured values differ by more than their
            noise: by 1.96 standard errors of the difference; NaN without such a pair.
    """

    model: str
    kind: str
    placements: int
    median: float
    p95: float
    tau: float


def summaries(rows: Sequence[AccuracyRow]) -> list[AccuracySummary]:
    """Errors per model and third, and per model over all."""
    found = []
    for name in dict.fromkeys(row.model for row in rows):
        for kind in (*KINDS, "all"):
            part = [r for r in rows if r.model == name and kind in (r.kind, "all")]
            if part:
                errors = [row.error for row in part]
                median, p95 = float(np.median(errors)), float(np.percentile(errors, 95))
                found.append(AccuracySummary(name, kind, len(part), median, p95, _tau(part)))
    return found


def _tau(rows: Sequence[AccuracyRow]) -> float:
    measured = np.array([row.measured for row in rows])
    predicted = np.array([row.predicted for row in rows])
    error = np.array([row.standard_error for row in rows])
    first, second = np.triu_indices(len(rows), 1)
    noise = _CONFIDENT * np.hypot(error[first], error[second])
    apart = np.abs(measured[first] - measured[second]) > noise
    if not apart.any():
        return float("nan")
    agree = np.sign(measured[first] - measured[second]) * np.sign(
        predicted[first] - predicted[second]
    )
    return float(agree[apart].mean())

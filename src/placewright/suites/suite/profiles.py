"""Performance profiles: the share of problems on which a placer is within a factor of the best.

E. D. Dolan, J. J. More, "Benchmarking optimization software with performance profiles",
Mathematical Programming 91, 2002. The measure here is the value of the placement (theirs was time):
r = value / least value of any placer on the problem; rho(t) is the share of the problems with
r <= t. A problem without a placement counts as r = inf. Problems that a placer does not take count
as r = inf, too, unless `left_out` is False.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from placewright.suites.suite.runs import SuiteRow


@dataclass(frozen=True)
class Profile:
    """One placer over all problems."""

    placer: str  # name
    # value / best known value of each problem that counts, ascending; inf without one
    ratios: tuple[float, ...]
    evaluations: float = math.nan  # median of its runs
    core_seconds: float = math.nan  # median of its runs

    def share_within(self, factor: float) -> float:
        """rho(factor): the share of the problems with a ratio of at most `factor`."""
        within = sum(ratio <= factor for ratio in self.ratios)
        return within / len(self.ratios) if self.ratios else math.nan


def best_values(rows: Sequence[SuiteRow]) -> dict[str, float]:
    """Problem -> least value of all rows, for problems with one."""
    best: dict[str, float] = {}
    for row in rows:
        if not math.isnan(row.value):
            best[row.problem] = min(best.get(row.problem, math.inf), row.value)
    return best


def profiles(rows: Sequence[SuiteRow], *, left_out: bool = True) -> list[Profile]:
    """A profile of each placer, in the order of first appearance.

    Args:
        rows: of one budget. Seeds of one placer on one problem count as runs of their own.
        left_out: count problems that a placer does not take as unsolved.
    """
    best = best_values(rows)
    ratios_of: dict[str, list[float]] = {}
    ran: dict[str, list[SuiteRow]] = {}
    for row in rows:
        if row.problem in best and (left_out or row.status != "left out"):
            ratios_of.setdefault(row.placer, []).append(ratio(row, best[row.problem]))
        if row.evaluations:
            ran.setdefault(row.placer, []).append(row)
    return [
        Profile(
            name,
            tuple(sorted(ratios)),
            _median([row.evaluations for row in ran.get(name, [])]),
            _median([row.processor_seconds for row in ran.get(name, [])]),
        )
        for name, ratios in ratios_of.items()
    ]


def _median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else math.nan


def ratio(row: SuiteRow, best: float) -> float:
    """value / best; 1 if both are 0, inf without a value."""
    if math.isnan(row.value):
        return math.inf
    if best <= 0:
        return 1.0 if row.value <= best else math.inf
    return row.value / best

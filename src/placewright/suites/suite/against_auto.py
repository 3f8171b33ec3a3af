"""`bench auto`: compares `auto` with the best of the other placers, problem by problem."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from placewright.suites.suite.pictures import ratio
from placewright.suites.suite.runs import SuiteRow

AUTO = "auto"
RIVALS = ("heft", "m-etf", "expert", "local-search", "cem", "post", "hsdag-corrected")
EXACT = ("latency-ip", "cp-sat", "ideal-dp", "maxload-ip", "greedy", "dpl")
CLOSE, FAR = 1.01, 1.05  # times the best of the rivals
# Figures of single problems: problem -> largest value, in seconds.
LARGEST_VALUES = {"gnmt training 8gpu": 36.7e-3}


@dataclass(frozen=True)
class RivalComparison:
    """`auto` and the best of its rivals on one problem."""

    problem: str  # name
    value: float  # of `auto`; NaN without one
    bound: float  # the largest bound of any run
    rival: str  # the best of the others, empty if none has a placement
    rival_value: float  # its value
    ratio: float  # value / rival_value; inf without a value of `auto`, 0 without one of a rival
    rivals: int  # how many of them have a row
    load: float  # of the machine, the largest in any of the runs
    work: tuple[int, float] = (0, 0.0)  # evaluations and processor seconds of `auto`
    rival_work: tuple[int, float] = (0, 0.0)  # of the best rival; zeros without one


@dataclass(frozen=True)
class Figure:
    """A target of `auto`, and the result."""

    what: str  # the target, in words
    reached: str  # the result, in words
    is_met: bool | None  # True if the result meets the target; None if rows are missing


def comparisons(rows: Sequence[SuiteRow]) -> list[RivalComparison]:
    """A comparison for each problem of `auto`, in the order of the rows, over all seeds."""
    of_auto = [row for row in rows if row.placer == AUTO]
    return [_comparison(row, [other for other in rows if _is_rival(other, row)]) for row in of_auto]


def figures(compared: Sequence[RivalComparison], n_problems: int) -> list[Figure]:
    """The targets of `auto`, and the results.

    Args:
        compared: comparisons of the problems that are done.
        n_problems: number of all problems.
    """
    done = len(compared) == n_problems and all(comparison.rivals > 0 for comparison in compared)
    close = sum(comparison.ratio <= CLOSE for comparison in compared)
    worst = max(compared, key=lambda comparison: comparison.ratio, default=None)
    allowed = n_problems // 12  # 2 of 24
    listed = [
        Figure(
            f"at most {CLOSE} x the best of the others on {n_problems - allowed} of {n_problems}",
            f"{close} of {len(compared)}",
            (close >= n_problems - allowed) if done else None,
        ),
        Figure(
            f"never above {FAR} x",
            "no row" if worst is None else f"{worst.ratio:.3f} ({worst.problem})",
            (worst is not None and worst.ratio <= FAR) if done else None,
        ),
    ]
    for name, largest in LARGEST_VALUES.items():
        values = [comparison.value for comparison in compared if comparison.problem == name]
        listed.append(
            Figure(
                f"{name}: at most {largest * 1e3:.4g} ms",
                f"{min(values) * 1e3:.4g} ms" if values else "no row",
                min(values) <= largest if values else None,
            )
        )
    return listed


def _is_rival(other: SuiteRow, row: SuiteRow) -> bool:
    same = (other.problem, other.seed, other.budget) == (row.problem, row.seed, row.budget)
    return same and other.placer != AUTO


def _comparison(row: SuiteRow, others: Sequence[SuiteRow]) -> RivalComparison:
    valued = [other for other in others if not math.isnan(other.value)]
    best = min(valued, key=lambda other: other.value, default=None)
    all_rows = [row, *others]
    return RivalComparison(
        problem=row.problem,
        value=row.value,
        bound=max(row.bound for row in all_rows),
        rival="" if best is None else best.placer,
        rival_value=math.nan if best is None else best.value,
        ratio=0.0 if best is None else ratio(row, best.value),
        rivals=len(others),
        load=max(row.load for row in all_rows),
        work=(row.evaluations, row.processor_seconds),
        rival_work=(0, 0.0) if best is None else (best.evaluations, best.processor_seconds),
    )

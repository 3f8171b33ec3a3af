"""Pictures of the suite: performance profiles, and value and bound against time.

Performance profiles: E. D. Dolan, J. J. More, "Benchmarking optimization software with performance
profiles", Mathematical Programming 91, 2002. The measure here is the value of the placement (theirs
was time): r = value / least value of any placer on the problem; rho(t) is the share of the problems
with r <= t. A problem without a placement counts as r = inf. Problems that a placer does not take
count as r = inf, too.
"""

from __future__ import annotations

import io
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from placewright.errors import optional_library
from placewright.io.written import write_files
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


def profiles(rows: Sequence[SuiteRow]) -> list[Profile]:
    """A profile of each placer, in the order of first appearance.

    Args:
        rows: of one budget. Seeds of one placer on one problem count as runs of their own.
    """
    best = best_values(rows)
    ratios_of: dict[str, list[float]] = {}
    ran: dict[str, list[SuiteRow]] = {}
    for row in rows:
        if row.problem in best:
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


_WIDEST = 4.0  # ratio up to which profiles are drawn


def draw_profiles(rows: Sequence[SuiteRow], path: Path) -> None:
    """Share of the problems against the ratio to the best value, a step line for each placer.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """

    def draw(module: Any) -> Any:
        figure, axes = module.subplots(figsize=(7.0, 4.5), layout="constrained")
        for profile in profiles(rows):
            within = sorted(
                {1.0, *(ratio for ratio in profile.ratios if ratio <= _WIDEST), _WIDEST}
            )
            shares = [profile.share_within(factor) for factor in within]
            axes.step(within, shares, where="post", label=profile.placer)
        axes.set_xscale("log")
        axes.set_ylim(0.0, 1.02)
        axes.set_xlabel("value / best known value")
        axes.set_ylabel("share of the problems")
        axes.legend(frameon=False, fontsize="small", ncols=2)
        return figure

    write_picture(draw, path)


def draw_over_time(rows: Sequence[SuiteRow], path: Path) -> None:
    """Value (full) and bound (dashed) over the best known value against seconds, per problem.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    best = best_values(rows)
    names = list(best)

    def draw(module: Any) -> Any:
        columns = min(4, max(1, len(names)))
        lines = max(1, math.ceil(len(names) / columns))
        size = (3.4 * columns, 2.6 * lines)
        figure, grid = module.subplots(
            lines, columns, figsize=size, squeeze=False, layout="constrained"
        )
        for axes, name in zip(grid.flat, names, strict=False):
            _draw_problem(axes, [row for row in rows if row.problem == name], best[name])
            axes.set_title(name, fontsize="small")
        for axes in list(grid.flat)[len(names) :]:
            axes.set_axis_off()
        return figure

    write_picture(draw, path)


def _draw_problem(axes: Any, rows: Sequence[SuiteRow], best: float) -> None:
    scale = best if best > 0 else 1.0
    for row in rows:
        if not row.history:
            continue
        end = [[row.seconds, row.value, row.bound]]
        points = [*row.history, *end]
        seconds = [max(1e-3, point[0]) for point in points]
        (line,) = axes.step(
            seconds, [point[1] / scale for point in points], where="post", label=row.placer
        )
        bounds = [point[2] / scale for point in points]
        if any(bounds):
            axes.step(seconds, bounds, where="post", linestyle="--", color=line.get_color())
    axes.set_xscale("log")
    axes.set_ylim(0.5, 2.0)
    axes.set_xlabel("seconds")
    axes.legend(frameon=False, fontsize="xx-small")


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


_SETTINGS = {
    "svg.hashsalt": "placewright",  # without it, identifiers differ between runs
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def pyplot() -> Any:
    """Matplotlib's drawing module, set up for files.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    matplotlib = optional_library("matplotlib", "plot", "a picture of results")
    matplotlib.use("agg")
    from matplotlib import pyplot as module

    return module


def write_picture(draw: Callable[[Any], Any], path: Path) -> None:
    """Write the figure that `draw` returns as an SVG file.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    module = pyplot()
    with module.rc_context(_SETTINGS):
        figure = draw(module)
        text = io.StringIO()
        # Without a date, equal numbers give equal files. White can be read on dark pages.
        figure.savefig(text, format="svg", metadata={"Date": None}, facecolor="white")
        module.close(figure)
    write_files({path: text.getvalue().encode()})

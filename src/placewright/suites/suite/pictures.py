"""Pictures of the suite: performance profiles, and value and bound against time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from placewright.report.pictures import write_picture
from placewright.suites.suite.profiles import best_values, profiles
from placewright.suites.suite.runs import SuiteRow

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

"""Pictures of a paper's table, and of its transfer to unseen graphs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from placewright.report.learned.runs import LearnedRun
from placewright.report.pictures import write_picture
from placewright.suites.papers.generalisation import LABELS
from placewright.suites.papers.report import bound_of, cells_of, ratio
from placewright.suites.papers.suite import PaperSuite


def draw_suite(suite: PaperSuite, rows: Sequence[LearnedRun], path: Path) -> None:
    """Each method's best placements over the best single device, problem by problem.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    cells = cells_of(rows)
    problems = [case.name for case in suite.cases]
    lines = [
        (placer, stage.evaluations, stage.placers[placer] or placer)
        for stage in suite.stages
        for placer in stage.placers
    ]

    def draw(module: Any) -> Any:
        height = 1.2 + 0.28 * len(lines)
        figure, grid = module.subplots(
            1, len(problems), figsize=(1.6 + 1.7 * len(problems), height), sharey=True,
            squeeze=False, layout="constrained",
        )  # fmt: skip
        for axes, problem in zip(grid.flat, problems, strict=True):
            for at, (placer, evaluations, _) in enumerate(lines):
                runs = cells.get((problem, placer, evaluations))
                if runs and math.isfinite(ratio(runs)):
                    axes.plot(min(ratio(runs), 3.0), at, marker="o", color="C0", markersize=4)
            _mark_published(axes, suite, problem, [label for _, _, label in lines])
            axes.axvline(1.0, color="gray", linewidth=1)
            if not math.isnan(bound := bound_of(cells, problem)):
                axes.axvline(bound, color="C2", linewidth=1, linestyle="--")
            axes.set_title(problem, fontsize="small")
        grid.flat[0].set_yticks(range(len(lines)), [label.strip("`") for _, _, label in lines])
        grid.flat[0].invert_yaxis()
        figure.supxlabel(
            "over the best single device (dots: ours, at most 3; crosses: the paper over its "
            "own; dashed: lower bound)",
            fontsize="small",
        )
        return figure

    write_picture(draw, path)


def _mark_published(axes: Any, suite: PaperSuite, problem: str, labels: Sequence[str]) -> None:
    """The paper's own figures over its own best single device, where both are known."""
    figures = {f.method: f.seconds for f in suite.published if f.problem == problem}
    singles = [figures[name] for name in SINGLES if name in figures]
    if not singles:
        return
    for method, seconds in figures.items():
        at = next((i for i, text in enumerate(labels) if text.startswith(method)), None)
        if at is not None:
            axes.plot(min(seconds / min(singles), 3.0), at, marker="x", color="C3", markersize=5)


SINGLES = ("CPU-only", "GPU-only", "CPU only", "single GPU")


def draw_transfer(rows: Sequence[LearnedRun], path: Path) -> None:
    """Distribution over unseen graphs of the value over local search's, family by family.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    families = list(dict.fromkeys(row.problem.split()[0] for row in rows))
    searched = {row.problem: row.value for row in rows if row.placer == LABELS[-1]}

    def draw(module: Any) -> Any:
        figure, grid = module.subplots(
            1, len(families), figsize=(3.2 * len(families), 3.6), sharey=True, squeeze=False,
            layout="constrained",
        )  # fmt: skip
        for axes, family in zip(grid.flat, families, strict=True):
            for label in LABELS[:-1]:
                values = sorted(
                    row.value / searched[row.problem]
                    for row in rows
                    if row.placer == label and row.problem.split()[0] == family
                )
                shares = [(at + 1) / len(values) for at in range(len(values))]
                axes.step(values, shares, where="post", marker="o", markersize=3, label=label)
            axes.axvline(1.0, color="gray", linewidth=1)
            axes.set_title(family)
        grid.flat[0].set_ylabel("share of unseen graphs")
        figure.supxlabel("over local search with 1,000 evaluations", fontsize="small")
        figure.legend(
            *grid.flat[0].get_legend_handles_labels(), loc="outside lower center", frameon=False,
            fontsize="small",
        )  # fmt: skip
        return figure

    write_picture(draw, path)

"""Pictures of benchmark results, as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.accuracy import read_accuracy
from benchmarks.accuracy_report import KINDS, AccuracyRow
from benchmarks.kernel import read_results
from placewright.suites.learned import read_runs
from placewright.suites.papers.report import draw_suite, draw_transfer, unseen_rows
from placewright.suites.papers.suite import PAPERS, paper_suite
from placewright.suites.suite.pictures import write_picture

_MARKERS = {"random": "o", "heuristic": "s", "near-best": "^", "replicated": "D"}


def draw_results(folder: Path, to: Path) -> None:
    """Draw every picture of the result pages from the rows in `folder`.

    Args:
        to: folder of the pictures, which may be the same.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    draw_accuracy(read_accuracy(folder / "accuracy.json"), to / "accuracy.svg")
    draw_kernel_rates(read_results(folder / "kernel.json"), to / "kernel.svg")
    runs = read_runs(folder / "paper.json")
    for name in PAPERS:
        suite = paper_suite(name)
        problems = {case.name for case in suite.cases}
        of_suite = [run for run in runs if run.problem in problems]
        draw_suite(suite, of_suite, to / f"paper-{name}.svg")
    draw_transfer(unseen_rows(runs), to / "paper-placeto-unseen.svg")


def draw_kernel_rates(rows: Sequence[Any], path: Path) -> None:
    """Draw ops per second by number of ops, a line per number of devices and inputs.

    Args:
        rows: of `benchmarks.kernel`.
        path: of the picture.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """

    def draw(module: Any) -> Any:
        figure, axes = module.subplots(figsize=(7.0, 4.0), layout="constrained")
        for devices, inputs in sorted({_family(row) for row in rows}):
            line = sorted(
                (row.ops, row.ops_per_second / 1e6)
                for row in rows
                if _family(row) == (devices, inputs)
            )
            plural = "input" if inputs == 1 else "inputs"
            label = f"{devices} devices, {inputs} {plural} per op"
            axes.plot(*zip(*line, strict=True), marker="o", label=label)
        axes.set_xscale("log")
        axes.set_ylim(bottom=0.0)
        axes.set_xlabel("ops")
        axes.set_ylabel("million ops per second and core")
        axes.set_title("One evaluation of a random placement")
        axes.legend(frameon=False)
        return figure

    write_picture(draw, path)


def draw_accuracy(rows: Sequence[AccuracyRow], path: Path) -> None:
    """Draw predicted against measured milliseconds, a picture per model.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    models = list(dict.fromkeys(row.model for row in rows))

    def draw(module: Any) -> Any:
        columns = min(3, len(models))
        lines = math.ceil(len(models) / columns)
        figure, grid = module.subplots(
            lines,
            columns,
            figsize=(3.6 * columns, 3.6 * lines),
            squeeze=False,
            layout="constrained",
        )
        for axes, model in zip(grid.flat, models, strict=False):
            _draw_model(axes, [row for row in rows if row.model == model])
            axes.set_title(model)
        for axes in list(grid.flat)[len(models) :]:
            axes.set_axis_off()
        return figure

    write_picture(draw, path)


def _family(row: Any) -> tuple[int, int]:
    return row.devices, max(1, round(row.edges / row.ops))


def _draw_model(axes: Any, rows: Sequence[AccuracyRow]) -> None:
    for kind in KINDS:
        part = [row for row in rows if row.kind == kind]
        if not part:
            continue
        axes.errorbar(
            [row.measured * 1e3 for row in part],
            [row.predicted * 1e3 for row in part],
            xerr=[row.noise * 1e3 for row in part],
            fmt=_MARKERS[kind],
            markersize=4,
            linewidth=1,
            label=kind,
        )
    values = [value * 1e3 for row in rows for value in (row.measured, row.predicted)]
    ends = [min(values), max(values)]
    axes.plot(ends, ends, color="gray", linewidth=1)
    axes.set_xlabel("measured, ms")
    axes.set_ylabel("predicted, ms")
    axes.legend(frameon=False, fontsize="small")

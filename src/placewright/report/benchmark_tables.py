"""What the benchmarks print, each as a table; rows are those of the benchmark of its name."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from placewright.report.page.tables import ShownTable

_FACTORS = (1.0, 1.01, 1.05, 1.2, 2.0)  # of a performance profile


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> ShownTable:
    return ShownTable(title, tuple(columns), tuple(tuple(row) for row in rows))


def tarnawski_table(rows: Sequence[Any]) -> ShownTable:
    """Of `benchmarks.tarnawski`: a row for each workload and method."""
    columns = ["workload", "method", "value (ms)", "bound", "gap", "seconds", "evaluations",
               "core s", "MiB"]  # fmt: skip
    title = "Tarnawski et al. 2020: equal seconds, with evaluations and core-seconds"
    return table(title, columns, [
        [
            row.workload,
            row.method,
            "-" if row.value is None else f"{row.value:.2f}",
            f"{row.bound:.2f}",
            "-" if row.value is None or row.bound <= 0 else f"{row.value / row.bound - 1:.1%}",
            f"{row.seconds:.2f}",
            f"{row.evaluations:,}" if row.evaluations else "-",
            f"{row.core_seconds:.2f}" if row.core_seconds else "-",
            f"{row.peak_memory_bytes / 2**20:.0f}",
        ]
        for row in rows
    ])  # fmt: skip


def profiles_table(found: Sequence[Any]) -> ShownTable:
    """Of `benchmarks.suite.profiles`: a row for each placer."""
    columns = ["placer", "runs", *(f"within {f:g}" for f in _FACTORS), "evaluations", "core s"]
    title = (
        "Share of the problems, by value / best known value; medians of evaluations and "
        "core-seconds"
    )
    return table(title, columns, [
        [
            one.placer,
            str(len(one.ratios)),
            *(f"{one.share_within(f):.0%}" for f in _FACTORS),
            "-" if math.isnan(one.evaluations) else f"{one.evaluations:.0f}",
            "-" if math.isnan(one.core_seconds) else f"{one.core_seconds:.1f}",
        ]
        for one in sorted(found, key=lambda one: -one.share_within(1.05))
    ])  # fmt: skip


def rivals_table(found: Sequence[Any]) -> ShownTable:
    """Of `benchmarks.suite.against_auto.comparisons`: a row for each problem."""
    columns = ["problem", "auto (ms)", "gap", "its evaluations, core s", "best of the others",
               "its evaluations, core s", "ratio", "load"]  # fmt: skip
    title = "auto beside the best of the others, each with its evaluations and core-seconds"
    return table(title, columns, [
        [
            one.problem,
            f"{one.value * 1e3:.4g}",
            "-" if one.bound <= 0 else f"{one.value / one.bound - 1:.1%}",
            _work(*one.work),
            f"{one.rival} {one.rival_value * 1e3:.4g}" if one.rival else "-",
            _work(*one.rival_work) if one.rival else "-",
            f"{one.ratio:.3f}",
            f"{one.load:.1f}",
        ]
        for one in found
    ])  # fmt: skip


def _work(evaluations: int, core_seconds: float) -> str:
    return f"{evaluations:,}, {core_seconds:.1f}"


def promises_table(promised: Sequence[Any]) -> ShownTable:
    """Of `benchmarks.suite.against_auto.figures`: a row for each figure."""
    words = {True: "yes", False: "no", None: "open"}
    return table("Promised of auto", ["figure", "reached", "met"], [
        [one.what, one.reached, words[one.is_met]] for one in promised
    ])  # fmt: skip

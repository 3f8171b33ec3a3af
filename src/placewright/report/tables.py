"""Values, counts and tables as text: those that commands print, and those of the suites."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

_FACTORS = (1.0, 1.01, 1.05, 1.2, 2.0)  # of a performance profile


@dataclass(frozen=True)
class ShownTable:
    """A table with a title; cells are text."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table; the first column is left-aligned, the others right."""
    lines = [f"| {' | '.join(columns)} |", f"| --- |{' ---: |' * (len(columns) - 1)}"]
    return lines + [f"| {' | '.join(row)} |" for row in rows]


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> ShownTable:
    """A table from any sequences of columns and cells."""
    return ShownTable(title, tuple(columns), tuple(tuple(row) for row in rows))


def tarnawski_table(rows: Sequence[Any]) -> ShownTable:
    """Rows of `suites.tarnawski`, one for each workload and method."""
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


def profiles_table(profiles: Sequence[Any]) -> ShownTable:
    """Performance profiles of `suites.suite.pictures.profiles`, a row for each placer."""
    columns = ["placer", "runs", *(f"within {f:g}" for f in _FACTORS), "evaluations", "core s"]
    title = (
        "Share of the problems, by value / best known value; medians of evaluations and "
        "core-seconds"
    )
    return table(title, columns, [
        [
            profile.placer,
            str(len(profile.ratios)),
            *(f"{profile.share_within(f):.0%}" for f in _FACTORS),
            "-" if math.isnan(profile.evaluations) else f"{profile.evaluations:.0f}",
            "-" if math.isnan(profile.core_seconds) else f"{profile.core_seconds:.1f}",
        ]
        for profile in sorted(profiles, key=lambda profile: -profile.share_within(1.05))
    ])  # fmt: skip


def rivals_table(comparisons: Sequence[Any]) -> ShownTable:
    """Comparisons of `suites.suite.pictures`, a row for each problem."""
    columns = ["problem", "auto (ms)", "gap", "its evaluations, core s", "best of the others",
               "its evaluations, core s", "ratio", "load"]  # fmt: skip
    title = "auto beside the best of the others, each with its evaluations and core-seconds"
    return table(title, columns, [
        [
            row.problem,
            _number(row.value * 1e3, ".4g"),
            _number(row.value / row.bound - 1 if row.bound > 0 else math.nan, ".1%"),
            _work(*row.work),
            f"{row.rival} {row.rival_value * 1e3:.4g}" if row.rival else "-",
            _work(*row.rival_work) if row.rival else "-",
            _number(row.ratio if row.rival else math.nan, ".3f"),
            _number(row.load, ".1f"),
        ]
        for row in comparisons
    ])  # fmt: skip


def _number(value: float, form: str) -> str:
    return f"{value:{form}}" if math.isfinite(value) else "-"


def _work(evaluations: int, core_seconds: float) -> str:
    return f"{evaluations:,}, {core_seconds:.1f}"


def promises_table(promised: Sequence[Any]) -> ShownTable:
    """Figures of `suites.suite.pictures`, a row for each."""
    words = {True: "yes", False: "no", None: "open"}
    return table("Promised of auto", ["figure", "reached", "met"], [
        [figure.what, figure.reached, words[figure.is_met]] for figure in promised
    ])  # fmt: skip


def ab_table(rows: Sequence[Any], measured: Mapping[str, Mapping[str, float]]) -> ShownTable:
    """Scored comparisons of `suites.llm_ab`, a row for each."""
    columns = ["comparison", "engine", "predicted", "measured", "winner", "error of ratios",
               "optimum, limit"]  # fmt: skip
    title = "Published comparisons: tokens per second, by constants that have not seen the source"
    return table(title, columns, [
        [
            row.id,
            row.engine,
            _rates(row.predicted),
            _rates(measured[row.id]),
            ("right" if row.right else "wrong") if row.differs else "differ by less than 5 %",
            f"{row.ratio_error:.2f}",
            "-" if math.isnan(row.optimum) else f"{row.optimum:.4g}, {row.bound:.4g}",
        ]
        for row in rows
        if not row.reason
    ])  # fmt: skip


def ab_left_out_table(rows: Sequence[Any]) -> ShownTable:
    """Comparisons of `suites.llm_ab` that are not scored, with the reason."""
    left_out = [[row.id, row.reason] for row in rows if row.reason]
    return table("Comparisons that are not scored", ["comparison", "reason"], left_out)


def ab_winners(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Shares of winners that rules find, for all comparisons that differ and for surprises."""
    differing = [row for row in rows if not row["reason"] and row["differs"]]
    groups = {
        "options differ by more than 5 %": differing,
        "the better-looking option lost": [row for row in differing if row["surprising"]],
    }
    rules = ["right", "right_stated", "right_fewest", "right_bandwidth"]
    columns = ["comparisons", "number", "predicted", "by the catalogue", "fewest devices",
               "most bandwidth", "median error of ratios"]  # fmt: skip
    return columns, [
        [
            name,
            str(len(group)),
            *(f"{sum(row[rule] for row in group) / len(group):.0%}" for rule in rules),
            f"{median(row['ratio_error'] for row in group):.2f}",
        ]
        for name, group in groups.items()
        if group
    ]


def ab_engines(engines: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Errors of speeds of each engine of `suites.llm_ab`."""
    columns = ["engine", "options", "sources", "median error", "factors of the rates",
               "interval: phase, factors, held-out options within"]  # fmt: skip
    return columns, [
        [
            engine["engine"],
            str(engine["options"]),
            str(engine["sources"]),
            f"{engine['error']:.2f}",
            ", ".join(f"{name} {value:.2f}" for name, value in engine["factors"].items()),
            "; ".join(
                f"{phase} {own['low']:.2f} to {own['high']:.2f}, {own['held_out']} of "
                f"{own['options']}"
                for phase, own in engine["intervals"].items()
            )
            or "-",
        ]
        for engine in engines
    ]


def _rates(rates: Mapping[str, float]) -> str:
    return ", ".join(f"{key} {rate:.4g}" for key, rate in rates.items())


_LONGEST_NAME = 40  # characters of an operator's name in a table


def short_name(name: str) -> str:
    """A name of at most 40 characters; of a longer one the beginning and the end.

    Names of fused operators hold those of all their parts, and fill a table.

    >>> short_name("block/relu;block/norm;block/conv/BiasAdd;block/conv")
    'block/relu;block/no...BiasAdd;block/conv'
    """
    if len(name) <= _LONGEST_NAME:
        return name
    end = (_LONGEST_NAME - 3) // 2
    return f"{name[: _LONGEST_NAME - 3 - end]}...{name[-end:]}"

"""The report of the learned benchmark: one Markdown file over all results files of a folder."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from placewright.benchmarks.comparison_file import read_results
from placewright.benchmarks.comparison_table import ComparisonTable, Row
from placewright.files.text import write_text

PREFIX = "learned-"
YARDSTICK = "random"


@dataclass(frozen=True)
class ProblemTable:
    """All runs on one problem.

    Attributes:
        name: of the problem.
        table: its comparison.
    """

    name: str
    table: ComparisonTable


def result_name(problem: str, evaluations: int) -> str:
    """File name of one problem's results."""
    return f"{PREFIX}{problem.replace(' ', '_').replace('/', '_')}-{evaluations}.json"


def report_path(folder: Path, evaluations: int) -> Path:
    """The report of one number of evaluations."""
    return folder / f"{PREFIX}{evaluations}.md"


def write_report(folder: Path, evaluations: int) -> Path:
    """Write the report over all results in `folder` with this number of evaluations.

    The best known value of a problem is the smallest in any results file on the same problem, so
    what a larger budget found counts here too.
    """
    ending = f"-{evaluations}.json"
    best: dict[str, float] = {}
    found: dict[str, tuple[str, ComparisonTable]] = {}
    for path in sorted(folder.glob(f"{PREFIX}*.json")):
        key, table = read_results(path)
        best[key] = min(best.get(key, math.inf), table.best_known)
        if path.name.endswith(ending):
            found[path.name.removeprefix(PREFIX).removesuffix(ending)] = (key, table)
    tables = [
        ProblemTable(name, replace(table, best_known=best[key]))
        for name, (key, table) in found.items()
    ]
    path = report_path(folder, evaluations)
    write_text(path, report_text(tables, evaluations))
    return path


def report_text(tables: Sequence[ProblemTable], evaluations: int) -> str:
    """Medians of all placers on all problems, then every problem's table."""
    parts = [
        f"# Learned placers, {evaluations:,} evaluations",
        "",
        "Written by `placewright bench learned`. Every query counts. Columns: median and range of "
        "the best placement of each run; that median above the best known value (the smallest of "
        "any run, of other budgets too); median number of evaluations to within 2 % of it, and how "
        "many runs came there; median processor seconds of a run.",
        "",
        *median_lines(tables),
    ]
    for entry in tables:
        parts += [
            "",
            f"## {entry.name}",
            "",
            *markdown(entry.table.columns, entry.table.text_rows()),
        ]
    return "\n".join(parts) + "\n"


def median_lines(tables: Sequence[ProblemTable]) -> list[str]:
    """One row per problem: each placer's median over the best known value."""
    names = sorted({row.placer for entry in tables for row in entry.table.rows})
    rows = []
    for entry in tables:
        by_name = {row.placer: row for row in entry.table.rows}
        cells = [_ratio(by_name.get(name)) for name in names]
        rows.append([entry.name, entry.table.text_of(entry.table.best_known), *cells])
    if any(row.placer == YARDSTICK for entry in tables for row in entry.table.rows):
        beaten = [f"{wins} of {runs}" for wins, runs in (beats(tables, name) for name in names)]
        rows.append([f"median below that of `{YARDSTICK}`", "", *beaten])
    return ["Median over best known:", "", *markdown(["problem", "best known", *names], rows)]


def beats(tables: Sequence[ProblemTable], placer: str) -> tuple[int, int]:
    """On how many problems a placer's median is below random search's, and of how many."""
    wins = total = 0
    for entry in tables:
        median = {row.placer: row.median for row in entry.table.rows}
        if placer in median and YARDSTICK in median:
            total += 1
            wins += median[placer] < median[YARDSTICK]
    return wins, total


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table; the first column is left-aligned, the others right."""
    lines = [f"| {' | '.join(columns)} |", f"| --- |{' ---: |' * (len(columns) - 1)}"]
    return lines + [f"| {' | '.join(row)} |" for row in rows]


def _ratio(row: Row | None) -> str:
    if row is None:
        return ""
    return f"{1.0 + row.gap_to_best:.3f}" if math.isfinite(row.gap_to_best) else "-"

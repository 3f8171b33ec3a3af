"""Tables of the page of headlines: what papers claim, beside what was found here."""

from __future__ import annotations

import math
from typing import Any

from benchmarks.result_tables import Table
from placewright.report.learned_statistics import LearnedRun
from placewright.suites.papers.report import cells_of, figure_text, headline_rows
from placewright.suites.papers.suite import PAPERS, paper_suite


def claims(_: Any) -> Table:
    """Each paper's best-known figure, and what it is compared with."""
    suites = [paper_suite(name) for name in PAPERS]
    return ["paper", "what it states", "figure in the next table", "our evaluations"], [
        [
            f"[{suite.name}](paper-{suite.name}.md)",
            suite.headline.stated,
            suite.headline.figure,
            f"{suite.headline.evaluations:,}",
        ]
        for suite in suites
    ]


def figures(document: Any) -> Table:
    """Published and found figures of each problem with rows, a line for each."""
    cells = cells_of([_run_of(row) for row in document["rows"]])
    columns, lines = ["paper", "problem"], []
    for name in PAPERS:
        suite = paper_suite(name)
        parts = headline_rows(suite, cells)
        columns = ["paper", "problem", *(part for part, _ in parts)]
        for at, case in enumerate(suite.headline.cases):
            found = [values[at] for _, values in parts]
            if any(map(math.isfinite, found[1:])):
                lines.append([name, case, *map(figure_text, found)])
    return columns, lines


def _run_of(row: dict[str, Any]) -> LearnedRun:
    value = math.nan if row["value"] is None else row["value"]
    return LearnedRun(**{**row, "value": value, "parts": []})

"""The Markdown report of foreign models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from benchmarks.foreign.runs import ForeignRow
from placewright.report.tables import markdown_table


def foreign_table(rows: Sequence[ForeignRow]) -> str:
    """Counts per runtime and format, then the models that were not equal with their reasons."""
    groups = sorted({(row.format, row.runtime) for row in rows if row.runtime})
    outcomes = ("equal", "refused", "not equal", "failed")
    counts = Counter((row.format, row.runtime, row.outcome) for row in rows)
    summary = [
        [format_, runtime, *(str(counts[format_, runtime, outcome]) for outcome in outcomes)]
        for format_, runtime in groups
    ]
    not_made = [row for row in rows if row.outcome == "not made"]
    others = [row for row in rows if row.outcome not in ("equal", "not made")]
    parts = [
        "# Foreign models",
        "",
        "Written by `python -m benchmarks.foreign`. Each model was placed on two cores so that "
        "both have work,",
        "run, and compared with the unsplit model in the same runtime.",
        "",
        *markdown_table(["format", "runtime", *outcomes], summary),
        "",
        f"{len(not_made)} models could not be made: the exporter failed.",
        "",
        "## Not run, and why",
        "",
        *markdown_table(
            ["model", "format", "runtime", "outcome", "why"],
            [[row.model, row.format, row.runtime or "-", row.outcome, _cell(row.reason)] for row in
             (*others, *not_made)],
        ),
        "",
        "## Run with equal outputs",
        "",
        *markdown_table(
            ["model", "format", "runtime", "ops", "units", "segments", "relative error"],
            [
                [row.model, row.format, row.runtime, str(row.ops), str(row.units),
                 str(row.segments), f"{row.error:.1g}"]
                for row in rows
                if row.outcome == "equal"
            ],
        ),
    ]  # fmt: skip
    return "\n".join(parts) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "/").split())

"""The Markdown report of streams: the rate of each way and the recommended way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.stored_rows import provenance
from placewright.core.quantities import format_duration
from placewright.report.tables import markdown_table

_SINGLE = "best single device"


def streams_text(rows: Sequence[Any]) -> str:
    """The report of rows of `benchmarks.streams`, with a section per pair of cores."""
    lines = [
        "# Ways to stream each model",
        "",
        "Written by `python -m benchmarks.streams`. All ways of a row ran in turns; rates are",
        "samples per second, medians of their rounds. *Of the best* is the rate of the",
        "recommended way over the highest rate of any way.",
        "",
        *provenance({"rows": [vars(row) for row in rows]}),
    ]
    for cluster in dict.fromkeys(row.cluster for row in rows):
        here = [row for row in rows if row.cluster == cluster]
        lines += ["", f"## {cluster[0].upper()}{cluster[1:]}", "", *_rates(here)]
        measured = [row.of_best for row in here if row.rates]
        if measured:
            lines += ["", f"The recommended way has {min(measured):.2f} of the best rate or more."]
        lines += ["", *_details(here)]
        left_out = [
            f"- {row.model}: '{name}' is left out: {why}"
            for row in here
            for name, why in row.left_out.items()
        ]
        lines += ["", *left_out] if left_out else []
    return "\n".join(lines) + "\n"


def _rates(rows: Sequence[Any]) -> list[str]:
    """A line per model, a column per way."""
    ways = list(dict.fromkeys(_way(name) for row in rows for name in row.rates))
    columns = ["model", *ways, "recommended", "of the best"]
    table = []
    for row in rows:
        rates = {_way(name): (name, rate) for name, rate in row.rates.items()}
        cells = [
            f"{rates[way][1]:.1f}{_device(rates[way][0])}" if way in rates else "-" for way in ways
        ]
        last = [row.recommended, f"{row.of_best:.2f}"] if row.rates else [row.message, "-"]
        table.append([row.model, *cells, *last])
    return markdown_table(columns, table)


def _details(rows: Sequence[Any]) -> list[str]:
    """A line per model and way."""
    columns = ["model and way", "samples/s", "spread", "predicted", "95 % done within"]
    table = []
    for row in rows:
        for name, rate in row.rates.items():
            predicted = row.predicted.get(name)
            table.append(
                [
                    f"{row.model}, {name}",
                    f"{rate:.2f}",
                    f"{row.spreads[name]:.1%}",
                    "-" if predicted is None else f"{predicted:.2f}",
                    format_duration(row.latencies[name]),
                ]
            )
    verdicts = [f"- {row.model}: {row.verdict}" for row in rows if row.verdict]
    return [*markdown_table(columns, table), "", *verdicts]


def _way(name: str) -> str:
    return _SINGLE if name.startswith("cpu") else name


def _device(name: str) -> str:
    """The best single device, in parentheses behind its rate."""
    return f" ({name})" if _way(name) == _SINGLE else ""

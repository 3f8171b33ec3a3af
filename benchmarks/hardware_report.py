"""The text of a record of hardware measurements, for the documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from placewright.core.quantities import format_bytes
from placewright.report.tables import markdown_table

Table = tuple[list[str], list[list[str]]]

_AS_FAST = 1.01  # a ratio of times that noise explains
CHOSEN = "chosen"  # the placer's answer, among the rows of placements


def record_text(known: Mapping[str, Any]) -> str:
    """The text of ``table.md`` for a record."""
    machine, models = known["machine"], known["models"]
    lines = ["# Placements on the hardware", "", f"Machine, {known['recorded']}:", ""]
    lines += [f"- `{name}`: {text}" for name, text in machine["devices"].items()]
    lines += [f"- {name} {text}" for name, text in machine["versions"].items()]
    for key, title in (("table", "Without limits"), ("limited", "Under a memory limit")):
        tables = {n: e[key] for n, e in models.items() if key in e}
        if tables:
            lines += [
                "",
                f"## {title}",
                "",
                *_limits(tables),
                *markdown_table(*contender_table(tables)),
                "",
            ]
            lines += [_verdict(tables), _memory_verdict(tables)]
    equal = {n: e["equality"] for n, e in models.items() if "equality" in e}
    if equal:
        lines += [
            "",
            "## Split placements beside the unsplit model",
            "",
            *markdown_table(*equality_table(equal)),
        ]
    errors = [row for e in models.values() for row in e.get("accuracy", [])]
    if errors:
        lines += ["", "## Predicted against measured", "", *markdown_table(*accuracy_table(errors))]
    failures = [
        f"- {name}, {step}: {' '.join(failure['error'].split())}"
        for name, entry in models.items()
        for step, failure in entry.get("failures", {}).items()
    ]
    if failures:
        lines += ["", "## What failed", "", *failures]
    return "\n".join(lines) + "\n"


def _limits(tables: Mapping[str, Any]) -> list[str]:
    found = [
        f"- {name}: {device} {format_bytes(size)}"
        for name, table in tables.items()
        for device, size in table["limits"].items()
        if size is not None
    ]
    return [*found, ""] if found else []


def contender_table(tables: Mapping[str, Any]) -> Table:
    """Every way to run each model; without seconds the reason."""
    cells = []
    for name, table in tables.items():
        for row in table["rows"]:
            measured = (
                row["reason"] if row["measured"] is None else f"{row['measured'] * 1e3:.2f} ms"
            )
            predicted = "-" if row["predicted"] is None else f"{row['predicted'] * 1e3:.2f} ms"
            memory = ", ".join(
                f"{device} {format_bytes(size)} ({row['memory_predicted'][device] / size - 1:+.1%})"
                for device, size in row["memory_measured"].items()
                if size
            )
            cells.append([name, row["name"], measured, predicted, memory or "-"])
    columns = ["model", "contender", "measured", "predicted"]
    return [*columns, "peak memory, measured (predicted)"], cells


def _verdict(tables: Mapping[str, Any]) -> str:
    """Sentence: how often the chosen placement is as fast as the best other, or faster."""
    as_fast = faster = compared = 0
    for table in tables.values():
        rows = [row for row in table["rows"] if row["measured"] is not None]
        mine = next((row for row in rows if row["name"] == CHOSEN), None)
        others = [row for row in rows if row["name"] != CHOSEN]
        compared += 1
        if mine is None:
            continue
        best = min(others, key=lambda row: row["measured"], default=None)
        if best is None:  # nothing simpler fits
            as_fast, faster = as_fast + 1, faster + 1
            continue
        as_fast += mine["measured"] <= _AS_FAST * best["measured"]
        apart = (mine["spread"] + best["spread"]) / 2
        faster += mine["measured"] < best["measured"] - apart
    return (
        f"The chosen placement is as fast as the best other way (within 1 %) on {as_fast} of "
        f"{compared} models, and faster by more than the spread, or the only way that fits, on "
        f"{faster}."
    )


def _memory_verdict(tables: Mapping[str, Any]) -> str:
    """Sentence: the error of predicted peaks of chosen placements."""
    errors = [
        abs(row["memory_predicted"][device] / size - 1)
        for table in tables.values()
        for row in table["rows"]
        if row["name"] == CHOSEN
        for device, size in row["memory_measured"].items()
        if size
    ]
    if not errors:
        return "No peak memory was measured."
    within = sum(error <= 0.1 for error in errors)
    return (
        f"Predicted peaks of the chosen placements are within 10 % of measured ones on {within} of "
        f"{len(errors)} devices, {max(errors):.1%} off at most."
    )


def equality_table(found: Mapping[str, Any]) -> Table:
    """Outputs of split placements beside those of the unsplit model."""
    cells = []
    for name, row in found.items():
        error = "not finite" if row["largest_error"] is None else f"{row['largest_error']:.2g}"
        segments = f"{row['fewest_segments']} to {row['most_segments']}"
        equal = f"{row['equal']}/{row['placements']}"
        cells.append([name, equal, error, f"{row['tolerance']:.2g}", segments])
    return ["model", "equal", "largest relative error", "tolerance", "segments"], cells


def accuracy_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Errors of predictions for placements of several kinds."""
    columns = ["model", "placements", "number", "median error", "95th percentile"]
    return columns, [
        [row["model"], row["kind"], str(row["placements"]), f"{row['median']:.1%}",
         f"{row['p95']:.1%}"]
        for row in rows
    ]  # fmt: skip

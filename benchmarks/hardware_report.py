"""The text of a record of hardware measurements, for the documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from placewright.core.quantities import format_bytes

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
            lines += ["", f"## {title}", "", *_limits(tables), *_rows(tables), ""]
            lines += [_verdict(tables), _memory_verdict(tables)]
    equal = {n: e["equality"] for n, e in models.items() if "equality" in e}
    if equal:
        lines += ["", "## Split placements beside the unsplit model", "", *_equality(equal)]
    errors = [row for e in models.values() for row in e.get("accuracy", [])]
    if errors:
        lines += ["", "## Predicted against measured", "", *_accuracy(errors)]
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


def _rows(tables: Mapping[str, Any]) -> list[str]:
    lines = ["| model | contender | measured | predicted | peak memory, measured (predicted) |",
             "| --- | --- | ---: | ---: | --- |"]  # fmt: skip
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
            lines.append(f"| {name} | {row['name']} | {measured} | {predicted} | {memory or '-'} |")
    return lines


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


def _equality(found: Mapping[str, Any]) -> list[str]:
    lines = ["| model | equal | largest relative error | tolerance | segments |",
             "| --- | ---: | ---: | ---: | ---: |"]  # fmt: skip
    for name, row in found.items():
        error = "not finite" if row["largest_error"] is None else f"{row['largest_error']:.2g}"
        lines.append(
            f"| {name} | {row['equal']}/{row['placements']} | {error} | {row['tolerance']:.2g} | "
            f"{row['fewest_segments']} to {row['most_segments']} |"
        )
    return lines


def _accuracy(rows: Sequence[dict[str, Any]]) -> list[str]:
    lines = ["| model | placements | number | median error | 95th percentile |",
             "| --- | --- | ---: | ---: | ---: |"]  # fmt: skip
    return lines + [
        f"| {row['model']} | {row['kind']} | {row['placements']} | {row['median']:.1%} | "
        f"{row['p95']:.1%} |"
        for row in rows
    ]

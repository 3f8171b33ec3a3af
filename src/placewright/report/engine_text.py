"""A plan that an engine of language models ran, as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from placewright.core.cluster import Cluster
from placewright.core.quantities import format_bytes, format_duration


def engine_lines(document: Mapping[str, Any]) -> list[str]:
    """The lines that `placewright run --engine` prints."""
    return [
        *_place_lines(document),
        *_token_lines(document),
        *_speed_lines(document),
        *(f"  {name}: not measured; {why}" for name, why in document["left_out"].items()),
        document["verdict"],
    ]


def _place_lines(document: Mapping[str, Any]) -> list[str]:
    faults = document["place_faults"]
    compared = (
        f"{document['layers']} layers, {document['moved_tensors']} moved tensors and the bytes of "
        f"{len(document['memory'])} memories"
    )
    head = (
        f"the engine ({document['engine']}) has {compared} where the plan has them"
        if not faults
        else f"NOT where the plan has them, of {compared}:"
    )
    lines = [head, *(f"  {fault}" for fault in faults)]
    for name, memory in document["memory"].items():
        lines.append(
            f"  {name}: {format_bytes(memory['printed_weights'])} of weights, "
            f"{format_bytes(memory['printed_caches'])} of caches, "
            f"{format_bytes(memory['printed_buffers'])} of buffers "
            f"(estimated {format_bytes(memory['buffers'])})"
        )
    return lines


def _token_lines(document: Mapping[str, Any]) -> list[str]:
    rows = document["equal_tokens"]
    if not rows:
        return ["the context is too short to compare tokens"]
    lengths = ", ".join(str(row["letters"]) for row in rows)
    different = [row for row in rows if row["equal"] < row["compared"]]
    if not different:
        count = rows[0]["compared"]
        return [f"{count} tokens equal those of the unsplit model, behind {lengths} letters each"]
    parts = ", ".join(
        f"the first {row['equal']} of {row['compared']} behind {row['letters']} letters are equal"
        for row in different
    )
    return [f"tokens are NOT EQUAL to those of the unsplit model: {parts}"]


def _speed_lines(document: Mapping[str, Any]) -> list[str]:
    request = document["request"]
    lines = [
        f"prompt of {request['prompt']} tokens, {request['generate']} generated; medians of "
        "interleaved runs:"
    ]
    for name, phases in document["contenders"].items():
        parts = [_phase_text(phase, row) for phase, row in phases.items()]
        total = sum(row["median"] for row in phases.values())
        lines.append(f"  {name}: {', '.join(parts)}; together {format_duration(total)}")
    return lines


def _phase_text(phase: str, row: Mapping[str, Any]) -> str:
    text = f"{phase} {row['tokens_per_second']:.3g} tokens/s"
    predicted = row["predicted"]
    if predicted is None:
        return text
    return f"{text} (predicted {predicted / row['median'] - 1.0:+.0%} of the time)"


def rate_rows(cluster: Cluster) -> tuple[list[str], list[list[str]]]:
    """Columns and rows of the measured rates of an engine's devices."""
    columns = ["device", "format", "Gop/s at 1 row", "Gop/s at most rows", "rows"]
    rows = [
        [
            device.name,
            name,
            f"{1e-9 / table[0]:.3g}",
            f"{1e-9 / table[-1]:.3g}",
            f"{sheet.tokens.rows[-1]:.0f}",
        ]
        for device in cluster.devices
        if (sheet := device.data_sheet) is not None and sheet.tokens is not None
        for name, table in sheet.tokens.products.items()
    ]
    return columns, rows

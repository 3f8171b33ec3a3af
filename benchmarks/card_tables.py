"""Tables of the page about a GPU, from a record of `scripts/measure_cuda.py` and own rows."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from benchmarks.hardware_report import (
    Table,
    accuracy_table,
    contender_table,
    equality_table,
)
from placewright.profiling.roofline import FITTED_CLASSES


def contenders(record: Mapping[str, Any]) -> Table:
    """Every way to run each model, without limits."""
    return contender_table(_having(record, "table"))


def within_limits(record: Mapping[str, Any]) -> Table:
    """The same where the GPU has room for half of the model."""
    return contender_table(_having(record, "limited"))


def equality(record: Mapping[str, Any]) -> Table:
    """Outputs of random splits compared with those of the unsplit model."""
    return equality_table(_having(record, "equality"))


def accuracy(record: Mapping[str, Any]) -> Table:
    """Errors of predictions for placements of several kinds."""
    return accuracy_table([row for rows in _having(record, "accuracy").values() for row in rows])


def whole_models(document: Mapping[str, Any]) -> Table:
    """Predicted over measured seconds of each model, and of all together."""
    rows = document["rows"]
    cells = [
        [
            row["model"], f"{row['batch']} x {row['tokens']}", _milliseconds(row["measured"]),
            *(f"{row[way] / row['measured']:.2f}" for way in ("kernels", "fitted", "assumed")),
        ]
        for row in rows
    ]  # fmt: skip
    errors = [
        f"{statistics.median(abs(row[way] / row['measured'] - 1) for row in rows):.1%}"
        for way in ("kernels", "fitted", "assumed")
    ]
    cells.append(["median error", "", "", *errors])
    return ["model", "sequences", "measured", "its ops", "fitted", "assumed"], cells


def intervals(document: Mapping[str, Any]) -> Table:
    """Ops whose measured seconds lie in the interval of their prediction, by class."""
    cells = []
    for name in FITTED_CLASSES:
        found = [row["inside"][name] for row in document["rows"] if name in row["inside"]]
        if found:
            ops, inside = (sum(counts) for counts in zip(*found, strict=True))
            cells.append([name, str(ops), f"{inside / ops:.0%}"])
    return ["class", "ops", "inside"], cells


def _having(record: Mapping[str, Any], step: str) -> dict[str, Any]:
    """Model -> what the record has of a step."""
    return {name: entry[step] for name, entry in record["models"].items() if step in entry}


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"

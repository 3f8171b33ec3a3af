"""Tables of the page about a GPU, from a record of `scripts/measure_cuda.py` and own rows."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from placewright.profiling.op_class import FITTED_CLASSES

Table = tuple[list[str], list[list[str]]]


def contenders(record: Mapping[str, Any]) -> Table:
    """Every way to run each model, without limits."""
    return _contenders(record, "table")


def within_limits(record: Mapping[str, Any]) -> Table:
    """The same where the GPU has room for half of the model."""
    return _contenders(record, "limited")


def _contenders(record: Mapping[str, Any], step: str) -> Table:
    cells = [
        [name, row["name"], _milliseconds(row["measured"]), _milliseconds(row["predicted"])]
        for name, entry in _having(record, step)
        for row in entry["rows"]
    ]
    return ["model", "contender", "measured", "predicted"], cells


def equality(record: Mapping[str, Any]) -> Table:
    """Outputs of random splits beside those of the unsplit model."""
    cells = [
        [name, f"{row['equal']} of {row['placements']}", f"{row['largest_error']:.1g}"]
        for name, row in _having(record, "equality")
    ]
    return ["model", "equal", "largest relative error"], cells


def accuracy(record: Mapping[str, Any]) -> Table:
    """Errors of predictions for placements of several kinds."""
    cells = [
        [name, row["kind"], str(row["placements"]), f"{row['median']:.1%}"]
        for name, rows in _having(record, "accuracy")
        for row in rows
    ]
    return ["model", "placements", "number", "median error"], cells


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


def _having(record: Mapping[str, Any], step: str) -> Iterator[tuple[str, Any]]:
    for name, entry in record["models"].items():
        if step in entry:
            yield name, entry[step]


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.2f} ms"

"""Tables of the page about data sheets, from the rows of `benchmarks.data_sheets`."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

Row = dict[str, Any]
Table = tuple[Sequence[str], Sequence[Sequence[str]]]
_WAYS = ("assumed", "fitted", "left_out", "other_vendor")


def whole_models(document: Any) -> Table:
    """Median errors of whole models on each GPU."""
    columns = ["GPU", "use", "models", "assumed efficiencies", "fitted", "fit without this GPU"]
    columns += ["fit of the other vendor"]
    return columns, [
        [_name(gpu), _use(rows), str(len(rows)), *(_error(rows, way) for way in _WAYS)]
        for gpu, rows in _by_gpu(document["models"]).items()
    ]


def trusted_models(document: Any) -> Table:
    """The same without models whose forward pass contradicts their ops."""
    trusted = [row for row in document["models"] if not row["doubtful"]]
    return whole_models({"models": trusted})


def small_batches(document: Any) -> Table:
    """Errors of the models with one or two sequences, which fill a GPU least."""

    def is_small(row: Row) -> bool:
        return int(row["model"].rpartition("-")[2]) <= 2

    return whole_models({"models": [row for row in document["models"] if is_small(row)]})


def half_products(document: Any) -> Table:
    """Errors of products in half precision, by GPU and engine."""
    columns = ["GPU", "engine", "products", "median error", "predicted over measured"]
    columns += ["of 100 us and more", "median error", "predicted over measured"]
    return columns, [
        [
            row["gpu"], row["engine"], f"{row['products']:,}",
            f"{row['error']:.0%}", f"{row['ratio']:.2f}",
            str(row["large"]), f"{row['large_error']:.0%}", f"{row['large_ratio']:.2f}",
        ]
        for row in document["rows"]
    ]  # fmt: skip


def coverage(document: Any) -> Table:
    """Measured ops of judged GPUs that lie inside the intervals."""
    rows = document["coverage"]
    cells = [_covered(row["class"], [row]) for row in rows]
    return ["class", "ops", "inside"], [*cells, _covered("all", rows)]


def constants(document: Any) -> Table:
    """Efficiencies and intervals, as they stand in the catalogue."""
    columns = ["family", "class", "efficiency by size", "measured / predicted, nine of ten"]
    cells = []
    for fit in document["fits"]:
        for name, shares in fit["efficiency"].items():
            low, high = fit["interval"][name]
            sized = [
                f"{share:.2f} at {size:g} us"
                for share, size in zip(shares, fit["sizes_us"], strict=True)
            ]
            cells.append([fit["family"], name, ", ".join(sized), f"{low:.2f} to {high:.2f}"])
    return columns, cells


def launches(document: Any) -> Table:
    """Seconds to start a kernel, and intervals of whole models."""
    columns = ["family", "fitted to", "launch in a full queue", "an op alone on an idle GPU"]
    columns += ["whole models: measured / predicted, nine of ten"]
    return columns, [
        [
            fit["family"],
            ", ".join(_name(gpu) for gpu in fit["gpus"]),
            f"{fit['launch_us']:g} us",
            f"{fit['alone_us']:g} us",
            "{:.2f} to {:.2f}".format(*fit["model_interval"]),
        ]
        for fit in document["fits"]
    ]


def _by_gpu(rows: Iterable[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row["gpu"], []).append(row)
    return found


def _use(rows: Sequence[Row]) -> str:
    return "judged" if rows[0]["judged"] else "fitted"


def _error(rows: Sequence[Row], way: str) -> str:
    errors = [abs(row[way] - 1.0) for row in rows if row[way] is not None]
    return f"{statistics.median(errors):.1%}" if errors else "-"


def _covered(name: str, rows: Sequence[Row]) -> list[str]:
    ops, inside = sum(row["ops"] for row in rows), sum(row["inside"] for row in rows)
    return [name, str(ops), f"{inside / ops:.0%}"]


def _name(gpu: str) -> str:
    return gpu.replace("_", " ")

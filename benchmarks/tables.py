"""Tables that the benchmarks print."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from placewright.core.quantities import format_bytes
from placewright.report.tables import ShownTable, table


def kernel_table(rows: Sequence[Any]) -> ShownTable:
    """Rows of `benchmarks.kernel` by size and number of devices and inputs."""
    columns = ["ops", "devices", "inputs", "rate", "one evaluation", "times plain Python", "memory"]
    return table("Event kernel, one core", columns, [
        [
            str(row.ops),
            str(row.devices),
            f"{row.edges / row.ops:.2f}",
            f"{row.ops_per_second / 1e6:.2f} M/s",
            f"{row.seconds * 1e3:.3f} ms",
            "" if math.isnan(row.times_plain_python) else f"{row.times_plain_python:.0f}",
            f"{row.process_bytes / 2**20:.0f} MiB",
        ]
        for row in rows
    ])  # fmt: skip


def equality_table(name: str, found: Any) -> ShownTable:
    """A row of `benchmarks.equality` for the model `name`."""
    columns = ["equal", "largest relative error", "tolerance", "segments"]
    return table(f"{name}: {found.placements} random placements", columns, [
        [
            f"{found.equal}/{found.placements}",
            f"{found.largest_error:.2g}",
            f"{found.tolerance:.2g}",
            f"{found.fewest_segments} to {found.most_segments}",
        ]
    ])  # fmt: skip


def accuracy_table(summaries: Sequence[Any]) -> ShownTable:
    """Summaries of `benchmarks.accuracy_report` by model and kind of placement."""
    columns = ["model", "placements", "number", "median error", "95th percentile", "Kendall tau"]
    return table("Predicted against measured", columns, [
        [s.model, s.kind, str(s.placements), f"{s.median:.1%}", f"{s.p95:.1%}", f"{s.tau:.2f}"]
        for s in summaries
    ])  # fmt: skip


def memory_table(rows: Sequence[Any]) -> ShownTable:
    """Rows of `benchmarks.memory` by model."""
    columns = ["model", "on one device", "limit of each", "measured peak (predicted)", "segments",
               "equal"]  # fmt: skip
    return table("Peak memory under a limit", columns, [
        [
            row.model,
            format_bytes(row.whole),
            format_bytes(row.limit),
            ", ".join(
                f"{device} {format_bytes(row.measured[device])} "
                f"({row.predicted[device] / row.measured[device] - 1.0:+.1%})"
                for device in row.used
            ),
            str(row.segments),
            "yes" if row.equal else f"NO ({row.error:.2g})",
        ]
        for row in rows
    ])  # fmt: skip


def stream_equality_table(rows: Sequence[Any], samples: int, in_flight: int) -> ShownTable:
    """Rows of `benchmarks.stream_equality` by model and runtime."""
    columns = ["model", "runtime", "equal", "largest error", "tolerance", "segments", "under way"]
    return table(f"{samples} samples, {in_flight} in flight", columns, [
        [
            row.model,
            row.runtime,
            row.message or ("yes" if row.equal else "NO"),
            f"{row.largest_error:.2g}" if not row.message else "-",
            f"{row.tolerance:.2g}",
            str(row.segments),
            str(row.under_way),
        ]
        for row in rows
    ])  # fmt: skip


def streams_table(rows: Sequence[Any]) -> ShownTable:
    """Rows of `benchmarks.streams` by model and pair of cores."""
    columns = ["model", "cores", "samples/s", "recommended", "of the best"]
    return table("Streams", columns, [
        [
            row.model,
            row.cluster,
            row.message or ", ".join(f"{name} {rate:.1f}" for name, rate in row.rates.items()),
            row.recommended,
            f"{row.of_best:.2f}" if row.rates else "-",
        ]
        for row in rows
    ])  # fmt: skip


def update_table(rows: Sequence[Any]) -> ShownTable:
    """Rows of `benchmarks.hsdag_update` by graph."""
    columns = ["graph", "units", "nodes after coarsening", "one update"]
    return table("HSDAG, one update on one core", columns, [
        [r.graph, str(r.units), str(r.nodes), f"{r.seconds * 1e3:.1f} ms"] for r in rows
    ])  # fmt: skip


def zero_shot_table(rows: Sequence[Any]) -> ShownTable:
    """Rows of `benchmarks.zero_shot` by problem."""
    columns = ["problem", "best ms", "local-search ms", "ratio", "greedy alone",
               "earliest finish alone", "core s"]  # fmt: skip
    title = "Zero-shot: 10 evaluations and its core-seconds, over local-search with as many"
    return table(title, columns, [
        [
            row.problem,
            f"{row.value * 1e3:.3f}",
            f"{row.local_search * 1e3:.3f}",
            f"{row.ratio:.3f}",
            f"{row.greedy / row.local_search:.3f}",
            f"{row.earliest / row.local_search:.3f}",
            f"{row.seconds:.1f}",
        ]
        for row in rows
    ])  # fmt: skip


def enlarged_table(rows: Sequence[Any], title: str) -> ShownTable:
    """Rows of `benchmarks.enlarged` by placer."""
    columns = ["placer", "predicted", "evaluations", "core s", "measured", "peak MB", "fits",
               "outputs equal"]  # fmt: skip
    return table(f"{title}, with evaluations and core-seconds", columns, [
        [
            row.placer,
            "-" if row.value is None else f"{row.value * 1e3:.2f} ms",
            f"{row.evaluations:,}",
            f"{row.core_seconds:.1f}",
            "-" if row.measured is None else f"{row.measured * 1e3:.2f} ms",
            ", ".join(f"{peak / 1e6:.1f}" for peak in row.peaks),
            "yes" if row.fits else "no",
            f"yes ({row.error:.1g})" if row.equal else "no",
        ]
        for row in rows
    ])  # fmt: skip

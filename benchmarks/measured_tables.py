"""Tables of searches whose evaluations ran on the hardware (`benchmarks.measured_search`)."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.claims import listed
from benchmarks.result_tables import Rows, Table
from placewright.core.quantities import format_duration
from placewright.profiling.verdict import median_interval

COMPARED = "local-search"
_MARGIN = 0.01  # the gain that a split must have, as in verdicts


def summary(document: Any) -> Table:
    """A line for each model and placer: what its placements take in the loops at the end."""
    columns = ["model", "placer", "evaluations", "seconds", "over best core", "95 % interval"]
    columns += [f"over `{COMPARED}`", "95 % interval", "each seed", "smaller part"]
    rows = _measured(document)
    return columns, [
        _line(model, placer, rows) for model, placer in dict.fromkeys(map(_method, rows))
    ]


def models(document: Any) -> Table:
    """A line for each model: its sizes, and its time on each device alone."""
    rows = _measured(document)
    alone = [row for row in rows if row["placer"].startswith("cpu:")]
    devices = list(dict.fromkeys(f"`{row['placer']}`" for row in alone))
    lines: dict[str, list[str]] = {}
    for row in alone:
        known = [row["model"], row["description"], str(len(row["device_of"]))]
        lines.setdefault(row["model"], known).append(format_duration(row["took"]))
    return ["model", "sizes", "units", *devices], list(lines.values())


def in_words(document: Any) -> str:
    """List which placers beat the best core, and which of them `local-search`, with every seed."""
    runs: dict[tuple[str, str], dict[int, np.ndarray[Any, Any]]] = {}
    for row in _measured(document):
        if row["evaluations"]:
            runs.setdefault(_method(row), {})[row["seed"]] = np.array(row["again"])
    names = dict.fromkeys(model for model, _ in runs)
    sentences = []
    for model in names:
        faster = [
            placer
            for (of, placer), seeds in runs.items()
            if of == model and _common_side(list(seeds.values())) < 0
        ]
        sentences.append(f"Faster than the best core on {model}: {listed(faster)}.")
    for placer in dict.fromkeys(placer for _, placer in runs if placer != COMPARED):
        sides = [
            _common_side([ratios / runs[model, COMPARED][at] for at, ratios in seeds.items()])
            for (model, by), seeds in runs.items()
            if by == placer
        ]
        sentences.append(
            f"`{placer}` is faster than `{COMPARED}` on {sides.count(-1)} of {len(sides)} models "
            f"and slower on {sides.count(1)}."
        )
    return "\n".join(f"- {sentence}" for sentence in sentences)


def _common_side(of_seeds: Sequence[np.ndarray[Any, Any]]) -> int:
    """The side on which the ratios of every seed are; 0 if they differ."""
    sides = set(map(_side, of_seeds))
    return sides.pop() if len(sides) == 1 else 0


def _side(ratios: np.ndarray[Any, Any]) -> int:
    """-1 if the whole interval of the median is below 1 by more than the margin, 1 if above."""
    _, low, high = median_interval(ratios)
    return -1 if high < 1 - _MARGIN else 1 if low > 1 + _MARGIN else 0


def _measured(document: Any) -> Rows:
    """Rows that took part in the loops at the end, one model after the other."""
    rows = [row for row in document["rows"] if row["again"]]
    names = list(dict.fromkeys(row["model"] for row in rows))
    return sorted(rows, key=lambda row: names.index(row["model"]))


def _method(row: dict[str, Any]) -> tuple[str, str]:
    return row["model"], row["placer"]


def _line(model: str, placer: str, rows: Rows) -> list[str]:
    mine = sorted(
        (row for row in rows if _method(row) == (model, placer)), key=lambda row: row["seed"]
    )
    by_round = _rounds_of(mine)
    others = [row for row in rows if _method(row) == (model, COMPARED)]
    beside = _interval(by_round / _rounds_of(others)) if others else ["-", "-"]
    is_searched = mine[0]["evaluations"] > 0
    return [
        model.removeprefix("zoo:"),
        f"`{placer}`",
        str(mine[0]["evaluations"]),
        f"{statistics.median(row['seconds'] for row in mine):.0f}" if is_searched else "-",
        *_interval(by_round),
        *beside,
        ", ".join(f"{statistics.median(row['again']):.3f}" for row in mine),
        ", ".join(str(_least_used(row["device_of"])) for row in mine),
    ]


def _rounds_of(rows: Rows) -> np.ndarray[Any, Any]:
    """Median over seeds of the ratio in each round."""
    medians: np.ndarray[Any, Any] = np.median([row["again"] for row in rows], axis=0)
    return medians


def _interval(ratios: np.ndarray[Any, Any]) -> list[str]:
    """The median of ratios, and its interval."""
    median, low, high = median_interval(ratios)
    return [f"{median:.3f}", f"{low:.3f} to {high:.3f}"]


def _least_used(device_of: Sequence[int]) -> int:
    """Units outside the device with most of them."""
    return len(device_of) - int(np.bincount(device_of).max())

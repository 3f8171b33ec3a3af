"""What happens when, as columns of numbers: units, hops, why each unit waited, critical path."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from placewright.core.problem import Problem
from placewright.simulation.timeline import Timeline

NONE, INPUT_OF_UNIT, INPUT_BY_HOP, STREAM, ORDER = range(5)
_DIGITS = 9  # that a picture shows at most; the page computes with other numbers


def rounded(values: Iterable[float]) -> list[float]:
    """Numbers with as many digits as a picture can show."""
    return [float(f"{value:.{_DIGITS}g}") for value in values]


def timeline_columns(problem: Problem, timeline: Timeline) -> dict[str, Any]:
    """A timeline as parallel lists.

    Returns:
        ``device``, ``start``, ``end``, ``segment``, ``lane``, ``wait`` (one of the constants of
        this module), ``wait_on`` (a unit, or for INPUT_BY_HOP a hop), each per unit; ``hops`` by
        start; ``channels``, their names; ``critical``, pairs (is a hop, index).
    """
    kinds, others = _waits(timeline)
    return {
        "device": timeline.device_of.tolist(),
        "start": rounded(timeline.start.tolist()),
        "end": rounded(timeline.end.tolist()),
        "segment": timeline.segment_of.tolist(),
        "lane": _lanes(problem, timeline),
        "wait": kinds,
        "wait_on": others,
        "hops": {
            "tensor": [hop.tensor for hop in timeline.transfers],
            "source": [hop.source for hop in timeline.transfers],
            "target": [hop.destination for hop in timeline.transfers],
            "channel": [hop.channel for hop in timeline.transfers],
            "start": rounded(hop.start for hop in timeline.transfers),
            "end": rounded(hop.end for hop in timeline.transfers),
        },
        "channels": channel_names(problem),
        "critical": [
            [int(step.what.startswith("transfer of ")), step.index]
            for step in timeline.critical_path
        ],
    }


def _waits(timeline: Timeline) -> tuple[list[int], list[int]]:
    kinds, others = [], []
    for unit in range(len(timeline.start)):
        text, what, index = timeline.last_before(unit)
        kind = NONE
        if index >= 0 and text.startswith("input"):
            kind = INPUT_BY_HOP if what == "transfer" else INPUT_OF_UNIT
        elif index >= 0:
            kind = ORDER if text.startswith("order") else STREAM
        kinds.append(kind)
        others.append(index)
    return kinds, others


def _lanes(problem: Problem, timeline: Timeline) -> list[int]:
    """A stream of its device for each unit, so that what runs at the same time lies apart."""
    free: list[list[float]] = [[0.0] * device.streams for device in problem.cluster.devices]
    lane = [0] * problem.n_units
    for unit in timeline.order.tolist():
        ends = free[int(timeline.device_of[unit])]
        start = float(timeline.start[unit])
        at = next((i for i, end in enumerate(ends) if end <= start), 0)
        ends[at] = float(timeline.end[unit])
        lane[unit] = at
    return lane


def channel_names(problem: Problem) -> list[str]:
    """Name of each channel: its own, or that of the link which it is."""
    names = [""] * problem.cluster.n_channels
    index = problem.cluster.endpoint_index
    for link in problem.cluster.links:
        number = int(problem.cluster.link_channel[index[link.source], index[link.destination]])
        names[number] = link.channel or f"{link.source} → {link.destination}"
    return names

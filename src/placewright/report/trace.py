"""A timeline as a Chrome trace, which Perfetto and chrome://tracing open.

Complete events (``ph: "X"``), one process per device and one for the links. Units that overlap on a
device lie on separate tracks (``tid``), so that events of a track never overlap. A measured run has
processes of its own beside the predicted one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

from placewright.core.problem import Problem
from placewright.simulation.timeline import Timeline

_MICROSECONDS = {"s": 1e6, "ms": 1e3}
PREDICTED, MEASURED = "predicted", "measured"


@dataclass(frozen=True)
class SegmentRun:
    """One segment of a run on the hardware."""

    device: int  # number of the device
    ops: tuple[str, ...]  # names of its ops
    # start, end: seconds since the run began
    start: float
    end: float


def trace_text(problem: Problem, timeline: Timeline) -> str:
    """The predicted timeline as JSON text."""
    return _text(_predicted(problem, timeline, label=""))


def run_trace_text(problem: Problem, timeline: Timeline, measured: Sequence[SegmentRun]) -> str:
    """The measured run beside the predicted one, as JSON text.

    Args:
        measured: segments of one run.
    """
    events = _predicted(problem, timeline, label=f" ({PREDICTED})")
    first = problem.cluster.n_devices + 1
    names = [f"{name} ({MEASURED})" for name in problem.cluster.device_names]
    events += _process_names(names, first)
    for run in sorted(measured, key=lambda run: (run.start, run.end, run.device)):
        more = f" and {len(run.ops) - 1} more" if len(run.ops) > 1 else ""
        events.append(
            {
                "ph": "X",
                "name": run.ops[0] + more,
                "cat": "segment",
                "pid": first + run.device,
                "tid": 0,
                "ts": run.start * 1e6,
                "dur": (run.end - run.start) * 1e6,
                "args": {"ops": list(run.ops)},
            }
        )
    return _text(events)


def _predicted(problem: Problem, timeline: Timeline, *, label: str) -> list[dict[str, Any]]:
    graph, cluster = problem.unit_graph, problem.cluster
    scale = _MICROSECONDS.get(problem.time_unit, 1.0)
    names = [f"{name}{label}" for name in (*cluster.device_names, "links")]
    events = _process_names(names, 0)
    tracks = _Tracks()
    for unit in timeline.order.tolist():
        device = int(timeline.device_of[unit])
        start, end = float(timeline.start[unit]), float(timeline.end[unit])
        events.append(
            {
                "ph": "X",
                "name": graph.op_names[unit],
                "cat": graph.op_kinds[unit],
                "pid": device,
                "tid": tracks.free(device, start, end),
                "ts": start * scale,
                "dur": (end - start) * scale,
                "args": {
                    "segment": int(timeline.segment_of[unit]),
                    "waited for": timeline.waits[unit],
                    "ops": len(problem.units.members.row(unit)),
                },
            }
        )
    return events + _hops(problem, timeline, scale, cluster.n_devices)


def _hops(problem: Problem, timeline: Timeline, scale: float, pid: int) -> list[dict[str, Any]]:
    graph, tracks = problem.unit_graph, _Tracks()
    most = problem.cluster.n_channels  # further tracks of channels whose transfers overlap follow
    events = []
    for hop in timeline.transfers:
        producer = int(graph.tensor_producers[hop.tensor])
        track = tracks.free(hop.channel, hop.start, hop.end)
        events.append(
            {
                "ph": "X",
                "name": "graph input" if producer < 0 else graph.op_names[producer],
                "cat": "transfer",
                "pid": pid,
                "tid": hop.channel + track * most,
                "ts": hop.start * scale,
                "dur": (hop.end - hop.start) * scale,
                "args": {"bytes": float(graph.tensor_bytes[hop.tensor])},
            }
        )
    return events


class _Tracks:
    """Finds the first free track of a row."""

    def __init__(self) -> None:
        # of each row a heap of ends with their tracks, and one of the tracks that are free
        self._rows: dict[int, tuple[list[tuple[float, int]], list[int]]] = {}

    def free(self, row: int, start: float, end: float) -> int:
        busy, free = self._rows.setdefault(row, ([], []))
        while busy and busy[0][0] <= start:
            heappush(free, heappop(busy)[1])
        track = heappop(free) if free else len(busy)
        heappush(busy, (end, track))
        return track


def _process_names(names: Sequence[str], first: int) -> list[dict[str, Any]]:
    return [
        {"ph": "M", "name": "process_name", "pid": first + at, "tid": 0, "args": {"name": name}}
        for at, name in enumerate(names)
    ]


def _text(events: list[dict[str, Any]]) -> str:
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})

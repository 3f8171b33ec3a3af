"""A timeline as a Chrome trace, which Perfetto and chrome://tracing open."""

from __future__ import annotations

import json
from typing import Any

from placewright.core.problem import Problem
from placewright.simulation.timeline import Timeline

_MICROSECONDS = {"s": 1e6, "ms": 1e3}


def trace_text(problem: Problem, timeline: Timeline) -> str:
    """The trace as JSON text: one process per device and one for the links."""
    graph, cluster = problem.unit_graph, problem.cluster
    scale = _MICROSECONDS.get(problem.time_unit, 1.0)
    links = cluster.n_devices
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}
        for pid, name in enumerate((*cluster.device_names, "links"))
    ]
    for unit in timeline.order.tolist():
        events.append(
            {
                "ph": "X",
                "name": graph.op_names[unit],
                "cat": graph.op_kinds[unit],
                "pid": int(timeline.device_of[unit]),
                "tid": 0,
                "ts": float(timeline.start[unit]) * scale,
                "dur": float(timeline.end[unit] - timeline.start[unit]) * scale,
                "args": {
                    "segment": int(timeline.segment_of[unit]),
                    "waited for": timeline.waits[unit],
                },
            }
        )
    for hop in timeline.transfers:
        producer = int(graph.tensor_producers[hop.tensor])
        events.append(
            {
                "ph": "X",
                "name": "graph input" if producer < 0 else graph.op_names[producer],
                "cat": "transfer",
                "pid": links,
                "tid": hop.channel,
                "ts": hop.start * scale,
                "dur": (hop.end - hop.start) * scale,
                "args": {"bytes": float(graph.tensor_bytes[hop.tensor])},
            }
        )
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})

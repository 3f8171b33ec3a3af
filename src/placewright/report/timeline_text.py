"""A timeline, or the loads of devices, as rows of text and as data."""

from __future__ import annotations

from typing import Any

import numpy as np

from placewright.core.arrays import FloatArray
from placewright.core.plan import Plan
from placewright.core.problem import Problem
from placewright.report.values import short_name, value_text
from placewright.simulation.timeline import Timeline


def timeline_rows(problem: Problem, timeline: Timeline) -> list[list[str]]:
    """A row per segment, in order of start: times, first unit, and the reason for its wait."""
    names = problem.cluster.device_names
    rows = []
    for segment in range(int(timeline.segment_of.max()) + 1):
        units = np.flatnonzero(timeline.segment_of == segment)
        first = int(units[np.argmin(timeline.start[units])])
        rows.append(
            [
                str(segment),
                names[int(timeline.device_of[first])],
                value_text(float(timeline.start[units].min()), problem.time_unit),
                value_text(float(timeline.end[units].max()), problem.time_unit),
                short_name(problem.unit_graph.op_names[first]),
                _wait_text(timeline.waits[first]),
            ]
        )
    return rows


def _wait_text(wait: str) -> str:
    """An entry of `Timeline.waits` as text: its kind, and the shortened name."""
    kind, _, name = wait.partition(" ")
    if name.startswith("graph input"):
        return name
    return f"{kind} {short_name(name)}".strip()


def load_rows(problem: Problem, loads: FloatArray) -> list[list[str]]:
    """A row per device and shared processor: load, share of the largest; loads (n_phases, n)."""
    cluster, totals = problem.cluster, loads.sum(axis=0)
    shared = [f"processor '{name}'" for name in cluster.shared_processors]
    named = [
        *enumerate(cluster.device_names),
        *enumerate(shared, start=cluster.n_devices + cluster.n_channels),
    ]
    return [
        [name, f"{totals[at]:.6g}", f"{totals[at] / max(totals.max(), 1e-300):.0%}"]
        for at, name in named
    ]


def value_data(plan: Plan, loads: FloatArray | None) -> dict[str, Any]:
    """Value, bound, memory and loads of a plan without a timeline; loads (n_phases, n)."""
    names = plan.problem.cluster.device_names
    data: dict[str, Any] = {
        "unit": plan.problem.time_unit,
        "value": plan.value,
        "lower_bound": plan.lower_bound,
        "memory": dict(plan.memory),
        "memory_counts": plan.problem.execution_model.memory_counts,
    }
    if loads is not None:
        cluster, totals = plan.problem.cluster, loads.sum(axis=0).tolist()
        data["loads"] = dict(zip(names, totals[: len(names)], strict=True))
        shared = totals[cluster.n_devices + cluster.n_channels :]
        if shared:
            data["processor_loads"] = dict(zip(cluster.shared_processors, shared, strict=True))
    return data


def timeline_data(plan: Plan, timeline: Timeline) -> dict[str, Any]:
    """A timeline as a JSON document; times in the problem's unit."""
    problem = plan.problem
    graph, cluster = problem.unit_graph, problem.cluster
    endpoints = list(cluster.endpoint_index)
    producers = graph.tensor_producers
    return {
        "unit": problem.time_unit,
        "value": timeline.value,
        "lower_bound": plan.lower_bound,
        "memory": dict(zip(cluster.device_names, timeline.memory_peaks.tolist(), strict=True)),
        "units": [
            {
                "name": graph.op_names[unit],
                "device": cluster.device_names[int(timeline.device_of[unit])],
                "segment": int(timeline.segment_of[unit]),
                "start": float(timeline.start[unit]),
                "end": float(timeline.end[unit]),
                "waited_for": timeline.waits[unit],
            }
            for unit in timeline.order.tolist()
        ],
        "transfers": [
            {
                "from_op": None
                if producers[hop.tensor] < 0
                else graph.op_names[int(producers[hop.tensor])],
                "bytes": float(graph.tensor_bytes[hop.tensor]),
                "source": endpoints[hop.source],
                "destination": endpoints[hop.destination],
                "start": hop.start,
                "end": hop.end,
            }
            for hop in timeline.transfers
        ],
        "critical_path": [
            {"what": step.what, "start": step.start, "end": step.end, "after": step.reason}
            for step in timeline.critical_path
        ],
    }

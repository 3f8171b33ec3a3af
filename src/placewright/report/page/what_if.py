"""What the page needs to simulate moves by itself: the problem as lists of numbers.

The page holds a second implementation of execution model `event` (decision 125). Numbers that it
computes with are written in full; nothing is rounded.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from placewright.core.arrays import FloatArray
from placewright.core.execution_models import Event
from placewright.core.intensity import compute_bound_tensors
from placewright.core.placement import Placement
from placewright.core.problem import Problem

_MOST_COSTS = 1_600_000  # of units on devices: what still keeps a page of 100,000 ops below 15 MB


def why_no_what_if(problem: Problem) -> str | None:
    """Why the page cannot simulate moves; None where it can."""
    if not isinstance(problem.execution_model, Event):
        return (
            f"the value follows execution model '{problem.execution_model.name}', which the page "
            "does not simulate; ask `placewright simulate PLAN --set OP=DEVICE`"
        )
    if problem.n_units * problem.n_devices > _MOST_COSTS:
        return (
            f"{problem.n_units} units on {problem.n_devices} devices are too many costs for a "
            "page; ask `placewright simulate PLAN --set OP=DEVICE`"
        )
    return None


def what_if_data(problem: Problem, placement: Placement) -> dict[str, Any]:
    """The problem for the simulator in the page, or ``why_not``."""
    reason = why_no_what_if(problem)
    return {"why_not": reason} if reason else {"model": event_data(problem, placement)}


def event_data(problem: Problem, placement: Placement) -> dict[str, Any]:
    """All that execution model `event` looks at; infinite numbers are null."""
    graph, cluster, model = problem.unit_graph, problem.cluster, problem.execution_model
    assert isinstance(model, Event)
    own = problem.unit_transfer_seconds
    members = [problem.colocation.members.row(at) for at in range(problem.colocation.n_groups)]
    pinned = np.flatnonzero(problem.pinned_device >= 0)
    return {
        "n_units": problem.n_units,
        "endpoints": cluster.n_endpoints,
        "host": cluster.host_endpoint,
        "devices": _devices(problem),
        "contention": {name: list(factors) for name, factors in cluster.contention.items()},
        "seconds": numbers(problem.costs.seconds),
        "pins": [[int(unit), int(problem.pinned_device[unit])] for unit in pinned],
        "classes": [units.tolist() for units in members if len(units) > 1],
        "order": None if placement.order is None else placement.order.tolist(),
        "dispatch": model.dispatch,
        "topological": graph.topological_order.tolist(),
        "tensors": {
            "bytes": numbers(graph.tensor_bytes),
            "own_seconds": None if own is None else numbers(own),
            "producer": graph.tensor_producers.tolist(),
            "reader_counts": np.diff(graph.tensor_consumers.indptr).tolist(),
            "readers": graph.tensor_consumers.indices.tolist(),
            "outputs": np.flatnonzero(graph.tensor_is_output).tolist(),
            "layouts": np.flatnonzero(compute_bound_tensors(graph)).tolist(),
        },
        "kept": {
            "counts": np.diff(problem.kept.units.indptr).tolist(),
            "units": problem.kept.units.indices.tolist(),
            "bytes": numbers(problem.kept.sizes),
        },
        "links": {
            "latency": numbers(cluster.link_latency),
            "seconds_per_byte": numbers(cluster.link_seconds_per_byte),
            "channel": cluster.link_channel.ravel().tolist(),
            "queues": cluster.link_queues.ravel().astype(int).tolist(),
            "n_channels": cluster.n_channels,
        },
    }


def _devices(problem: Problem) -> list[dict[str, Any]]:
    return [
        {
            "streams": device.streams,
            "dispatch": device.dispatch_seconds,
            "cut": device.cut_seconds,
            "cut_per_byte": device.cut_seconds_per_byte,
            "layout": device.layout_seconds,
            "layout_per_byte": device.layout_seconds_per_byte,
            "memory": device.memory_bytes if math.isfinite(device.memory_bytes) else None,
            "domain": device.memory_domain,
        }
        for device in problem.cluster.devices
    ]


def numbers(values: FloatArray) -> list[float | int | None]:
    """Numbers in full, whole ones without a point, infinite ones as None; flat."""
    flat = values.ravel().tolist()
    return [_number(value) for value in flat]


def _number(value: float) -> float | int | None:
    if not math.isfinite(value):
        return None
    return int(value) if value.is_integer() and abs(value) < 2**53 else value

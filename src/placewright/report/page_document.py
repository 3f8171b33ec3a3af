"""The JSON document behind a page: one plan, or two side by side.

The page holds a second implementation of execution model `event` (decision 125), so that it can
simulate moves. The numbers for that are written in full; nothing is rounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from placewright.core.arrays import FloatArray
from placewright.core.charges import CHARGED
from placewright.core.cluster import Cluster
from placewright.core.execution_models import Event, MaxLoad
from placewright.core.graph import compute_bound_tensors
from placewright.core.placement import Placement
from placewright.core.plan import Plan, no_choice, scope_of_proof, search_text
from placewright.core.problem import Problem
from placewright.io.json_text import finite
from placewright.report.difference import DEVICE_COLUMNS, difference_of, has_same_units
from placewright.report.page_graph import HEIGHT, WIDTH, group_tree, layout_of
from placewright.report.page_times import (
    CAUSES,
    busy_seconds,
    device_times,
    memory_curves,
    rounded,
    thinned,
    timeline_columns,
)
from placewright.report.verdict import (
    alternatives_of,
    prediction_error,
    run_command,
    verdict_of,
    with_plan_file,
)
from placewright.simulation.model import Simulator

FORMAT = "placewright.report/1"
_MOST_COSTS = 1_600_000  # units times devices: a page of 100,000 ops stays below 15 MB


def document_of(plan: Plan, title: str) -> dict[str, Any]:
    """The document of one plan.

    Args:
        title: name of the model or of the plan's file.
    """
    problem = plan.problem
    simulator = Simulator(problem)
    return {
        "format": FORMAT,
        "title": title,
        "unit": problem.time_unit,
        "value_unit": problem.value_unit,
        "objective": problem.objective,
        "execution_model": problem.execution_model.name,
        "counts": {
            "ops": problem.graph.n_ops,
            "units": problem.n_units,
            "edges": problem.graph.n_edges,
        },
        "devices": [
            {"name": device.name, "kind": device.kind, "memory": finite(limit)}
            for device, limit in zip(
                problem.cluster.devices, problem.cluster.memory_bytes.tolist(), strict=True
            )
        ],
        "pools": _pools(problem.cluster),
        "processors": [
            {"name": name, "devices": list(users)}
            for name, users in problem.cluster.shared_processors.items()
        ],
        "units": _units(problem),
        "graph": page_graph(problem),
        "plan": plan_part(plan, simulator),
        "other": None,
        "what_if": what_if_data(problem, plan.placement),
    }


def plan_part(plan: Plan, simulator: Simulator) -> dict[str, Any]:
    """The part about one placement: verdict, timeline, memory, history, alternatives."""
    rows = alternatives_of(plan, simulator)
    verdict = verdict_of(plan, rows)
    return {
        "verdict": {
            "answer": verdict.answer,
            "sentence": verdict.sentence,
            "next": verdict.next_step,
        },
        "value": plan.value,
        "time": simulator.seconds(plan.placement),  # of an energy or a price, too
        "amounts": dict(plan.amounts) if len(plan.amounts) > 1 else {},
        "lower_bound": plan.lower_bound,
        "no_choice": no_choice(plan.problem),
        "scope": scope_of_proof(plan),
        "bound_method": plan.bound_method,
        "gap": finite(plan.gap),
        "status": plan.status,
        "measured": None if plan.measured is None else _measured(plan),
        "run": run_command(plan),
        "placer": plan.placer.name,
        "seed": plan.placer.seed,
        "evaluations": plan.placer.evaluations,
        "seconds": plan.placer.seconds,
        "search": search_text(plan.placer),
        "left_out": list(plan.left_out),
        "memory_counts": plan.problem.execution_model.memory_counts,
        "settings": plan.placer.settings_text,
        "device": plan.placement.device_of.tolist(),
        "alternatives": [
            {
                "name": row.name,
                "predicted": finite(row.predicted),
                "measured": row.measured,
                "note": row.note,
            }
            for row in rows
        ],
        "has_history": bool(plan.placer.history),
        "history": [
            [point.evaluations, point.seconds, finite(point.value), point.lower_bound]
            for point in plan.placer.history
            if plan.problem.objective not in CHARGED  # the page draws seconds
        ],
        **_times(plan, simulator),
    }


def _times(plan: Plan, simulator: Simulator) -> dict[str, Any]:
    """Timeline, idle causes and memory curves; loads if the execution model has no timeline."""
    problem = plan.problem
    peaks = {name: plan.memory.get(name, 0.0) for name in problem.cluster.device_names}
    if not isinstance(problem.execution_model, Event):
        loads = _loads(plan, simulator)
        return {"timeline": None, "idle": None, "memory": None, "peaks": peaks, "loads": loads}
    timeline = simulator.timeline(plan.placement)
    times = device_times(problem, timeline)
    curves = [thinned(curve, timeline.value) for curve in memory_curves(problem, timeline)]
    return {
        "timeline": timeline_columns(problem, timeline),
        "idle": {
            "causes": list(CAUSES),
            "busy": [device.busy for device in times],
            "idle": [[device.idle[cause] for cause in CAUSES] for device in times],
            "stretches": [_stretches(device.idle_stretches) for device in times],
        },
        "memory": [
            {"times": rounded(curve.times), "bytes": rounded(curve.bytes)} for curve in curves
        ],
        "peaks": dict(
            zip(problem.cluster.device_names, timeline.memory_peaks.tolist(), strict=True)
        ),
        "loads": None,
    }


def _stretches(stretches: tuple[tuple[float, float, str], ...]) -> list[list[float]]:
    return [[*rounded((start, end)), CAUSES.index(cause)] for start, end, cause in stretches]


def _loads(plan: Plan, simulator: Simulator) -> dict[str, Any]:
    """Load of each device, or the seconds of its units if the execution model has no loads."""
    problem, device_of = plan.problem, plan.placement.device_of
    busy = busy_seconds(problem, device_of)
    if not isinstance(problem.execution_model, MaxLoad):
        return {"what": "seconds of its units", "seconds": busy, "units": busy}
    totals = simulator.loads(device_of).sum(axis=0)[: problem.n_devices].tolist()
    return {"what": "load with transfers", "seconds": totals, "units": busy}


def _measured(plan: Plan) -> dict[str, Any]:
    assert plan.measured is not None
    return {
        "median": plan.measured.median,
        "iqr": plan.measured.iqr,
        "runs": plan.measured.runs,
        "recommendation": plan.measured.recommendation,
        "error": prediction_error(plan),
    }


def _units(problem: Problem) -> dict[str, Any]:
    graph = problem.unit_graph
    kinds = list(dict.fromkeys(graph.op_kinds))
    number = {kind: at for at, kind in enumerate(kinds)}
    sizes = np.diff(problem.units.members.indptr)
    return {
        "names": list(graph.op_names),
        "kinds": kinds,
        "kind": [number[kind] for kind in graph.op_kinds],
        "ops": None if problem.units.is_identity else sizes.tolist(),
    }


def page_graph(problem: Problem) -> dict[str, Any]:
    """Groups, boxes and edges of the picture of the graph."""
    graph = problem.unit_graph
    layout = layout_of(graph, group_tree(graph))
    return {
        "width": WIDTH,
        "height": HEIGHT,
        "names": [
            name if unit < 0 else "" for name, unit in zip(layout.names, layout.unit, strict=True)
        ],
        "parent": layout.parent,
        "unit": layout.unit,
        "boxes": [float(f"{x:.7g}") for box in layout.boxes for x in box],
        "edges": [[end for edge in edges for end in edge] for edges in layout.edges],
        "producer": graph.tensor_producers.tolist(),
        "bytes": [int(size) for size in graph.tensor_bytes.tolist()],
        "reader_counts": np.diff(graph.tensor_consumers.indptr).tolist(),
        "readers": graph.tensor_consumers.indices.tolist(),
    }


def plans_document(
    first: tuple[str, Plan],
    other: tuple[str, Plan] | None = None,
    *,
    file: str = "",
    options: Sequence[str] = (),
    is_changed: bool = False,
) -> dict[str, Any]:
    """The document of a plan, optionally beside another plan.

    Args:
        first: title and plan.
        other: title and plan for comparison.
        file: of the first plan, for the commands on the page; they say PLAN if it is empty.
        options: follow the file in these commands.
        is_changed: ops of the first plan were moved, so that no file holds it and nothing runs it.
    """
    document = document_of(first[1], first[0])
    if is_changed:
        document["plan"]["verdict"]["next"] = document["plan"]["run"] = ""
    if file:
        _name_file(document, lambda text: with_plan_file(text, file, *options))
    if other is None:
        return document
    title, plan = other
    difference = difference_of(first[1], plan)
    same_units = has_same_units(first[1].problem, plan.problem)
    document["other"] = {
        "title": title,
        "plan": plan_part(plan, Simulator(plan.problem)),
        "same_units": same_units,
        "lines": difference.lines(),
        "device_columns": list(DEVICE_COLUMNS),
        "device_rows": difference.device_rows(),
        "moved": difference.group_rows(),
        "moved_units": sorted(unit for group in difference.groups for unit in group.units),
    }
    return document


def _name_file(document: dict[str, Any], named: Callable[[str], str]) -> None:
    """Name the plan's file in the commands that the page advises."""
    verdict, what_if = document["plan"]["verdict"], document["what_if"]
    verdict["next"] = named(verdict["next"])
    document["plan"]["run"] = named(document["plan"]["run"])
    if "why_not" in what_if:
        what_if["why_not"] = named(what_if["why_not"])


def why_no_what_if(problem: Problem) -> str | None:
    """The reason why the page cannot simulate moves; None if it can."""
    if not isinstance(problem.execution_model, Event):
        return (
            f"the value follows execution model '{problem.execution_model.name}', which the page "
            "does not simulate; ask `placewright simulate PLAN --set OP=DEVICE`"
        )
    if problem.charges:
        return (
            f"the page simulates time, not {' or '.join(problem.charges)}; ask `placewright "
            "simulate PLAN --set OP=DEVICE`"
        )
    if problem.cluster.limits_segments:
        return (
            "a device limits its segments, which the page does not count; ask `placewright "
            "simulate PLAN --set OP=DEVICE`"
        )
    if problem.cluster.shared_processors:
        return (
            "devices share a processor, for which the page does not let them wait; ask "
            "`placewright simulate PLAN --set OP=DEVICE`"
        )
    if problem.n_units * problem.n_devices > _MOST_COSTS:
        return (
            f"{problem.n_units} units on {problem.n_devices} devices are too many costs for a "
            "page; ask `placewright simulate PLAN --set OP=DEVICE`"
        )
    return None


def what_if_data(problem: Problem, placement: Placement) -> dict[str, Any]:
    """The problem for the page's simulator, or the reason under ``why_not``."""
    reason = why_no_what_if(problem)
    return {"why_not": reason} if reason else {"model": event_data(problem, placement)}


def event_data(problem: Problem, placement: Placement) -> dict[str, Any]:
    """The inputs of execution model `event`; infinite numbers are null."""
    graph, cluster, model = problem.unit_graph, problem.cluster, problem.execution_model
    assert isinstance(model, Event)
    own = problem.unit_transfer_seconds
    by_unit = cluster.occupied > 0
    members = [problem.colocation.members.row(at) for at in range(problem.colocation.n_groups)]
    pinned = np.flatnonzero(problem.pinned_device >= 0)
    return {
        "n_units": problem.n_units,
        "endpoints": cluster.n_endpoints,
        "host": cluster.host_endpoint,
        "devices": _devices(problem),
        "pools": _pools(cluster),
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
            "latency": numbers(np.where(by_unit, 0.0, cluster.link_latency)),
            "seconds_per_byte": numbers(np.where(by_unit, 0.0, cluster.link_seconds_per_byte)),
            "occupied": cluster.occupied.ravel().tolist() if by_unit.any() else None,
            "copy_latency": numbers(np.where(by_unit, cluster.link_latency, 0.0)),
            "copy_per_byte": numbers(np.where(by_unit, cluster.link_seconds_per_byte, 0.0)),
            "channel": cluster.link_channel.ravel().tolist(),
            "queues": cluster.link_queues.ravel().astype(int).tolist(),
            "n_channels": cluster.n_channels,
        },
    }


def _pools(cluster: Cluster) -> list[dict[str, Any]]:
    """Shared memory pools, each with its devices and the copies of their data that it keeps."""
    return [
        {
            "name": name,
            "bytes": float(cluster.pool_bytes[number]),
            "devices": np.flatnonzero(cluster.pool_shares[number]).tolist(),
            "shares": cluster.pool_shares[number][cluster.pool_shares[number] > 0].tolist(),
        }
        for number, name in enumerate(cluster.shared_pools)
    ]


def _devices(problem: Problem) -> list[dict[str, Any]]:
    return [
        {
            "streams": device.streams,
            "dispatch": device.dispatch_seconds,
            "cut": device.cut_seconds,
            "cut_per_byte": device.cut_seconds_per_byte,
            "layout": device.layout_seconds,
            "layout_per_byte": device.layout_seconds_per_byte,
            "memory": limit if math.isfinite(limit) else None,
            "domain": device.memory_domain,
        }
        for device, limit in zip(
            problem.cluster.devices, problem.cluster.memory_bytes.tolist(), strict=True
        )
    ]


def numbers(values: FloatArray) -> list[float | int | None]:
    """A flat list of exact numbers; whole numbers are ints, infinite ones None."""
    return [_number(value) for value in values.ravel().tolist()]


def _number(value: float) -> float | int | None:
    if not math.isfinite(value):
        return None
    return int(value) if value.is_integer() and abs(value) < 2**53 else value

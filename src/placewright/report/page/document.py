"""All that a page shows, as one JSON document."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from placewright.core.execution_models import Event, MaxLoad
from placewright.core.plan import Plan
from placewright.core.plan_summary import search_text
from placewright.core.problem import Problem
from placewright.report.alternatives import alternatives_of
from placewright.report.page.groups import group_tree
from placewright.report.page.idle import CAUSES, busy_seconds, device_times
from placewright.report.page.layout import HEIGHT, WIDTH, layout_of
from placewright.report.page.memory import memory_curves, thinned
from placewright.report.page.timeline import rounded, timeline_columns
from placewright.report.page.what_if import what_if_data
from placewright.report.verdict import prediction_error, verdict_of
from placewright.simulation.model import Simulator

FORMAT = "placewright.report/1"


def document_of(plan: Plan, title: str) -> dict[str, Any]:
    """The document of one plan.

    Args:
        plan: as it was read.
        title: name of the model or of the plan's file.
    """
    problem = plan.problem
    simulator = Simulator(problem)
    return {
        "format": FORMAT,
        "title": title,
        "unit": problem.time_unit,
        "objective": problem.objective,
        "execution_model": problem.execution_model.name,
        "counts": {
            "ops": problem.graph.n_ops,
            "units": problem.n_units,
            "edges": problem.graph.n_edges,
        },
        "devices": [
            {"name": device.name, "kind": device.kind, "memory": _finite(device.memory_bytes)}
            for device in problem.cluster.devices
        ],
        "endpoints": list(problem.cluster.endpoint_index),
        "units": _units(problem),
        "graph": page_graph(problem),
        "plan": plan_part(plan, simulator),
        "other": None,
        "what_if": what_if_data(problem, plan.placement),
    }


def plan_part(plan: Plan, simulator: Simulator) -> dict[str, Any]:
    """What a page says about one placement: verdict, timeline, memory, history, alternatives."""
    rows = alternatives_of(plan, simulator)
    verdict = verdict_of(plan, rows)
    return {
        "verdict": {
            "answer": verdict.answer,
            "sentence": verdict.sentence,
            "next": verdict.next_step,
        },
        "value": plan.value,
        "lower_bound": plan.lower_bound,
        "bound_method": plan.bound_method,
        "gap": _finite(plan.gap),
        "status": plan.status,
        "measured": None if plan.measured is None else _measured(plan),
        "placer": plan.placer.name,
        "seed": plan.placer.seed,
        "evaluations": plan.placer.evaluations,
        "seconds": plan.placer.seconds,
        "search": search_text(plan.placer),
        "device": plan.placement.device_of.tolist(),
        "alternatives": [
            {
                "name": row.name,
                "predicted": _finite(row.predicted),
                "measured": row.measured,
                "note": row.note,
            }
            for row in rows
        ],
        "history": [
            [point.evaluations, point.seconds, _finite(point.value), point.lower_bound]
            for point in plan.placer.history
        ],
        **_times(plan, simulator),
    }


def _times(plan: Plan, simulator: Simulator) -> dict[str, Any]:
    """Timeline, idle causes and memory curves; loads where there is no timeline."""
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
            "busy": [one.busy for one in times],
            "idle": [[one.idle[cause] for cause in CAUSES] for one in times],
            "stretches": [_stretches(one.idle_stretches) for one in times],
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
    """Load of each device, or the seconds of its units where the model has no loads."""
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
    """Groups, boxes and edges, laid out."""
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


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None

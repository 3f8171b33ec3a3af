"""Plan files: `plan.json`, version ``placewright.plan/1``, with the problem file beside it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from placewright.core.arrays import IntArray
from placewright.core.placement import Placement
from placewright.core.plan import Measurement, PlacerRecord, Plan
from placewright.core.problem import ExecutionModel, Objective, Problem
from placewright.core.residency import memory_counts
from placewright.core.solution import HistoryPoint, Status
from placewright.errors import FileFormatError, StalePlanError
from placewright.files.cluster_file import ClusterDocument, cluster_data, cluster_of
from placewright.files.problem_file import problem_text, read_problem, text_sha256
from placewright.files.schema import Strict, validated
from placewright.files.text import read_json_object, read_text, write_texts

PLAN_FORMAT = "placewright.plan/1"


class ModelEntry(Strict):
    """The model, by content."""

    source: str
    sha256: str
    shapes: dict[str, list[int]]
    ops: int
    edges: int


class ProblemEntry(Strict):
    """The problem file; a relative path starts at the plan's folder."""

    path: str
    sha256: str


class SegmentEntry(Strict):
    """One segment: consecutive ops of one device."""

    device: str
    ops: list[str]


class PredictedEntry(Strict):
    """What the simulator and the bounds say, in the plan's unit; gap is null without a bound.

    `memory_counts` tells what the bytes of `memory` stand for: ``"peak"``, ``"weights only"`` or
    weights and samples in flight. Files of earlier versions leave it out.
    """

    value: float
    lower_bound: float
    gap: float | None
    status: Status
    memory: dict[str, float]
    bound_method: str = ""
    memory_counts: str = ""


class MeasuredEntry(Strict):
    """What the hardware said, seconds."""

    median: float
    iqr: float
    runs: int
    baselines: dict[str, float] = Field(default_factory=dict)
    recommendation: str = "plan"


class PlacerEntry(Strict):
    """How the placement was found; history rows are [evaluations, seconds, value]."""

    name: str
    version: str
    seed: int
    evaluations: int
    seconds: float
    history: list[tuple[int, float, float]]


class PlanDocument(Strict):
    """The whole file; `placement` and `order` name every op of the graph."""

    format: Literal["placewright.plan/1"]
    unit: str
    model: ModelEntry
    problem: ProblemEntry
    objective: Objective
    execution_model: ExecutionModel
    runtime: str
    cluster: ClusterDocument
    placement: dict[str, str]
    order: list[str] | None
    segments: list[SegmentEntry] | None
    predicted: PredictedEntry
    measured: MeasuredEntry | None
    placer: PlacerEntry


def problem_path_of(plan_path: Path | str) -> Path:
    """Where the problem of a plan is written: ``plan.json`` -> ``plan.problem.json``."""
    path = Path(plan_path)
    return path.with_name(f"{path.stem}.problem.json")


def write_plan(path: Path | str, plan: Plan, *, problem_path: Path | str | None = None) -> None:
    """Write the problem beside the plan and the plan, both or none.

    Args:
        path: of the plan.
        problem_path: of an existing problem file to refer to instead of writing one.

    Raises:
        InputError: a file cannot be written; an earlier one stays intact.
    """
    text = problem_text(plan.problem)
    beside = Path(problem_path) if problem_path is not None else problem_path_of(path)
    entry = {"path": _relative(beside, Path(path)), "sha256": text_sha256(text)}
    files: dict[Path | str, str] = {}
    if problem_path is None and not (beside.is_file() and beside.read_bytes() == text.encode()):
        files[beside] = text
    files[path] = json.dumps(plan_data(plan, entry), indent=1) + "\n"
    write_texts(files)


def read_plan(path: Path | str) -> Plan:
    """Read a plan and its problem, and check that they still belong together.

    Raises:
        InputError: a file cannot be read.
        FileFormatError: a field is wrong, an op is missing or unknown, a unit is split.
        StalePlanError: the problem file is no longer the one that the plan was made for.
    """
    document = validated(PlanDocument, read_json_object(path), path, PLAN_FORMAT)
    problem_file = Path(path).parent / document.problem.path
    found = text_sha256(read_text(problem_file))
    if found != document.problem.sha256:
        raise StalePlanError(
            f"plan '{path}' was made for another problem: '{problem_file}' has sha256 "
            f"{found[:12]}, the plan expects {document.problem.sha256[:12]}; place again"
        )
    problem = read_problem(problem_file)
    if cluster_data(cluster_of(document.cluster)) != cluster_data(problem.cluster):
        raise StalePlanError(
            f"plan '{path}' names other devices or links than its problem; place again"
        )
    device_of = _devices_of_units(document, problem, path)
    order = None if document.order is None else _order_of_units(document.order, problem, path)
    predicted, placer = document.predicted, document.placer
    return Plan(
        problem=problem,
        placement=Placement.of(device_of, order),
        value=predicted.value,
        lower_bound=predicted.lower_bound,
        bound_method=predicted.bound_method,
        status=predicted.status,
        runtime=document.runtime,
        memory=predicted.memory,
        segments=_segments_of_units(document, problem, path),
        placer=PlacerRecord(
            placer.name,
            placer.version,
            placer.seed,
            placer.evaluations,
            placer.seconds,
            tuple(HistoryPoint(*row) for row in placer.history),
        ),
        measured=None
        if document.measured is None
        else Measurement(**document.measured.model_dump()),
    )


def plan_data(plan: Plan, problem_entry: dict[str, str]) -> dict[str, Any]:
    """The plan as plain data in the file's own form."""
    problem = plan.problem
    graph, names = problem.graph, problem.cluster.device_names
    source = problem.source
    devices = problem.device_of_ops(plan.placement.device_of).tolist()
    return {
        "format": PLAN_FORMAT,
        "unit": problem.time_unit,
        "model": {
            "source": source.path if source else "",
            "sha256": source.sha256 if source else "",
            "shapes": {k: list(v) for k, v in source.shapes.items()} if source else {},
            "ops": graph.n_ops,
            "edges": graph.n_edges,
        },
        "problem": problem_entry,
        "objective": problem.objective,
        "execution_model": problem.execution_model,
        "runtime": plan.runtime,
        "cluster": cluster_data(problem.cluster),
        "placement": {
            name: names[device] for name, device in zip(graph.op_names, devices, strict=True)
        },
        "order": None if plan.placement.order is None else _ops_in(plan.placement.order, problem),
        "segments": None
        if plan.segments is None
        else [
            {"device": names[device], "ops": _ops_in(np.array(units, dtype=np.int64), problem)}
            for device, units in plan.segments
        ],
        "predicted": {
            "value": plan.value,
            "lower_bound": plan.lower_bound,
            "gap": plan.gap if math.isfinite(plan.gap) else None,
            "status": plan.status,
            "memory": dict(plan.memory),
            "bound_method": plan.bound_method,
            "memory_counts": memory_counts(problem),
        },
        "measured": _measured_data(plan.measured),
        "placer": {
            "name": plan.placer.name,
            "version": plan.placer.version,
            "seed": plan.placer.seed,
            "evaluations": plan.placer.evaluations,
            "seconds": plan.placer.seconds,
            "history": [[p.evaluations, p.seconds, p.value] for p in plan.placer.history],
        },
    }


def _measured_data(measured: Measurement | None) -> dict[str, Any] | None:
    if measured is None:
        return None
    return {
        "median": measured.median,
        "iqr": measured.iqr,
        "runs": measured.runs,
        "baselines": dict(measured.baselines),
        "recommendation": measured.recommendation,
    }


def _relative(target: Path, plan_path: Path) -> str:
    folder = plan_path.resolve().parent
    target = target.resolve()
    return str(target.relative_to(folder)) if target.is_relative_to(folder) else str(target)


def _ops_in(units: IntArray, problem: Problem) -> list[str]:
    """Names of the ops of `units`, unit after unit, each in topological order."""
    graph, members = problem.graph, problem.units.members
    position = np.empty(graph.n_ops, dtype=np.int64)
    position[graph.topological_order] = np.arange(graph.n_ops)
    names: list[str] = []
    for unit in units.tolist():
        ops = members.row(unit)
        names += [graph.op_names[op] for op in ops[np.argsort(position[ops])].tolist()]
    return names


def _devices_of_units(document: PlanDocument, problem: Problem, path: Path | str) -> IntArray:
    graph, group_of = problem.graph, problem.units.group_of
    device_of = np.full(problem.n_units, -1, dtype=np.int64)
    for op, name in enumerate(graph.op_names):
        if name not in document.placement:
            raise FileFormatError(f"plan '{path}' places no device for op '{name}'")
        device = problem.cluster.device(document.placement[name])
        unit = int(group_of[op])
        if device_of[unit] not in (-1, device):
            raise FileFormatError(
                f"plan '{path}' splits a unit: op '{name}' is on '{document.placement[name]}', "
                f"other ops of its unit on '{problem.cluster.device_names[int(device_of[unit])]}'"
            )
        device_of[unit] = device
    if len(document.placement) != graph.n_ops:
        extra = next(name for name in document.placement if name not in graph.op_index)
        raise FileFormatError(f"plan '{path}' places op '{extra}', which the model does not have")
    return device_of


def _units_named(names: list[str], problem: Problem, path: Path | str) -> list[int]:
    seen: dict[int, None] = {}
    for name in names:
        if name not in problem.graph.op_index:
            raise FileFormatError(f"plan '{path}' names op '{name}', which the model does not have")
        seen[int(problem.units.group_of[problem.graph.op_index[name]])] = None
    return list(seen)


def _order_of_units(names: list[str], problem: Problem, path: Path | str) -> list[int]:
    order = _units_named(names, problem, path)
    if len(order) != problem.n_units:
        raise FileFormatError(
            f"plan '{path}': order names {len(order)} of {problem.n_units} units; it must name all"
        )
    return order


def _segments_of_units(
    document: PlanDocument, problem: Problem, path: Path | str
) -> tuple[tuple[int, tuple[int, ...]], ...] | None:
    if document.segments is None:
        return None
    return tuple(
        (problem.cluster.device(entry.device), tuple(_units_named(entry.ops, problem, path)))
        for entry in document.segments
    )

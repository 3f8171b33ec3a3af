"""Plan files: `plan.json` with the problem file beside it; see `files.plan_document`."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from placewright.core.arrays import IntArray
from placewright.core.placement import Placement
from placewright.core.plan import Measurement, PlacerRecord, Plan, Searched
from placewright.core.problem import Problem
from placewright.core.residency import input_names
from placewright.core.solution import HistoryPoint
from placewright.core.source import ModelSource, Number
from placewright.errors import FileFormatError, InputError, StalePlanError
from placewright.files.cluster_file import cluster_data, cluster_of
from placewright.files.plan_document import (
    PLAN_FORMAT,
    PlacerEntry,
    PlanDocument,
    plan_document,
    require_agreement,
)
from placewright.files.problem_file import (
    content_text,
    path_from,
    problem_text,
    read_problem,
    text_sha256,
    written_in,
)
from placewright.files.schema import require_order
from placewright.io.json_text import json_number, read_json_object, read_text
from placewright.io.opened import is_missing, read_bytes, shown_name
from placewright.io.written import is_written_through, write_files, written_place


def problem_path_of(plan_path: Path | str) -> Path:
    """Path of the problem beside a plan: ``plan.json`` -> ``plan.problem.json``.

    Plans whose names differ in ``.json`` alone share none: that of ``plan`` is
    ``plan-problem.json``.
    """
    path = Path(plan_path)
    if path.suffix == ".json":
        return path.with_suffix(".problem.json")
    return path.with_name(f"{path.name}-problem.json")


def write_plan(path: Path | str, plan: Plan, *, problem_path: Path | str | None = None) -> None:
    """Write a plan and the problem beside it, both or none.

    >>> plan = pw.place("problem.json", placer="heft", evaluations=9)
    >>> pw.write_plan("found.json", plan)  # and found.problem.json
    >>> pw.read_plan("found.json").value
    4.0

    Args:
        path: of the plan; no problem is written beside a device such as ``/dev/null``.
        plan: the plan.
        problem_path: an existing problem file to refer to instead.

    Raises:
        InputError: a file cannot be written, and an earlier one stays intact; or `problem_path`
            holds another problem, or is `path` itself.
    """
    require_order("write_plan", path, plan, Plan)
    written_place(path)
    beside = Path(problem_path) if problem_path is not None else problem_path_of(path)
    text = problem_text(written_in(plan.problem, beside))
    if problem_path is not None:
        text = _own_text(beside, plan.problem)
    if os.path.realpath(beside) == os.path.realpath(path):
        raise InputError(
            f"'{shown_name(path)}' is the problem file itself; name another file for the plan"
        )
    entry = {"path": _relative(beside, Path(path)), "sha256": text_sha256(text)}
    content = text.encode()
    files: dict[Path | str, bytes] = {}
    if problem_path is None and not is_written_through(path) and not _holds(beside, content):
        files[beside] = content
    written = replace(plan, problem=written_in(plan.problem, path))
    files[path] = _plan_text(plan_data(written, entry)).encode()
    write_files(files)


def _plan_text(data: dict[str, Any]) -> str:
    return json.dumps(data, indent=1, default=json_number) + "\n"


def _own_text(file: Path, problem: Problem) -> str:
    """Text of a problem file, which may be written by hand.

    Raises:
        InputError: it cannot be read, or holds another problem.
    """
    text = read_text(file)
    held, own = content_text(read_problem(file)), content_text(problem)
    # Texts of equal problems differ where one holds a whole number, such as 65 and 65.0.
    if held != own and json.loads(held) != json.loads(own):
        raise InputError(f"'{shown_name(file)}' holds another problem than the plan's")
    return text


def _holds(file: Path, content: bytes) -> bool:
    if not file.is_file() or file.stat().st_size != len(content):
        return False
    return read_bytes(file, limit=len(content)) == content


def read_plan(path: Path | str) -> Plan:
    """Read a plan and its problem, and check that they belong together.

    Raises:
        InputError: a file cannot be read.
        FileFormatError: a field is wrong, an op is missing or unknown, a unit is split.
        StalePlanError: the problem file is no longer the one that the plan was made for.
    """
    document = plan_document(read_json_object(path), path)
    home = _home(path, document.problem.path)
    problem_file = home.parent / document.problem.path
    if is_missing(problem_file):
        raise InputError(
            f"problem file '{shown_name(problem_file)}' does not exist; keep it with plan "
            f"'{shown_name(path)}', which needs it"
        )
    sha256 = text_sha256(read_text(problem_file))
    if sha256 != document.problem.sha256:
        raise StalePlanError(
            f"plan '{path}' was made for another problem: '{problem_file}' has sha256 "
            f"{sha256[:12]}, the plan expects {document.problem.sha256[:12]}; place again"
        )
    problem = read_problem(problem_file)
    document = _with_model_of(document, problem, home)
    if cluster_data(cluster_of(document.cluster)) != cluster_data(problem.cluster):
        raise StalePlanError(
            f"plan '{path}' names other devices or links than its problem; place again"
        )
    # First, because this check has the best messages about names.
    _devices_of_units(document.placement, problem, path)
    require_agreement(document, _entries_of(problem, document), path)
    predicted, placer, searched = document.predicted, document.placer, document.searched
    return Plan(
        problem=problem,
        placement=_placement(document.placement, document.order, problem, path),
        value=predicted.value,
        lower_bound=predicted.lower_bound,
        bound_method=predicted.bound_method,
        left_out=tuple(document.left_out),
        in_flight=document.in_flight,
        status=predicted.status,
        runtime=document.runtime,
        memory=predicted.memory,
        amounts=predicted.amounts,
        segments=_segments_of_units(document, problem, path),
        placer=_record(placer),
        measured=None
        if document.measured is None
        else Measurement(**document.measured.model_dump()),
        searched=None
        if searched is None
        else Searched(
            _placement(searched.placement, searched.order, problem, path),
            searched.value,
            searched.in_flight,
        ),
    )


def _home(path: Path | str, problem: str) -> Path:
    """The path of a plan, or of what a link leads to if its problem is beside that."""
    home = Path(path)
    is_led = home.is_symlink() and is_missing(home.parent / problem)
    return home.resolve() if is_led else home


def _record(placer: PlacerEntry) -> PlacerRecord:
    return PlacerRecord(
        placer.name,
        placer.version,
        placer.seed,
        placer.evaluations,
        placer.seconds,
        tuple(HistoryPoint(*row) for row in placer.history),
        placer.stop,
        placer.core_seconds,
        placer.settings,
    )


def plan_data(plan: Plan, problem_entry: dict[str, str]) -> dict[str, Any]:
    """The plan as data of its file."""
    problem = plan.problem
    names = problem.cluster.device_names
    return {
        "format": PLAN_FORMAT,
        "unit": problem.value_unit,
        "model": _model_data(problem),
        "problem": problem_entry,
        "objective": problem.objective,
        "execution_model": problem.execution_model.name,
        "runtime": plan.runtime,
        "cluster": cluster_data(problem.cluster),
        **_placement_data(plan.placement, problem),
        "searched": None
        if plan.searched is None
        else {
            **_placement_data(plan.searched.placement, problem),
            "value": plan.searched.value,
            **_flight_data(plan.searched.in_flight),
        },
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
            "memory_counts": problem.execution_model.memory_counts,
            **({"amounts": dict(plan.amounts)} if len(plan.amounts) > 1 else {}),
        },
        "measured": _measured_data(plan.measured),
        "placer": _placer_data(plan.placer),
        **_resident(problem),
        "left_out": list(plan.left_out),
        **_flight_data(plan.in_flight),
    }


def _flight_data(in_flight: int | None) -> dict[str, int]:
    return {} if in_flight is None else {"in_flight": in_flight}


def _with_model_of(document: PlanDocument, problem: Problem, path: Path | str) -> PlanDocument:
    """Replace the model's path by that of the problem if both are the same file."""
    model = path_from(document.model.source, path)
    source = problem.source
    is_file = source is not None and "\0" not in model + source.path  # which names no file
    if source is not None and is_file and os.path.realpath(model) == os.path.realpath(source.path):
        model = source.path
    return document.model_copy(
        update={"model": document.model.model_copy(update={"source": model})}
    )


def _model_data(problem: Problem) -> dict[str, Any]:
    source = problem.source
    return {
        "source": source.path if source else "",
        "sha256": source.sha256 if source else "",
        "shapes": {k: list(v) for k, v in source.shapes.items()} if source else {},
        "values": _values(source),
        "ops": problem.graph.n_ops,
        "edges": problem.graph.n_edges,
    }


def _values(source: ModelSource | None) -> dict[str, list[Number]]:
    """Name of each input with a fixed value -> its numbers."""
    if source is None or source.signature is None:
        return {}
    return {name: list(value) for name, value in source.signature.values.items()}


def _entries_of(problem: Problem, document: PlanDocument) -> dict[str, Any]:
    """Entries of a plan file that its problem determines, to check the file against."""
    predicted = document.predicted.model_dump()
    if document.predicted.memory_counts:  # files of earlier versions lack it
        predicted["memory_counts"] = problem.execution_model.memory_counts
    return {
        "unit": problem.value_unit,
        "model": _model_data(problem),
        "objective": problem.objective,
        "execution_model": problem.execution_model.name,
        "resident_inputs": _resident(problem).get("resident_inputs", []),
        "predicted": predicted,
    }


def _placer_data(placer: PlacerRecord) -> dict[str, Any]:
    return {
        "name": placer.name,
        "version": placer.version,
        "seed": placer.seed,
        "evaluations": placer.evaluations,
        "seconds": placer.seconds,
        "history": [[p.evaluations, p.seconds, p.value, p.lower_bound] for p in placer.history],
        **({} if placer.stop is None else {"stop": placer.stop.value}),
        **({} if placer.core_seconds is None else {"core_seconds": placer.core_seconds}),
        **({} if placer.settings is None else {"settings": dict(placer.settings)}),
    }


def _placement_data(placement: Placement, problem: Problem) -> dict[str, Any]:
    """Placement (op -> device) and order (list of ops) of a plan file, by names."""
    names = problem.cluster.device_names
    devices = problem.device_of_ops(placement.device_of).tolist()
    ops = problem.graph.op_names
    return {
        "placement": {name: names[device] for name, device in zip(ops, devices, strict=True)},
        "order": None if placement.order is None else _ops_in(placement.order, problem),
    }


def _resident(problem: Problem) -> dict[str, list[str]]:
    names = input_names(problem.resident_inputs, problem.graph, problem.source)
    return {"resident_inputs": names} if names else {}


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
    """Names of the ops of units, unit after unit; ops of a unit in topological order."""
    graph, members = problem.graph, problem.units.members
    position = np.empty(graph.n_ops, dtype=np.int64)
    position[graph.topological_order] = np.arange(graph.n_ops)
    names: list[str] = []
    for unit in units.tolist():
        ops = members.row(unit)
        names += [graph.op_names[op] for op in ops[np.argsort(position[ops])].tolist()]
    return names


def _placement(
    named: Mapping[str, str], order: list[str] | None, problem: Problem, path: Path | str
) -> Placement:
    device_of = _devices_of_units(named, problem, path)
    return Placement.of(device_of, None if order is None else _order_of_units(order, problem, path))


def _devices_of_units(placement: Mapping[str, str], problem: Problem, path: Path | str) -> IntArray:
    graph, group_of = problem.graph, problem.units.group_of
    device_of = np.full(problem.n_units, -1, dtype=np.int64)
    for op, name in enumerate(graph.op_names):
        if name not in placement:
            raise FileFormatError(f"plan '{path}' places no device for op '{name}'")
        device = problem.cluster.device(placement[name])
        unit = int(group_of[op])
        if device_of[unit] not in (-1, device):
            raise FileFormatError(
                f"plan '{path}' splits a unit: op '{name}' is on '{placement[name]}', "
                f"other ops of its unit on '{problem.cluster.device_names[int(device_of[unit])]}'"
            )
        device_of[unit] = device
    if len(placement) != graph.n_ops:
        extra = next(name for name in placement if name not in graph.op_index)
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
    if len(order) != problem.n_units or len(names) != problem.graph.n_ops:
        raise FileFormatError(
            f"plan '{path}': order names {len(names)} ops in {len(order)} of {problem.n_units} "
            f"units; it must name all {problem.graph.n_ops} ops once"
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

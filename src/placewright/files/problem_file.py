"""Problem files: graph, units, cluster, costs and constraints in one JSON file.

Paths of models are relative to the folder of the file, so that both can move together.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from placewright.core.arrays import FloatArray, frozen_floats, frozen_ints
from placewright.core.costs import CostTable
from placewright.core.execution_models import ExecutionModel, ModelName
from placewright.core.grouping import Grouping
from placewright.core.problem import Objective, Problem
from placewright.core.residency import input_names, inputs_named
from placewright.errors import FileFormatError
from placewright.files.cluster_file import ClusterDocument, cluster_data, cluster_of
from placewright.files.graph_file import (
    GraphColumns,
    SourceDocument,
    graph_data,
    graph_of,
    source_data,
    source_of,
)
from placewright.files.model_names import model_entries, model_of
from placewright.files.schema import Float, Strict, require_order, validated
from placewright.io.json_text import json_number, read_json_object
from placewright.io.written import final_folder, is_written_through, write_text

PROBLEM_FORMAT = "placewright.problem/1"


_Seconds = Annotated[float, Field(strict=True)]  # no text and no true, which count as 1 elsewhere


class CostColumns(Strict):
    """Seconds of each unit on each device; null if the device cannot run it."""

    source: str
    seconds: list[list[_Seconds | None]]


class ProblemDocument(Strict):
    """The whole file; see `core.problem.Problem` for the meaning of each field."""

    format: Literal["placewright.problem/1"]
    unit: str
    source: SourceDocument | None
    graph: GraphColumns
    units: list[Annotated[int, Field(strict=True)]]
    cluster: ClusterDocument
    costs: CostColumns
    objective: Objective
    execution_model: ModelName
    pins: dict[str, str]
    transfer_seconds: list[Float] | None
    samples_in_flight: int
    subgraphs_per_accelerator: int
    split_phases: bool
    execution_parameters: dict[str, Any] = Field(default_factory=dict)
    inner_tensors: bool = False
    op_working_bytes: list[Float] | None = None
    resident_inputs: list[str] = Field(default_factory=list)
    limits: dict[str, Float] = Field(default_factory=dict)
    op_joules: list[list[_Seconds | None]] | None = None


def problem_text(problem: Problem) -> str:
    """The text of a problem's file; equal problems have equal texts."""
    graph = problem.graph
    names = problem.cluster.device_names
    data: dict[str, Any] = {
        "format": PROBLEM_FORMAT,
        "unit": problem.time_unit,
        "source": source_data(problem.source),
        "graph": graph_data(graph),
        "units": problem.units.group_of.tolist(),
        "cluster": cluster_data(problem.cluster),
        "costs": {
            "source": problem.costs.source,
            "seconds": _table_data(problem.costs.seconds),
        },
        "objective": problem.objective,
        "execution_model": problem.execution_model.name,
        "pins": {graph.op_names[op]: names[at] for op, at in sorted(problem.pins.items())},
        "transfer_seconds": None
        if problem.transfer_seconds is None
        else problem.transfer_seconds.tolist(),
        **model_entries(problem.execution_model),
    }
    if problem.inner_tensors:
        data["inner_tensors"] = True
    if problem.op_working_bytes is not None:
        data["op_working_bytes"] = problem.op_working_bytes.tolist()
    if problem.resident_inputs:
        data["resident_inputs"] = input_names(problem.resident_inputs, graph, problem.source)
    if problem.limits:
        data["limits"] = dict(problem.limits)
    if problem.op_joules is not None:
        data["op_joules"] = _table_data(problem.op_joules)
    return json.dumps(data, default=json_number)


def _table_data(table: FloatArray) -> list[list[float | None]]:
    """Rows of a table; null where a device cannot run a unit."""
    rows = table.tolist()
    return [[value if math.isfinite(value) else None for value in row] for row in rows]


def _table(rows: list[list[float | None]]) -> FloatArray:
    return frozen_floats([[np.inf if value is None else value for value in row] for row in rows])


def content_text(problem: Problem) -> str:
    """Text of a problem without the path of its model, so that it is equal in other folders."""
    source = problem.source
    moved = None if source is None else replace(source, path="")
    return problem_text(replace(problem, source=moved))


def content_sha256(problem: Problem) -> str:
    """Hash of a problem's `content_text`."""
    return text_sha256(content_text(problem))


def text_sha256(text: str) -> str:
    """Hash of a text, for plan files."""
    return hashlib.sha256(text.encode()).hexdigest()


def write_problem(path: Path | str, problem: Problem) -> str:
    """Write a problem file that `read_problem` reads back, and return its hash.

    >>> problem = pw.read_problem("problem.json")
    >>> sha256 = pw.write_problem("copy.json", problem)
    >>> pw.read_problem("copy.json").objective
    'latency'

    Raises:
        InputError: the file cannot be written; an earlier one stays intact.
    """
    require_order("write_problem", path, problem, Problem)
    text = problem_text(written_in(problem, path))
    write_text(path, text)
    return text_sha256(text)


def read_problem(path: Path | str) -> Problem:
    """Read a problem file.

    >>> problem = pw.read_problem("problem.json")
    >>> problem.n_units, problem.n_devices
    (4, 2)

    Raises:
        InputError: the file cannot be read.
        FileFormatError: it is not a problem file, or a field is wrong.
        GraphError, ClusterError, CostError, GroupingError: the parts do not form a valid problem.
    """
    document = validated(ProblemDocument, read_json_object(path), path, PROBLEM_FORMAT)
    graph = graph_of(document.graph, path)
    cluster = cluster_of(document.cluster)
    rows, joules = document.costs.seconds, document.op_joules
    if any(len(row) != cluster.n_devices for row in (*rows, *(joules or []))):
        raise FileFormatError(f"file '{path}': each row of costs needs {cluster.n_devices} entries")
    if len(document.units) != graph.n_ops:
        raise FileFormatError(f"file '{path}': units needs {graph.n_ops} entries, one per op")
    for name in document.pins:
        if name not in graph.op_index:
            raise FileFormatError(f"file '{path}': pins name the unknown op '{name}'")
    transfers, working = document.transfer_seconds, document.op_working_bytes
    source = source_of(document.source, graph, path)
    if source is not None:
        source = replace(source, path=path_from(source.path, path))
    return Problem(
        graph=graph,
        cluster=cluster,
        costs=CostTable(_table(rows), document.costs.source),
        units=Grouping(frozen_ints(document.units)),
        objective=document.objective,
        execution_model=_model_of(document, path),
        pins={graph.op_index[op]: cluster.device(at) for op, at in document.pins.items()},
        transfer_seconds=None if transfers is None else frozen_floats(transfers),
        time_unit=document.unit,
        inner_tensors=document.inner_tensors,
        op_working_bytes=None if working is None else frozen_floats(working),
        resident_inputs=inputs_named(document.resident_inputs, graph, source),
        source=source,
        limits=document.limits,
        op_joules=None if joules is None else _table(joules),
    )


def _model_of(document: ProblemDocument, path: Path | str) -> ExecutionModel:
    columns = {
        "samples_in_flight": document.samples_in_flight,
        "per_accelerator": document.subgraphs_per_accelerator,
        "split_phases": document.split_phases,
    }
    for name in document.execution_parameters:
        if name in columns:
            raise FileFormatError(
                f"file '{path}': execution_parameters: '{name}' has an entry of its own in the "
                "file; remove it here"
            )
    return model_of(document.execution_model, **document.execution_parameters, **columns)


def written_in(problem: Problem, file: Path | str) -> Problem:
    """A problem with the path of its model relative to the folder of `file`.

    A model that is a link keeps its own name, as its suffix and its neighbours count.
    Names that are not files stay, as do all paths if `file` is a device.
    """
    source = problem.source
    if source is None or not source.path or is_written_through(file):
        return problem
    if not os.path.exists(source.path):
        return problem
    try:
        path = os.path.relpath(_unlinked(source.path), final_folder(file))
    except ValueError:  # another drive
        return problem
    return replace(problem, source=replace(source, path=Path(path).as_posix()))


def path_from(path: str, file: Path | str) -> str:
    """The path of a model in a file, relative to the file's folder if it exists there."""
    beside = Path(file).parent / path
    if not (path and os.path.exists(beside)):
        return path
    plain = os.path.normpath(beside)  # another file if ".." follows a link to a folder
    is_same = os.path.exists(plain) and os.path.samefile(plain, beside)
    return plain if is_same else _unlinked(beside)


def _unlinked(path: Path | str) -> str:
    """A path whose folder is free of links; a link at its end stays."""
    place = Path(path)
    if place.name in ("", ".."):
        return os.path.realpath(place)
    return os.path.join(os.path.realpath(place.parent), place.name)

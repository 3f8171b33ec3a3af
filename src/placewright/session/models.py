"""MODEL, as a user names it, to a graph (and, where the file carries costs, a problem)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from placewright.core.graph import ComputationGraph
from placewright.core.problem import Objective, Problem
from placewright.core.source import ModelSource
from placewright.errors import FieldError, FileFormatError, InputError, StalePlanError
from placewright.execution.framework import Framework, ReadOptions
from placewright.files.graph_file import GRAPH_FORMAT, read_graph
from placewright.files.plan_document import EARLIER_FORMAT, PLAN_FORMAT
from placewright.files.plan_file import read_plan
from placewright.files.problem_file import PROBLEM_FORMAT, read_problem
from placewright.files.text import read_json_object
from placewright.frameworks.registry import framework_named, framework_of, frameworks
from placewright.io.opened import shown_name
from placewright.session.found_models import MODULE_PREFIX, ZOO_PREFIX, finder, require_file
from placewright.session.runtimes import (
    default_runtime_name,
    require_known_runtime,
    require_training_runtime,
)

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Model:
    """What was read.

    Attributes:
        graph: the operators.
        source: where they came from; None for a graph saved without one.
        problem: given where the file carries costs (a saved problem, a Tarnawski workload).
    """

    graph: ComputationGraph
    source: ModelSource | None
    problem: Problem | None = None

    @property
    def n_units(self) -> int:
        """Units where they are known, else ops."""
        if self.problem is not None:
            return self.problem.n_units
        framework = None if self.source is None else framework_of(self.source)
        joined = None if framework is None else framework.joined(self.graph)
        if joined is not None:
            return joined.n_groups  # on every device alike
        return self.graph.n_ops


def load_model(
    name: str,
    *,
    objective: Objective = "latency",
    shapes: Shapes | None = None,
    fold_constants: bool = True,
    runtime: str | None = None,
    optimizer: str = "sgd",
    colocate_backward: bool = False,
) -> Model:
    """Read what a user calls MODEL.

    Args:
        name: a path, or ``"zoo:NAME"``.
        objective: of the problem, where the file carries costs.
        shapes: input name -> dimensions to fix.
        fold_constants: False gives the raw graph, constants and parameters as ops.
        runtime: whose view of the model is read; ONNX Runtime's ops are the nodes of an ``.onnx``
            file, PyTorch's the calls of an exported program; None is OpenVINO's, PyTorch's for
            training.
        optimizer: of a training step, for example ``"adamw:learning_rate=1e-4"``.
        colocate_backward: every backward op of a training step shares a device with its forward op.

    Raises:
        InputError: there is no such file or zoo model, or it cannot be read.
    """
    require_known_runtime(runtime)
    require_training_runtime(runtime, objective)
    framework = framework_named(runtime or default_runtime_name(objective))
    path = Path(name)
    if name and path.suffix == ".json" and path.exists() and not path.is_dir():
        return _from_json(path, objective)
    if name.startswith(MODULE_PREFIX) and not framework.reads_modules:
        raise FieldError(
            "runtime",
            f"{framework.library} reads no modules in memory: export yours to a file "
            "(torch.export.save) and place that, or leave the runtime out",
        )
    if not name.startswith((ZOO_PREFIX, MODULE_PREFIX)):
        require_file(name)
    options = ReadOptions(
        dict(shapes or {}), fold_constants, objective == "training", optimizer, colocate_backward
    )
    return Model(*framework.read(name, finder(framework), options))


def runnable_source(source: ModelSource, graph: ComputationGraph) -> ModelSource:
    """The source with a path that a runtime can open: a zoo model becomes its converted file.

    A source that was stored without the order of inputs and outputs gets it from the model.

    Raises:
        StalePlanError: the file is no longer the one that the source was made from.
        InputError: it is missing, cannot be read, or takes and gives what no runtime is given here.
    """
    framework = framework_of(source)
    if framework is None:
        raise InputError(f"no runtime runs model '{source.path}' (its format is '{source.format}')")
    source = framework.runnable(source, finder(framework))
    found = source if source.signature is not None else _with_signature(source, graph, framework)
    _require_numbers(found)
    return found


def _require_numbers(source: ModelSource) -> None:
    """Refuse models whose inputs nobody can draw, or whose run gives nothing to compare.

    Raises:
        InputError: an input or output holds texts, or there is no output.
    """
    if source.signature is None:
        return
    path, outputs = shown_name(source.path), source.signature.outputs
    for port in (*source.signature.inputs, *outputs):
        if port.dtype == "string":
            raise InputError(
                f"model '{path}': '{shown_name(port.name)}' holds texts; only numbers can be "
                "measured and compared"
            )
    if not outputs:
        raise InputError(f"model '{path}' has no outputs, so that a run of it gives nothing")


def _with_signature(
    source: ModelSource, graph: ComputationGraph, framework: Framework
) -> ModelSource:
    """Read the model of an earlier version's file again, for the order of its inputs and outputs.

    Raises:
        StalePlanError: it is read as another graph now.
    """
    found, read = framework.again(source, finder(framework))
    same_tensors = np.array_equal(found.tensor_producers, graph.tensor_producers)
    if found.op_names != graph.op_names or not same_tensors:
        raise StalePlanError(
            f"model '{source.path}' is read as another graph by this version; place it again"
        )
    return replace(source, signature=read.signature, state=read.state)


def companions_of_model(path: Path) -> tuple[Path, ...]:
    """Other files that belong to a model file, as far as can be told; nothing is refused."""
    suffix = path.suffix.lower()
    readers = (one for one in frameworks() if suffix in one.suffixes)
    reader = next(readers, None)
    return () if reader is None else reader.companions(path)


def _from_json(path: Path, objective: Objective) -> Model:
    kind = read_json_object(path).get("format")
    if kind == GRAPH_FORMAT:
        graph, source = read_graph(path)
        return Model(graph, source)
    if kind == PROBLEM_FORMAT:
        problem = read_problem(path)
        return Model(problem.graph, problem.source, problem)
    if kind in (PLAN_FORMAT, EARLIER_FORMAT):
        problem = read_plan(path).problem
        return Model(problem.graph, problem.source, problem)
    if kind is not None:
        raise FileFormatError(
            f"file '{path}' has format {kind!r}; a model is '{GRAPH_FORMAT}', '{PROBLEM_FORMAT}' "
            "or a Tarnawski workload"
        )
    from placewright.files.tarnawski import read_workload

    problem = read_workload(path, objective=objective)
    return Model(problem.graph, problem.source, problem)

"""MODEL, as a user names it, to a graph (and, where the file carries costs, a problem)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from placewright.core.graph import ComputationGraph
from placewright.core.problem import Objective, Problem
from placewright.core.source import ModelSource
from placewright.errors import FileFormatError, InputError, StalePlanError, UnknownNameError
from placewright.files.graph_file import GRAPH_FORMAT, read_graph
from placewright.files.problem_file import PROBLEM_FORMAT, read_problem
from placewright.files.text import read_json_object
from placewright.session.runtimes import (
    DEFAULT_RUNTIMES,
    require_known_runtime,
    require_training_runtime,
)
from placewright.session.torch_models import FORMATS as TORCH_FORMATS
from placewright.session.torch_models import (
    MODULE_PREFIX,
    ZOO_PREFIX,
    TorchOptions,
    read_torch_model,
)
from placewright.session.zoo_source import ZooSource

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
        if self.source is not None and self.source.format in TORCH_FORMATS:
            from placewright.frameworks.torch.light_ops import light_ops_joined

            return light_ops_joined(self.graph).n_groups  # on every device alike
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
        optimizer: of a training step, see `frameworks.torch.training.optimizers.optimizer_of`.
        colocate_backward: every backward op of a training step shares a device with its forward op.

    Raises:
        InputError: there is no such file or zoo model, or it cannot be read.
    """
    fixed = dict(shapes or {})
    path = Path(name)
    is_file = bool(name) and path.exists()
    require_known_runtime(runtime)
    require_training_runtime(runtime, objective)
    chosen = runtime or DEFAULT_RUNTIMES[objective]
    if chosen == "torch" and (is_file or ":" in name) and path.suffix != ".json":
        training = objective == "training"
        options = TorchOptions(training, optimizer, colocate_backward, fold_constants)
        return _from_torch(name, options, fixed)
    if name.startswith(ZOO_PREFIX):
        zoo_name = name.removeprefix(ZOO_PREFIX)
        return _from_zoo(zoo_name, fixed, fold_constants, runtime)
    if not is_file:
        raise InputError(
            f"model '{name}' does not exist; give a file, or zoo:NAME for a model built here"
        )
    if path.suffix == ".json" and path.is_file():
        return _from_json(path, objective)
    return _from_file(path, fixed, fold_constants, runtime)


def require_model(name: str) -> None:
    """Refuse a model that does not exist, without reading it.

    Raises:
        InputError: there is no such file.
        UnknownNameError: the zoo has no such model or variant.
        MissingExtraError: the zoo model needs a library that is not installed.
    """
    if name.startswith(ZOO_PREFIX):
        from placewright import zoo

        known, _, variant = name.removeprefix(ZOO_PREFIX).partition("/")
        known_variants = zoo.variants(known)
        if (variant or "default") not in known_variants:
            raise UnknownNameError(f"variant of zoo:{known}", variant, known_variants)
    elif not name.startswith(MODULE_PREFIX) and not (name and Path(name).exists()):
        raise InputError(
            f"model '{name}' does not exist; give a file, or zoo:NAME for a model built here"
        )


def runnable_source(source: ModelSource, graph: ComputationGraph) -> ModelSource:
    """The source with a path that a runtime can open: a zoo model becomes its converted file.

    A source that was stored without the order of inputs and outputs gets it from the model.

    Raises:
        StalePlanError: the file is no longer the one that the source was made from.
        InputError: it is missing or cannot be read.
    """
    if source.format not in TORCH_FORMATS:  # else the runtime's reader takes it, and checks it
        if source.path.startswith(ZOO_PREFIX):
            zoo = ZooSource.named(source.path.removeprefix(ZOO_PREFIX))
            source = replace(source, path=str(zoo.file(source.format)))
        found = source_hash(source.path)
        if found != source.sha256:
            raise StalePlanError(
                f"model '{source.path}' has changed: its sha256 is {found[:12]}, expected "
                f"{source.sha256[:12]}; place it again"
            )
    return source if source.signature is not None else _with_signature(source, graph)


def _with_signature(source: ModelSource, graph: ComputationGraph) -> ModelSource:
    """Read the model of an earlier version's file again, for the order of its inputs and outputs.

    Raises:
        StalePlanError: it is read as another graph now.
    """
    if source.format in TORCH_FORMATS:
        again = read_torch_model(source.path, TorchOptions.of_source(source))
        found, read = again.graph, again.source
    else:
        from placewright.frameworks.onnxruntime.reader import read_onnx
        from placewright.frameworks.openvino.reader import read_openvino

        read_file = read_onnx if source.format == "onnx" else read_openvino
        fold = source.options.get("fold_constants") != "no"
        found, read = read_file(source.path, shapes=source.shapes, fold_constants=fold)
    same_tensors = np.array_equal(found.tensor_producers, graph.tensor_producers)
    if found.op_names != graph.op_names or not same_tensors:
        raise StalePlanError(
            f"model '{source.path}' is read as another graph by this version; place it again"
        )
    return replace(source, signature=read.signature, state=read.state)


def source_hash(path: Path | str) -> str:
    """Hash of a model's files as readers put it into a source."""
    from placewright.frameworks.openvino.model_files import checked_files
    from placewright.io.content import content_hash, existing_path

    file = existing_path(path)
    return content_hash(file if file.is_dir() else file.parent, checked_files(file))


def _from_torch(name: str, options: TorchOptions, shapes: Shapes) -> Model:
    found = read_torch_model(name, options)
    for asked, shape in shapes.items():
        if found.source.shapes.get(asked) != tuple(shape):
            known = ", ".join(f"{key}={value}" for key, value in found.source.shapes.items())
            raise InputError(
                f"--shape {asked}: an exported PyTorch model keeps the shapes of its example "
                f"inputs ({known}); export it with others"
            )
    return Model(found.graph, found.source)


def _from_zoo(name: str, shapes: Shapes, fold_constants: bool, runtime: str | None) -> Model:
    zoo = ZooSource.named(name)
    if runtime == "onnxruntime":
        from placewright.frameworks.onnxruntime.reader import read_onnx

        file = zoo.file("onnx")
        graph, source = read_onnx(file, shapes=shapes, fold_constants=fold_constants)
    else:
        from placewright.frameworks.openvino.reader import read_openvino

        file = zoo.file("openvino")
        graph, source = read_openvino(file, shapes=shapes, fold_constants=fold_constants)
    return Model(graph, replace(zoo.named_ports(source), path=f"{ZOO_PREFIX}{name}"))


def _from_json(path: Path, objective: Objective) -> Model:
    kind = read_json_object(path).get("format")
    if kind == GRAPH_FORMAT:
        graph, source = read_graph(path)
        return Model(graph, source)
    if kind == PROBLEM_FORMAT:
        problem = read_problem(path)
        return Model(problem.graph, problem.source, problem)
    if kind is not None:
        raise FileFormatError(
            f"file '{path}' has format {kind!r}; a model is '{GRAPH_FORMAT}', '{PROBLEM_FORMAT}' "
            "or a Tarnawski workload"
        )
    from placewright.files.tarnawski import read_workload

    problem = read_workload(path, objective=objective)
    return Model(problem.graph, problem.source, problem)


def _from_file(path: Path, shapes: Shapes, fold_constants: bool, runtime: str | None) -> Model:
    if runtime == "onnxruntime":
        return Model(*_onnx_nodes(path, shapes, fold_constants))
    from placewright.frameworks.openvino.reader import read_openvino

    if path.suffix.lower() == ".pt2":
        from placewright.frameworks.openvino.conversion import openvino_file_of_program
        from placewright.frameworks.torch.pt2.program_file import program_file

        path = openvino_file_of_program(program_file(path))
    graph, source = read_openvino(path, shapes=shapes, fold_constants=fold_constants)
    return Model(graph, source)


def _onnx_nodes(
    path: Path, shapes: Shapes, fold_constants: bool
) -> tuple[ComputationGraph, ModelSource]:
    """An ``.onnx`` file node by node; a ``.pt2`` file is exported to one first."""
    from placewright.frameworks.onnxruntime.reader import read_onnx

    suffix = path.suffix.lower()
    if suffix == ".pt2":
        from placewright.frameworks.onnxruntime.conversion import onnx_file_of_program
        from placewright.frameworks.torch.pt2.program_file import program_file

        path = onnx_file_of_program(program_file(path))
    elif suffix != ".onnx":
        raise InputError(
            f"ONNX Runtime runs .onnx and .pt2 models, not '{path}'; leave out --runtime, or "
            "convert the model to .onnx"
        )
    return read_onnx(path, shapes=shapes, fold_constants=fold_constants)

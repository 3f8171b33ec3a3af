"""Models: by name, read as a graph, loaded by a runtime.

A name is a path, ``zoo:NAME``, or a PyTorch module in the memory of this process.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path

import numpy as np

from placewright.core.graph import BACKWARD, ComputationGraph
from placewright.core.grouping import Grouping
from placewright.core.plan import Plan
from placewright.core.problem import Objective, Problem
from placewright.core.source import ModelSource
from placewright.errors import (
    FieldError,
    FileFormatError,
    InputError,
    StalePlanError,
    UnknownNameError,
)
from placewright.execution.framework import (
    BuiltModule,
    Find,
    FoundModel,
    Framework,
    HandsOverPrograms,
    ModelInMemory,
    ReadOptions,
)
from placewright.execution.inputs import require_numeric_ports, with_values
from placewright.execution.runtime import LoadedModel, Runtime
from placewright.execution.token_work import Works
from placewright.files.graph_file import GRAPH_FORMAT, read_graph
from placewright.files.plan_document import EARLIER_FORMAT, PLAN_FORMAT
from placewright.files.plan_file import read_plan
from placewright.files.problem_file import PROBLEM_FORMAT, read_problem
from placewright.frameworks.registry import (
    framework_named,
    framework_of,
    frameworks,
    is_installed,
    make_runtime,
    path_in,
    reader_of_file,
    stamp_of_file,
)
from placewright.frameworks.runtimes import (
    MODULE_PREFIX,
    ZOO_PREFIX,
    default_choice,
    default_runtime,
    default_runtime_name,
    module_runtime_name,
    require_file,
    require_objective,
    why_bare_folder,
)
from placewright.io.json_text import read_json_object
from placewright.io.opened import is_missing, shown_name
from placewright.profiling.units import light_ops_joined
from placewright.session.modules import content_of, module_in_memory, remember_module
from placewright.session.request import OF_TRAINING, Request

_LOG = logging.getLogger(__name__)


def finder(framework: Framework) -> Find:
    """Make a function that finds models as `framework` reads them.

    If `framework` converts programs, a file that only another framework can load is handed over as
    its program.

    Returns:
        A function that raises InputError for a module of another process and UnknownNameError for
        a model that the zoo lacks. It does not check that a file exists; its reader does.
    """

    def find(name: str) -> FoundModel:
        if name.startswith(ZOO_PREFIX):
            return _of_zoo(name)
        if name.startswith(MODULE_PREFIX) and framework.reads_modules:
            return module_in_memory(name)
        path = Path(name)
        suffix = path.suffix.lower()
        if framework.converts_programs and suffix not in framework.suffixes:
            for other in frameworks():
                if isinstance(other, HandsOverPrograms) and suffix in other.suffixes:
                    return other.program_file(path)
        return path

    return find


def require_existing(name: str) -> None:
    """Refuse a model that does not exist, without reading it.

    Raises:
        InputError: there is no such file.
        UnknownNameError: the zoo has no such model or variant.
        MissingExtraError: the zoo model needs a library that is not installed.
    """
    if name.startswith(ZOO_PREFIX):
        _zoo_variant(name)
    elif not name.startswith(MODULE_PREFIX):
        require_file(name)


def _zoo_variant(name: str) -> tuple[str, str]:
    """Split a zoo model's name into the zoo's own name and the variant.

    Raises:
        UnknownNameError: the zoo has no such model or variant.
    """
    from placewright import zoo

    known, _, variant = name.removeprefix(ZOO_PREFIX).partition("/")
    variant = variant or "default"
    if variant not in zoo.variants(known):
        raise UnknownNameError(f"variant of zoo:{known}", variant, zoo.variants(known))
    return known, variant


def _of_zoo(name: str) -> ModelInMemory:
    from placewright import zoo

    known, variant = _zoo_variant(name)

    @cache
    def build(is_training: bool) -> BuiltModule:
        model = zoo.build(known, variant=variant)
        if not is_training:
            return BuiltModule(model.module, model.example_inputs, model.input_names)
        from placewright.zoo.model import training_of

        step = training_of(model)
        return BuiltModule(step.module, step.example_inputs, step.input_names)

    return ModelInMemory(name, str(zoo.ZOO_VERSION), build)


def runtime_named(name: str) -> Runtime:
    """Make the runtime called `name`, which can find its models.

    Raises:
        UnknownNameError: there is none.
        MissingExtraError: its library is not installed.
    """
    return make_runtime(name, finder(framework_named(name)))


Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Model:
    """A model as it was read."""

    graph: ComputationGraph  # the operators
    source: ModelSource | None  # where they came from; None for a graph saved without one
    # if the file carries costs (a saved problem, a Tarnawski workload)
    problem: Problem | None = None
    # of a model that is read and not run, by name
    facts: Mapping[str, int | float | str] = field(default_factory=dict)
    lines: tuple[str, ...] = ()  # the facts as sentences
    works: Works | None = None  # of a language model: makes the work of its modules for a request
    trained_context: int = 0  # of a language model, tokens; 0 if unknown

    @property
    def n_units(self) -> int:
        """Number of units if they are known, else of ops."""
        units = self.units
        return self.graph.n_ops if units is None else units.n_groups

    @cached_property
    def units(self) -> Grouping | None:
        """Units of the model; None if only a compiled model shows what its devices fuse."""
        if self.problem is not None:
            return self.problem.units
        framework = None if self.source is None else framework_of(self.source)
        if framework is None or framework.fuses_ops:
            return None
        return light_ops_joined(self.graph)  # on every device alike


def load_model(
    name: str,
    *,
    objective: Objective = "latency",
    shapes: Shapes | None = None,
    runtime: str | None = None,
) -> Model:
    """Read a model by name.

    Args:
        name: a path, or ``"zoo:NAME"``.
        objective: of the problem, if the file carries costs.
        shapes: input name -> dimensions to fix.
        runtime: whose view of the model is read; ONNX Runtime's ops are the nodes of an ``.onnx``
            file, PyTorch's the calls of an exported program; None is that of
            `runtimes.default_runtime_name`.

    Raises:
        InputError: there is no such file or zoo model, or it cannot be read.
    """
    options = ReadOptions(dict(shapes or {}), is_training=objective == "training")
    return read_model(name, objective, runtime, options)


def read_model(name: str, objective: Objective, runtime: str | None, options: ReadOptions) -> Model:
    """Read a model by name, as `load_model` does, with options of the reader.

    Raises:
        InputError: there is no such file or zoo model, or it cannot be read.
    """
    require_objective(runtime, objective)
    framework = framework_named(runtime or default_runtime_name(objective, name))
    path = Path(name)
    if _is_json(path):
        return _from_json(path, objective)
    if name.startswith(MODULE_PREFIX) and not framework.reads_modules:
        raise FieldError(
            "runtime",
            f"{framework.library} reads no modules in memory: export yours to a file "
            "(torch.export.save) and place that, or leave the runtime out",
        )
    if not name.startswith((ZOO_PREFIX, MODULE_PREFIX)):
        require_file(name)
    if reader := reader_of_file(name):
        read = reader.read(name, options)
        return Model(
            read.graph,
            read.source,
            facts=read.facts,
            lines=read.lines,
            works=read.works,
            trained_context=read.trained_context,
        )
    if options.weights is not None:
        raise FieldError("weights", f"is of a model hf:PATH; '{shown_name(name)}' has its own")
    if runtime is None:
        tell_default_runtime(objective, name)
    return Model(*framework.read(name, finder(framework), options))


def _is_json(path: Path) -> bool:
    """True for a file of a graph, problem, plan or workload."""
    return path.suffix == ".json" and path.exists() and not path.is_dir()


def runnable_source(source: ModelSource, graph: ComputationGraph) -> ModelSource:
    """Give a source a path that a runtime can open: a zoo model becomes its converted file.

    A source that was stored without the order of inputs and outputs gets it from the model.

    Raises:
        StalePlanError: the file is no longer the one that the source was made from.
        InputError: it is missing, cannot be read, has inputs or outputs that are no numbers, or has
            no outputs.
    """
    framework = framework_of(source)
    if framework is None:
        raise InputError(f"no runtime runs model '{source.path}' (its format is '{source.format}')")
    is_file = not source.path.startswith((ZOO_PREFIX, MODULE_PREFIX))
    if is_file and is_missing(Path(path_in(source.path))):
        raise InputError(
            f"model '{shown_name(source.path)}' does not exist; if it has moved, give its path as "
            "argument `model`"
        )
    source = framework.runnable(source, finder(framework))
    found = source if source.signature is not None else _with_signature(source, graph, framework)
    require_numeric_ports(found)
    return found


def _with_signature(
    source: ModelSource, graph: ComputationGraph, framework: Framework
) -> ModelSource:
    """Read a model again for the order of its inputs and outputs, which old files lack.

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


def _from_json(path: Path, objective: Objective) -> Model:
    document = read_json_object(path)
    kind = document.get("format")
    if kind is None and isinstance(document.get("model_type"), str):
        raise InputError(why_bare_folder(str(path)))
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


class ModelOfRequest:
    """The model of a request: read once, and loaded once by each runtime.

    Args:
        request: a module in memory gets a name.
        fold_constants: False reads the raw graph, constants and parameters as ops.

    Attributes:
        request: with the name of a module in memory; with the problem and the runtime of a plan.
    """

    def __init__(self, request: Request, *, fold_constants: bool = True) -> None:
        if isinstance(request.model, Plan):
            plan = request.model
            runtime = request.runtime or plan.runtime
            request = replace(request, model=plan.problem, runtime=runtime)
        if not isinstance(request.model, str | Model | Problem):
            name = remember_module(request.model, request.example_inputs)
            runtime = request.runtime or module_runtime_name()
            request = replace(request, model=name, runtime=runtime)
        self.request = request
        self._fold_constants = fold_constants
        self._loaded: dict[tuple[str, object], LoadedModel] = {}  # by runtime and content

    @cached_property
    def read(self) -> Model:
        """The graph, its source, and the problem if the model carries one.

        Raises:
            InputError: it cannot be read, or a value does not fit its input.
        """
        found, values = self._read(), self.request.values
        self._refuse_reading(found)
        if not values:
            return found
        signature = None if found.source is None else found.source.signature
        if found.problem is not None or found.source is None or signature is None:
            raise FieldError("values", "fixes inputs of a model that is read, not of a problem")
        source = replace(found.source, signature=with_values(signature, values))
        return Model(found.graph, source)

    def _refuse_reading(self, found: Model) -> None:
        """Refuse fields that say how a model is read, if it was read before or has its problem."""
        given, name, has_problem = self.request.model, self.request.name, found.problem is not None
        if not has_problem and isinstance(given, str) and not _is_json(Path(given)):
            return
        why = "carries its problem" if has_problem else "was read before"
        for key in ("shapes", "state", "weights", *OF_TRAINING):
            usual = Request.__dataclass_fields__[key].default
            if getattr(self.request, key) not in (usual, {}, ()):
                raise FieldError(key, f"says how a model is read, but '{name}' {why}; leave it out")
        phases = found.graph.op_phases
        if self.request.objective == "training" and not has_problem and BACKWARD not in phases:
            text = f"training: '{name}' was read for inference; read it for training"
            raise FieldError("objective", text)

    def _read(self) -> Model:
        given = self.request.model
        if isinstance(given, Model):
            return given
        if isinstance(given, Problem):
            return Model(given.graph, given.source, given)
        assert isinstance(given, str)
        request = self.request
        first = request.calls[0].shapes if request.calls else {}
        options = ReadOptions(
            {**request.shapes, **first},
            self._fold_constants,
            request.objective == "training",
            request.optimizer,
            request.colocate_backward,
            request.dropout,
            request.state,
            weights=request.weights,
        )
        return read_model(given, request.reads_for, request.runtime, options)

    def loaded(self, runtime: Runtime | str) -> LoadedModel:
        """The model loaded by a runtime, at the first call.

        Raises:
            InputError: there is no model behind the graph.
            StalePlanError: the model has changed since.
        """
        graph, source = self.read.graph, self.read.source
        if source is None:
            raise InputError("this graph has no model behind it; read the model itself")
        name = runtime if isinstance(runtime, str) else runtime.name
        key = (name, stamp_of(source.path))
        if key not in self._loaded:
            self._loaded = {other: kept for other, kept in self._loaded.items() if other[0] != name}
            chosen = runtime_named(runtime) if isinstance(runtime, str) else runtime
            self._loaded[key] = chosen.load(runnable_source(source, graph), graph)
        return self._loaded[key]

    def loaded_for(self, problem: Problem) -> LoadedModel:
        """The model loaded by the runtime of a problem of this model."""
        return self.loaded(self.request.runtime or default_runtime(problem))

    def loaded_of(self, plan: Plan) -> LoadedModel:
        """The model of a plan, loaded on its own if the plan was made of another model.

        Raises:
            InputError: the plan has no model.
            StalePlanError: the model has changed since.
        """
        own, source = self.read.source, plan.problem.source
        has_moved = own is not None and source is not None and replace(source, path=own.path) == own
        if source is None or has_moved:
            return self.loaded(plan.runtime)
        return loaded_model(plan.problem, plan.runtime)


def loaded_model(problem: Problem, runtime: str | None) -> LoadedModel:
    """Load the model of a problem by a runtime; None is the default one.

    Raises:
        InputError: the problem has no model.
        StalePlanError: the model has changed since.
    """
    source = require_model(problem)
    chosen = runtime_named(runtime or default_runtime(problem))
    return chosen.load(runnable_source(source, problem.graph), problem.graph)


def require_model(problem: Problem) -> ModelSource:
    """The source of a problem's model.

    Raises:
        InputError: the problem has no model.
    """
    if problem.source is None:
        raise InputError("this plan has no model to run; place a model file to get one that has")
    return problem.source


def tell_default_runtime(objective: Objective, model: str) -> None:
    """Log which runtime stands in for one that is not installed, if there is such."""
    chosen, absent = default_choice(objective, model)
    if absent and is_installed(chosen):
        names = " and ".join(framework.name for framework in absent)
        verb = "is" if len(absent) == 1 else "are"
        _LOG.info(
            "runtime %s, since %s %s not installed; argument `runtime` names another",
            *(chosen.name, names, verb),
        )


def stamp_of(name: str) -> object:
    """A value that changes whenever the content of a model may have changed."""
    content = content_of(name)
    return stamp_of_file(Path(name)) if content is None else (str(name), content)

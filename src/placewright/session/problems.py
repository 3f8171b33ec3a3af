"""A user's request to a problem: read the model, find the devices, measure, constrain."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from placewright.core.cluster import Cluster
from placewright.core.deadline import NEVER, Deadline
from placewright.core.execution_models import EVENT, ExecutionModel, MaxLoad
from placewright.core.graph import ComputationGraph
from placewright.core.problem import (
    OBJECTIVES,
    Objective,
    Problem,
    Samples,
    op_named,
)
from placewright.core.resident_inputs import inputs_named
from placewright.core.source import ModelSource
from placewright.errors import InputError, UnknownNameError
from placewright.execution.runtime import Runtime
from placewright.files.model_names import model_of
from placewright.profiling.roofline import roofline_problem
from placewright.session.devices import catalogue_for, cluster_for
from placewright.session.found_models import require_model
from placewright.session.measuring import Extent, Measured, measured
from placewright.session.models import load_model
from placewright.session.parsing import parse_memory, parse_pairs, parse_samples, parse_shapes
from placewright.session.runtimes import (
    compile_options,
    default_runtime_name,
    require_known_runtime,
    require_training_runtime,
    runtime_named,
    runtime_of,
)
from placewright.session.steps import Report, Steps, no_report


@dataclass(frozen=True)
class ProblemRequest:
    """What a user asks for; None leaves a choice to the default.

    Attributes:
        model: a path, or ``"zoo:NAME"``.
        devices: names separated by commas.
        cluster: a cluster file instead.
        runtime: that measures and executes.
        objective: what is minimised.
        execution_model: what a value means.
        memory: device name -> bytes.
        pins: op name -> device name.
        shapes: input name -> dimensions.
        samples_in_flight: whose tensors a device keeps at a time under max-load; 0 counts weights
            only, ``"pipeline"`` one sample for each device. None is 1 for a model that is read and
            what a stored problem or a workload says.
        resident: names of inputs that lie where they are used before a run begins.
        calibrate: measure a few placements to fit overheads and contention.
        optimizer: of a training step.
        colocate_backward: every backward op shares a device with its forward op.
        compiled: segments go through ``torch.compile``; overheads are not calibrated then, since
            every placement would be compiled for it.
        remeasure: what earlier runs measured and calibrated is measured again.
    """

    model: str
    devices: str | None = None
    cluster: Path | None = None
    runtime: str | None = None
    objective: Objective = "latency"
    execution_model: ExecutionModel | None = None
    memory: Mapping[str, float] = field(default_factory=dict)
    pins: Mapping[str, str] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    samples_in_flight: Samples | None = None
    resident: tuple[str, ...] = ()
    calibrate: bool = True
    optimizer: str = "sgd"
    colocate_backward: bool = False
    compiled: bool = False
    remeasure: bool = False

    @classmethod
    def of_texts(
        cls,
        model: str,
        *,
        objective: str | None = None,
        execution_model: str | None = None,
        memory: Iterable[str] | None = None,
        pins: Iterable[str] | None = None,
        shapes: Iterable[str] | None = None,
        samples_in_flight: str | None = None,
        resident: Iterable[str] | None = None,
        **others: Any,
    ) -> ProblemRequest:
        """From the texts of command-line options; what can be checked without work is.

        Raises:
            InputError: a text has the wrong form, or names no objective or execution model.
        """
        return cls(
            model=model,
            objective=checked_objective(objective),
            execution_model=None if execution_model is None else model_of(execution_model),
            memory=parse_memory(memory or ()),
            pins=parse_pairs(pins or (), "--pin", "OP=DEVICE"),
            shapes=parse_shapes(shapes or ()),
            samples_in_flight=parse_samples(samples_in_flight),
            resident=tuple(resident or ()),
            **others,
        )


def checked_objective(name: str | None) -> Objective:
    """``--objective``; None is latency.

    Raises:
        UnknownNameError: there is no such objective.
    """
    if name is not None and name not in OBJECTIVES:
        raise UnknownNameError("objective", name, OBJECTIVES)
    return cast(Objective, name or "latency")


def build_problem(request: ProblemRequest, report: Report = no_report) -> Problem:
    """Read, measure and constrain; see `build`."""
    return build(request, Steps(report)).problem


def build(
    request: ProblemRequest, steps: Steps, deadline: Deadline = NEVER, *, is_quick: bool = False
) -> Measured:
    """Find the devices, read the model, measure, constrain.

    Args:
        request: what the user asks for.
        steps: told what is being done.
        deadline: of everything.
        is_quick: a few rounds, and a stored calibration or none.

    Raises:
        InputError: the model, the devices or a constraint is wrong.
        RuntimeFailure: a device cannot run the model.
        OutOfTime: the deadline passed before each device had run the model once.
    """
    is_measured = _is_measured(request)
    if is_measured:  # a stored problem has an execution model of its own
        _model_asked(request)
    machine = _machine(request, steps) if is_measured else None
    steps.tell("", f"reading {request.model}")
    model = load_model(
        request.model,
        objective=request.objective,
        shapes=request.shapes,
        runtime=request.runtime,
        optimizer=request.optimizer,
        colocate_backward=request.colocate_backward,
    )
    inputs_named(request.resident, model.graph, model.source)  # before any long work
    if model.problem is not None:
        found = Measured(_as_asked(model.problem, request))
    elif model.source is None:
        raise InputError(
            f"'{request.model}' is a graph without costs and without its model; profile the model"
        )
    elif catalogue := catalogue_for(request.devices, request.cluster):
        found = Measured(_of_catalogue(model.graph, model.source, catalogue, request))
    else:
        for op in request.pins:  # before any long work
            op_named(model.graph, op)
        deadline.require("the model was read")
        cluster, runtime = machine or _machine(
            request, steps, runtime_of(model.source, request.objective)
        )
        extent = Extent(
            deadline, is_quick, request.calibrate and not request.compiled, request.remeasure
        )
        found = measured(
            model, cluster, runtime, objective=request.objective, extent=extent, steps=steps
        )
        found = replace(found, problem=_with_model(found.problem, request))
    problem = resident(found.problem, request.resident)
    return replace(found, problem=constrained(problem, request.memory, request.pins))


def resident(problem: Problem, names: Iterable[str]) -> Problem:
    """The problem with further inputs that lie where they are used.

    Raises:
        UnknownNameError: the model has no such input.
        InputError: one is an output, too.
    """
    added = inputs_named(list(names), problem.graph, problem.source)
    kept = tuple(sorted({*problem.resident_inputs, *added}))
    return replace(problem, resident_inputs=kept) if added else problem


def _is_measured(request: ProblemRequest) -> bool:
    """True where the costs can only come from devices of this machine, before anything is read.

    A ``.json`` file may be a problem, which has devices of its own.
    """
    require_model(request.model)
    of_file = Path(request.model).suffix == ".json"
    return not of_file and catalogue_for(request.devices, request.cluster) is None


def _machine(
    request: ProblemRequest, steps: Steps, otherwise: str | None = None
) -> tuple[Cluster, Runtime]:
    """The devices and the runtime; whatever is wrong with them is found before long work.

    Args:
        request: what the user asks for.
        steps: told what is being done.
        otherwise: the runtime where the request names none; None is the objective's.

    Raises:
        MissingExtraError: the runtime is not installed.
        UnknownNameError: there is no such device, also where a limit or a pin names it.
    """
    require_known_runtime(request.runtime)
    require_training_runtime(request.runtime, request.objective)
    name = request.runtime or otherwise or default_runtime_name(request.objective)
    runtime = runtime_named(name)
    steps.tell("", "devices and links")
    cluster = cluster_for(request.devices, request.cluster, runtime.name)
    cluster.require_single_devices("a measurement (--replicate forms groups after it)")
    for device in (*request.memory, *request.pins.values()):
        cluster.device(device)
    return _compiling(cluster, runtime) if request.compiled else cluster, runtime


def constrained(problem: Problem, memory: Mapping[str, float], pins: Mapping[str, str]) -> Problem:
    """The problem with memory limits and pins added.

    Raises:
        UnknownNameError: there is no such device.
        GraphError: there is no such op.
    """
    cluster = problem.cluster
    devices = list(cluster.devices)
    for name, size in memory.items():
        at = cluster.device(name)
        devices[at] = replace(devices[at], memory_bytes=size)
    added = {op_named(problem.graph, op): cluster.device(at) for op, at in pins.items()}
    found = replace(
        problem,
        cluster=replace(cluster, devices=tuple(devices)),
        pins={**problem.pins, **added},
    )
    found.allowed  # noqa: B018 - raises where two pins split a unit
    return found


def _compiling(cluster: Cluster, runtime: Runtime) -> Cluster:
    """The cluster with devices that compile their segments.

    Raises:
        InputError: the runtime has no such option.
    """
    compiling = compile_options(runtime.name)
    devices = tuple(
        runtime.completed(replace(device, options={**device.options, **compiling}, fingerprint=""))
        for device in cluster.devices
    )
    return replace(cluster, devices=devices)


def _of_catalogue(
    graph: ComputationGraph, source: ModelSource, catalogue: Cluster, request: ProblemRequest
) -> Problem:
    _refuse_measuring(request)
    model = request.execution_model
    problem = roofline_problem(
        graph, catalogue, request.objective, execution_model=model, source=source
    )
    return _with_model(problem, request)


def _refuse_measuring(request: ProblemRequest) -> None:
    """Options that say how to measure, where the costs are there already."""
    for option, is_given in (("compile", request.compiled), ("remeasure", request.remeasure)):
        if is_given:
            raise InputError(
                f"--{option} says how '{request.model}' is measured, but its costs come from a "
                f"problem file or the catalogue; leave it out, or name devices of this machine"
            )


def _as_asked(problem: Problem, request: ProblemRequest) -> Problem:
    """A problem that a file carries, under the objective and execution model that were asked."""
    _refuse_measuring(request)
    if request.devices is not None or request.cluster is not None:
        raise InputError(
            f"'{request.model}' carries its own devices and costs; leave out --devices"
        )
    return _with_model(problem, request, samples=None)


def _with_model(problem: Problem, request: ProblemRequest, samples: int | None = 1) -> Problem:
    """Under the execution model that was asked for; `samples` in flight where nothing is said."""
    stored, chosen = problem.execution_model, _model_asked(request, problem.execution_model)
    found = problem if chosen.name == stored.name else replace(problem, execution_model=chosen)
    asked = samples if request.samples_in_flight is None else request.samples_in_flight
    if asked is None or not isinstance(chosen, MaxLoad):
        return found
    return found.with_samples_in_flight(asked)


def _model_asked(request: ProblemRequest, otherwise: ExecutionModel = EVENT) -> ExecutionModel:
    """The execution model that a request means; weights only until samples are counted.

    Raises:
        InputError: it has no samples in flight, but the request has.
    """
    default = MaxLoad(samples_in_flight=0) if request.objective == "throughput" else otherwise
    chosen = request.execution_model or default
    if request.samples_in_flight is not None and not isinstance(chosen, MaxLoad):
        raise InputError(
            f"--samples-in-flight {request.samples_in_flight}: execution model '{chosen.name}' has "
            "no samples in flight; use --objective throughput, or leave it out"
        )
    return chosen

"""A user's request to a problem: read the model, find the devices, measure, constrain."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from placewright.core.cluster import Cluster
from placewright.core.deadline import NEVER, Deadline
from placewright.core.execution_models import EVENT, Event, ExecutionModel, MaxLoad
from placewright.core.graph import ComputationGraph
from placewright.core.op_patterns import by_op
from placewright.core.problem import Objective, Problem
from placewright.core.resident_inputs import inputs_named
from placewright.core.source import ModelSource
from placewright.errors import AnswerError, FieldError, InputError
from placewright.execution.runtime import Runtime
from placewright.files.model_names import model_of
from placewright.files.quantities import format_bytes
from placewright.io.opened import shown_name
from placewright.profiling.roofline import roofline_problem
from placewright.session.devices import catalogue_for, cluster_for
from placewright.session.found_models import require_model
from placewright.session.measuring import Extent, Measured, measured
from placewright.session.reading import ModelOfRequest
from placewright.session.request import Request
from placewright.session.runtimes import (
    compile_options,
    default_runtime_name,
    require_known_runtime,
    require_training_runtime,
    runtime_named,
    runtime_of,
)
from placewright.session.steps import Steps


def build(model: ModelOfRequest, steps: Steps, deadline: Deadline = NEVER) -> Measured:
    """Find the devices, read the model, measure, constrain.

    Args:
        model: of the request.
        steps: told what is being done.
        deadline: of everything.

    Raises:
        InputError: the model, the devices or a constraint is wrong.
        RuntimeFailure: a device cannot run the model.
        OutOfTime: the deadline passed before each device had run the model once.
    """
    request = model.request
    is_measured = _is_measured(request)
    if is_measured:  # a stored problem has an execution model of its own
        _model_asked(request)
    machine = _machine(request, steps) if is_measured else None
    steps.tell("", f"reading {request.name}")
    read = model.read
    inputs_named(request.resident, read.graph, read.source)  # before any long work
    if read.problem is not None:
        found = Measured(_as_asked(read.problem, request))
    elif read.source is None:
        raise InputError(
            f"'{request.name}' is a graph without costs and without its model; profile the model"
        )
    elif catalogue := catalogue_for(request.devices, request.cluster):
        found = Measured(_of_catalogue(read.graph, read.source, catalogue, request))
    else:
        by_op(read.graph, request.pins)  # before any long work
        deadline.require("the model was read")
        cluster, runtime = machine or _machine(
            request, steps, runtime_of(read.source, request.objective)
        )
        found = _measured(model, cluster, runtime, steps, deadline)
    problem = resident(found.problem, request.resident)
    return replace(found, problem=constrained(problem, request.memory, request.pins))


def _measured(
    model: ModelOfRequest, cluster: Cluster, runtime: Runtime, steps: Steps, deadline: Deadline
) -> Measured:
    request = model.request
    _require_memory(model.read.graph)
    extent = Extent(
        deadline,
        request.quick,
        request.calibrate and not request.compiled,
        request.remeasure,
        Deadline(clock=deadline.clock).within(request.profiling),
    )
    found = measured(
        model.read,
        model.loaded(runtime),
        cluster,
        runtime,
        objective=request.objective,
        extent=extent,
        steps=steps,
    )
    return replace(found, problem=_with_model(found.problem, request))


def _require_memory(graph: ComputationGraph) -> None:
    """Refuse a model that cannot run on this machine, before a library tries to.

    Raises:
        AnswerError: one tensor takes more than the memory of the host, which all of them pass.
    """
    largest = int(np.argmax(graph.tensor_bytes))
    size = float(graph.tensor_bytes[largest])
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if size > memory:
        op = int(graph.tensor_producers[largest])
        what = f"the output of op '{shown_name(graph.op_names[op])}'" if op >= 0 else "an input"
        raise AnswerError(
            f"{what} takes {format_bytes(size)}, and this machine has {format_bytes(memory)}: "
            "the model cannot run here"
        )


def resident(problem: Problem, names: Iterable[str]) -> Problem:
    """The problem with further inputs that lie where they are used.

    Raises:
        UnknownNameError: the model has no such input.
        InputError: one is an output, too.
    """
    added = inputs_named(list(names), problem.graph, problem.source)
    kept = tuple(sorted({*problem.resident_inputs, *added}))
    return replace(problem, resident_inputs=kept) if added else problem


def _is_measured(request: Request) -> bool:
    """True where the costs can only come from devices of this machine, before anything is read.

    A ``.json`` file may be a problem, which has devices of its own.
    """
    if not isinstance(request.model, str):
        return False
    require_model(request.model)
    of_file = Path(request.model).suffix == ".json"
    return not of_file and catalogue_for(request.devices, request.cluster) is None


def _machine(
    request: Request, steps: Steps, otherwise: str | None = None
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
    cluster.require_single_devices("a measurement (groups that take turns are formed after it)")
    for device in (*request.memory, *request.pins.values()):
        cluster.device(device)
    return _compiling(cluster, runtime) if request.compiled else cluster, runtime


def constrained(problem: Problem, memory: Mapping[str, float], pins: Mapping[str, str]) -> Problem:
    """The problem with memory limits and pins added.

    Raises:
        UnknownNameError: there is no such device.
        GraphError: there is no such op, or two names of one unit are pinned to different devices.
    """
    cluster = problem.cluster
    devices = list(cluster.devices)
    for name, size in memory.items():
        at = cluster.device(name)
        devices[at] = replace(devices[at], memory_bytes=size)
    said = {op: cluster.device(at) for op, at in by_op(problem.graph, pins).items()}
    unit_of, names = problem.units.group_of, problem.graph.op_names
    of_unit = {int(unit_of[op]): at for op, at in said.items()}
    added = {op: at if names[op] in pins else of_unit[int(unit_of[op])] for op, at in said.items()}
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
    graph: ComputationGraph, source: ModelSource, catalogue: Cluster, request: Request
) -> Problem:
    _refuse_measuring(request)
    problem = roofline_problem(
        graph,
        catalogue,
        request.objective,
        execution_model=_named_model(request),
        source=source,
    )
    return _with_model(problem, request)


def _refuse_measuring(request: Request) -> None:
    """Options that say how to measure, where the costs are there already."""
    for field in ("compiled", "remeasure"):
        if getattr(request, field):
            raise FieldError(
                field,
                f"says how '{request.name}' is measured, but its costs come from a problem or the "
                "catalogue; leave it out, or name devices of this machine",
            )


def _as_asked(problem: Problem, request: Request) -> Problem:
    """A problem that a file carries, under the objective and execution model that were asked."""
    _refuse_measuring(request)
    if request.devices is not None or request.cluster is not None:
        field = "cluster" if request.devices is None else "devices"
        raise FieldError(
            field, f"cannot be chosen: '{request.name}' carries its own devices and costs"
        )
    return _with_model(problem, request, samples=None)


def _with_model(problem: Problem, request: Request, samples: int | None = 1) -> Problem:
    """Under the execution model that was asked for; `samples` in flight where nothing is said."""
    stored, chosen = problem.execution_model, _model_asked(request, problem.execution_model)
    is_stored = chosen.name == stored.name and isinstance(request.execution_model, str | None)
    if is_stored:
        chosen = _dispatching(stored, request)
    found = problem
    if chosen != stored:
        objective = _objective_of(chosen, problem.objective)
        found = replace(problem, execution_model=chosen, objective=objective)
    if found.objective == "throughput" and not isinstance(chosen, MaxLoad):
        raise FieldError(
            "objective",
            f"throughput is valued by execution model max-load, not by '{chosen.name}' of the "
            "problem; give execution model max-load, or a problem of another objective",
        )
    asked = samples if request.samples_in_flight is None else request.samples_in_flight
    if asked is None or not isinstance(chosen, MaxLoad):
        return found
    return found.with_samples_in_flight(asked)


def _objective_of(model: ExecutionModel, stored: Objective) -> Objective:
    """What a problem's objective becomes under another execution model."""
    if isinstance(model, MaxLoad):
        return "throughput" if stored == "latency" else stored
    return "latency" if stored == "throughput" else stored


def _model_asked(request: Request, otherwise: ExecutionModel = EVENT) -> ExecutionModel:
    """The execution model that a request means; weights only until samples are counted.

    Raises:
        InputError: it has no samples in flight, or no dispatch, but the request has.
    """
    default = MaxLoad(samples_in_flight=0) if request.objective == "throughput" else otherwise
    chosen = _named_model(request) or default
    if request.samples_in_flight is not None and not isinstance(chosen, MaxLoad):
        raise FieldError(
            "samples_in_flight",
            f"{request.samples_in_flight}: execution model '{chosen.name}' has no samples in "
            "flight; use objective throughput, or leave it out",
        )
    return _dispatching(chosen, request)


def _dispatching(model: ExecutionModel, request: Request) -> ExecutionModel:
    """The execution model with the rule of dispatch that was asked for, if any."""
    if request.dispatch is None:
        return model
    if not isinstance(model, Event):
        raise FieldError(
            "dispatch",
            f"{request.dispatch}: execution model '{model.name}' dispatches no ops; use execution "
            "model event, or leave it out",
        )
    return replace(model, dispatch=request.dispatch)


def _named_model(request: Request) -> ExecutionModel | None:
    given = request.execution_model
    return model_of(given) if isinstance(given, str) else given

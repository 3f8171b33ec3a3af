"""From a request to a problem: read the model, find the devices, measure, constrain."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from placewright.core.arrays import frozen_floats
from placewright.core.charges import CHARGED, Quantity, check_limits, require_known
from placewright.core.cluster import Cluster
from placewright.core.costs import CostTable
from placewright.core.execution_models import EVENT, Event, ExecutionModel, MaxLoad, Sequential
from placewright.core.graph import ComputationGraph
from placewright.core.grouping import Grouping
from placewright.core.op_patterns import by_op, matching
from placewright.core.problem import Problem, timed_objective
from placewright.core.quantities import format_bytes
from placewright.core.residency import inputs_named
from placewright.core.source import ModelSource, calls_of
from placewright.errors import (
    AnswerError,
    FieldError,
    InfeasibleError,
    InputError,
    PlacewrightError,
)
from placewright.execution.runtime import Runtime
from placewright.execution.state_pairs import asked_of
from placewright.files.model_names import model_of
from placewright.frameworks.registry import reader_of_file
from placewright.frameworks.runtimes import (
    compile_options,
    default_runtime_name,
    refuse_bare_folder,
    require_objective,
    runtime_of,
)
from placewright.io.machine import memory_bytes
from placewright.io.opened import shown_name
from placewright.profiling.catalogue import with_precision
from placewright.profiling.hardware import NEVER, Deadline
from placewright.profiling.profile import UnitTimes, last_measured, model_identity
from placewright.profiling.roofline import roofline_problem, sheet_lines
from placewright.profiling.store import CostStore
from placewright.profiling.units import with_granularity
from placewright.report.time_left import Steps
from placewright.session.call_mix import mixed, refuse_calls, refuse_one_shape
from placewright.session.devices import catalogue_for, cluster_for
from placewright.session.export import require_names, require_source
from placewright.session.language.problem import (
    cluster_of_request,
    is_of_tokens,
    language_problem,
    refuse_changes,
    refuse_tokens,
)
from placewright.session.measuring import Extent, Measured, measure_model
from placewright.session.models import (
    Model,
    ModelOfRequest,
    require_existing,
    runtime_named,
)
from placewright.session.request import Request
from placewright.simulation.bounds.feasibility import prove_infeasible

_log = logging.getLogger(__name__)


def build(model: ModelOfRequest, steps: Steps, deadline: Deadline = NEVER) -> Measured:
    """Make the problem of a request: find the devices, read the model, measure, constrain.

    Args:
        deadline: of everything.

    Raises:
        InputError: the model, the devices or a constraint is wrong.
        RuntimeFailure: a device cannot run the model.
        OutOfTime: the deadline passed before each device had run the model once.
    """
    request = model.request
    is_measured = _is_measured(request)
    _refuse_before_reading(request, is_measured=is_measured)
    machine = _machine(request, steps) if is_measured else None
    if machine is not None:
        require_names(machine[0], request.target)
    steps.tell("", f"reading {request.name}")
    read = model.read
    if read.works is not None:
        return Measured(constrained(language_problem(read, request), {}, request.pins))
    refuse_tokens(request)
    require_source(read.source, request.target)
    inputs_named(request.resident, read.graph, read.source)  # before any long work
    if read.problem is not None:
        _refuse_mean_of_calls(read.problem, request)
        measured = Measured(_as_asked(read.problem, request))
        if is_of_tokens(read.problem):
            return Measured(constrained(read.problem, {}, request.pins))
    elif read.source is None:
        raise InputError(
            f"'{request.name}' is a graph without costs and without its model; profile the model"
        )
    elif catalogue := catalogue_for(request.devices, request.cluster):
        measured = Measured(_of_catalogue(read.graph, read.source, catalogue, request))
    else:
        by_op(read.graph, request.pins)  # before any long work
        deadline.require("the model was read")
        cluster, runtime = machine or _machine(
            request, steps, runtime_of(read.source, request.reads_for)
        )
        _refuse_what_cannot_fit(read, cluster, request)
        limit = Deadline(clock=deadline.clock).within(request.profiling)  # of all calls together
        calibrate = request.calibrate and not request.compiled
        n_parts = len(request.calls) + calibrate if request.calls else 1  # the last calibrates
        parts = iter(range(n_parts, 0, -1))

        def measure(of: ModelOfRequest, units: Grouping | None, *, calibrate: bool) -> Measured:
            own = limit.part(1.0 / next(parts))
            extent = Extent(deadline, request.quick, calibrate, request.remeasure, own)
            return _measure(of, cluster, runtime, steps, extent, units)

        if request.calls:
            measured = mixed(model, measure, calibrate=calibrate)
        else:
            measured = measure(model, None, calibrate=calibrate)
    require_names(measured.problem.cluster, request.target)
    problem = with_granularity(measured.problem, _granularity(request))
    problem = resident(problem, request.resident)
    problem = constrained(problem, request.memory, request.pins)
    return replace(measured, problem=_charged(problem, request))


def _refuse_mean_of_calls(problem: Problem, request: Request) -> None:
    """Refuse costs that are the mean of several calls: no bound of theirs, and no shape to run."""
    if calls_of(problem.source):
        raise InputError(
            f"'{request.name}' holds the mean costs of several calls; place the model itself, with "
            "argument `calls`, so that each of them is predicted, bounded and checked"
        )


def _granularity(request: Request) -> str:
    """The size of units: at least modules, if the target can express no others."""
    is_of_modules = request.target == "device-map" and request.granularity == "op"
    return "module" if is_of_modules else request.granularity


def _charged(problem: Problem, request: Request) -> Problem:
    """Give a problem the limits of a request, and energy or price as its objective."""
    objective = request.objective if request.objective in CHARGED else problem.objective
    limits = {**problem.limits, **request.limits}
    if "latency" in request.limits and problem.time_unit != "s":
        raise FieldError(
            "limits", f"of latency is in seconds, and these costs are in {problem.time_unit}"
        )
    if objective == problem.objective and limits == problem.limits:
        return problem
    return replace(problem, objective=objective, limits=limits)


def _measure(
    model: ModelOfRequest,
    cluster: Cluster,
    runtime: Runtime,
    steps: Steps,
    extent: Extent,
    units: Grouping | None,
) -> Measured:
    request = model.request
    _require_memory(model.read.graph)
    loaded = model.loaded(runtime)
    if request.objective == "throughput" and loaded.keeps_state:
        raise _fault_of_state(request)
    whole = measure_model(
        model.read,
        loaded,
        cluster,
        runtime,
        objective=request.reads_for,
        extent=extent,
        steps=steps,
        units=units,
    )
    return replace(whole, problem=_with_model(whole.problem, request))


def _fault_of_state(request: Request) -> FieldError:
    """The refusal of streams of a model that keeps state."""
    return FieldError(
        "objective",
        f"throughput: '{request.name}' keeps state from call to call, so that a call waits for "
        "the one before; use latency",
    )


def _require_memory(graph: ComputationGraph) -> None:
    """Refuse a model with a tensor that is larger than the memory of this machine.

    Raises:
        AnswerError: one tensor is larger; all tensors pass the memory of the host.
    """
    largest = int(np.argmax(graph.tensor_bytes))
    size = float(graph.tensor_bytes[largest])
    memory = memory_bytes()
    if size > memory:
        op = int(graph.tensor_producers[largest])
        what = f"the output of op '{shown_name(graph.op_names[op])}'" if op >= 0 else "an input"
        raise AnswerError(
            f"{what} takes {format_bytes(size)}, and this machine has {format_bytes(memory)}: "
            "the model cannot run here"
        )


def _refuse_what_cannot_fit(read: Model, cluster: Cluster, request: Request) -> None:
    """Refuse a model that fits nowhere whatever its ops take, before minutes of measuring.

    Ops that take no time need no memory for inputs and outputs in any proof, and each may run
    anywhere, so that a proof also holds for the measured problem, whose units are larger. Published
    execution models count other bytes and need no links, so that nothing is refused there.

    Raises:
        InfeasibleError: weights, pins and memory leave no placement.
    """
    if not isinstance(_model_asked(request), Event | MaxLoad | Sequential):
        return
    graph = read.graph
    costs = CostTable(frozen_floats(np.zeros((graph.n_ops, cluster.n_devices))))
    problem = Problem.of_ops(graph, cluster, costs)
    kept = inputs_named(request.resident, graph, read.source)
    problem = replace(problem, resident_inputs=kept)
    proof = prove_infeasible(constrained(problem, request.memory, request.pins))
    if proof is not None:
        raise InfeasibleError(f"no placement is possible: {proof} (nothing was measured)")


def resident(problem: Problem, names: Iterable[str]) -> Problem:
    """Add resident inputs to a problem.

    Raises:
        UnknownNameError: the model has no such input.
        InputError: one is an output, too.
    """
    added = inputs_named(list(names), problem.graph, problem.source)
    kept = tuple(sorted({*problem.resident_inputs, *added}))
    return replace(problem, resident_inputs=kept) if added else problem


def _refuse_before_reading(request: Request, *, is_measured: bool) -> None:
    """Refuse what is wrong with a request, whatever its model holds.

    Args:
        is_measured: see `_is_measured`.

    Raises:
        InputError: the message names the field.
    """
    if isinstance(request.model, str):
        refuse_bare_folder(request.model)
    is_language = _is_language(request)
    is_sheet = is_language or (not is_measured and _has_data_sheets(request))
    if request.precision is not None and not is_sheet:
        raise FieldError(
            "precision",
            f"{request.precision}: says in which precision devices of the catalogue compute; name "
            "such devices, or give devices of this machine an option of their runtime in a cluster "
            "file",
        )
    if is_measured:  # a stored problem has an execution model of its own
        _model_asked(request)
    refuse_calls(request, is_measured=is_measured)
    if is_language:  # whose reading is the slower step
        assert isinstance(request.model, str)
        require_existing(request.model)
        cluster_of_request(request)


def _is_language(request: Request) -> bool:
    """True if the model is a file of a reader of language models."""
    given = request.model
    return isinstance(given, str) and reader_of_file(given) is not None


def _is_measured(request: Request) -> bool:
    """True if the costs can only come from devices of this machine; nothing is read for that.

    A ``.json`` file may be a problem, which has devices of its own.
    """
    if not isinstance(request.model, str) or _is_language(request):
        return False
    require_existing(request.model)
    of_file = Path(request.model).suffix == ".json"
    return not of_file and not _has_data_sheets(request)


def _has_data_sheets(request: Request) -> bool:
    return catalogue_for(request.devices, request.cluster) is not None


def _machine(
    request: Request, steps: Steps, otherwise: str | None = None
) -> tuple[Cluster, Runtime]:
    """Find the devices and the runtime of a request, before any long work.

    Args:
        otherwise: the runtime if the request names none; None is the objective's.

    Raises:
        MissingExtraError: the runtime is not installed.
        UnknownNameError: there is no such device, also where a limit or a pin names it.
        InputError: the devices lack what the objective or a limit counts, or the execution model
            does not count what is limited.
    """
    require_objective(request.runtime, request.reads_for)
    model = request.model if isinstance(request.model, str) else ""
    name = request.runtime or otherwise or default_runtime_name(request.reads_for, model)
    runtime = runtime_named(name)
    refuse_one_shape(request, runtime)
    steps.tell("", "devices and links")
    cluster = cluster_for(request.devices, request.cluster, runtime.name)
    cluster.require_single_devices("a measurement (groups that take turns are formed after it)")
    for name in request.memory:
        cluster.with_limit(name, math.inf)
    for device in request.pins.values():
        cluster.device(device)
    for quantity in (*request.limits, request.objective or "latency"):
        require_known(cluster, quantity)
    model_asked = _model_asked(request)
    check_limits(request.limits, is_load=isinstance(model_asked, MaxLoad))
    if not isinstance(model_asked, Event):
        cluster.require_no_segment_limits(f"execution model '{model_asked.name}'")
    return _compiling(cluster, runtime) if request.compiled else cluster, runtime


def require_counted(request: Request, quantity: Quantity) -> None:
    """Refuse a quantity that the devices of this machine lack, before anything is measured.

    Raises:
        FieldError: a device lacks its power or its price.
    """
    if _is_measured(request):
        _machine(replace(request, objective=quantity), Steps())


def constrained(problem: Problem, memory: Mapping[str, float], pins: Mapping[str, str]) -> Problem:
    """Add memory limits of devices and pools, and pins, to a problem.

    Raises:
        UnknownNameError: there is no such device or pool.
        GraphError: there is no such op, or two names of one unit are pinned to different devices.
    """
    cluster = problem.cluster
    for name, size in memory.items():
        cluster = cluster.with_limit(name, size)
    said = {op: cluster.device(at) for op, at in by_op(problem.graph, pins).items()}
    unit_of, names = problem.units.group_of, problem.graph.op_names
    of_unit = {int(unit_of[op]): at for op, at in said.items()}
    added = {op: at if names[op] in pins else of_unit[int(unit_of[op])] for op, at in said.items()}
    changed = replace(
        problem,
        cluster=cluster,
        pins={**problem.pins, **added},
    )
    changed.allowed  # noqa: B018 - raises where two pins split a unit
    return changed


def _compiling(cluster: Cluster, runtime: Runtime) -> Cluster:
    """Let the devices of a cluster compile their segments.

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
    computing = with_precision(catalogue, request.precision)
    for line in sheet_lines(graph, computing, request.precision):
        _log.info(line)
    problem = roofline_problem(
        graph,
        computing,
        request.reads_for,
        execution_model=_named_model(request),
        source=source,
    )
    return _with_model(problem, request)


def _refuse_measuring(request: Request) -> None:
    """Refuse options of measuring for a problem that has its costs already."""
    for field in ("compiled", "remeasure"):
        if getattr(request, field):
            raise FieldError(
                field,
                f"says how '{request.name}' is measured, but its costs come from a problem or the "
                "catalogue; leave it out, or name devices of this machine",
            )


def _as_asked(problem: Problem, request: Request) -> Problem:
    """Give a stored problem the objective and execution model of a request."""
    _refuse_measuring(request)
    asked = request.objective or problem.objective
    if asked != problem.objective and "training" in (asked, problem.objective):
        raise FieldError(
            "objective",
            f"{asked}: '{request.name}' carries a problem of {problem.objective}; give the model "
            "itself",
        )
    if request.devices is not None or request.cluster is not None:
        field = "cluster" if request.devices is None else "devices"
        raise FieldError(
            field, f"cannot be chosen: '{request.name}' carries its own devices and costs"
        )
    if is_of_tokens(problem):
        refuse_changes(request)
    if request.objective is not None and problem.objective in CHARGED:
        problem = replace(problem, objective=timed_objective(problem.objective))
    changed = _with_model(problem, request, samples=None)
    if changed.objective == "throughput" and changed.source and asked_of(changed.source.options):
        raise _fault_of_state(request)
    return changed


def _with_model(problem: Problem, request: Request, samples: int | None = 1) -> Problem:
    """Give a problem the execution model of a request; `samples` in flight is the default."""
    stored, chosen = problem.execution_model, _model_asked(request, problem.execution_model)
    is_stored = chosen.name == stored.name and isinstance(request.execution_model, str | None)
    if is_stored:
        chosen = _dispatching(stored, request)
    changed = problem if chosen == stored else problem.under(chosen)
    asked = samples if request.samples_in_flight is None else request.samples_in_flight
    if asked is None or not isinstance(chosen, MaxLoad):
        return changed
    return changed.with_samples_in_flight(asked)


def _model_asked(request: Request, otherwise: ExecutionModel = EVENT) -> ExecutionModel:
    """The execution model of a request; max-load counts weights only until samples are given.

    Raises:
        InputError: it has no samples in flight, or no dispatch, but the request has.
    """
    default = otherwise
    if request.objective == "throughput":
        default = MaxLoad(samples_in_flight=0)
    elif request.objective not in (None, "training") and isinstance(otherwise, MaxLoad):
        default = EVENT  # max-load has no value of latency, energy or price
    chosen = _named_model(request) or default
    if request.samples_in_flight is not None and not isinstance(chosen, MaxLoad):
        raise FieldError(
            "samples_in_flight",
            f"{request.samples_in_flight}: execution model '{chosen.name}' has no samples in "
            "flight; use objective throughput, or leave it out",
        )
    return _dispatching(chosen, request)


def _dispatching(model: ExecutionModel, request: Request) -> ExecutionModel:
    """Give an execution model the dispatch rule of a request, if it has one."""
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


@dataclass(frozen=True)
class ListedOp:
    """One op of a listing."""

    # name, kind: of the op
    name: str
    kind: str
    unit: int | None  # the number of its unit; None if units are not known
    # flops, weight_bytes: of the op
    flops: float
    weight_bytes: float
    shapes: tuple[tuple[int, ...], ...]  # of its outputs
    # of its whole unit on each device, in the unit of time of the model's problem; None if a device
    # cannot run it
    seconds: dict[str, float | None]


@dataclass(frozen=True)
class OpListing:
    """Ops of a model: the slowest first if they were measured, else in the model's order."""

    ops: tuple[ListedOp, ...]  # that fit the pattern
    devices: tuple[str, ...]  # whose seconds are known
    time_unit: str = "s"  # of the seconds

    def data(self) -> dict[str, Any]:
        """The listing as a JSON document."""
        return {
            "unit": self.time_unit,
            "devices": list(self.devices),
            "ops": [{**vars(op), "shapes": [list(shape) for shape in op.shapes]}
                    for op in self.ops],
        }  # fmt: skip


def listed_ops(model: Model, pattern: str) -> OpListing:
    """List the ops that fit a pattern.

    Seconds are those of the problem, or of the latest measurement of the model on devices of this
    machine, without options of their own.
    The slowest are those on the device that runs the whole model fastest.

    Args:
        pattern: a name, or one with ``*``, ``?`` and ``[...]``.

    Raises:
        GraphError: no op fits it; the message lists near names.
    """
    graph, problem = model.graph, model.problem
    chosen = matching(graph, pattern)
    times = UnitTimes.of(problem) if problem is not None else _kept(model)
    seconds = None if times is None else times.seconds[times.units.group_of]  # (ops, devices)
    if times is not None and seconds is not None:
        finite = np.where(np.isfinite(times.seconds), times.seconds, 0.0)
        runs_all = np.isfinite(times.seconds).all(axis=0)
        total = np.where(runs_all, finite.sum(axis=0), np.inf)
        fastest = int(np.argmin(total))
        slow = np.where(np.isfinite(seconds[:, fastest]), seconds[:, fastest], np.inf)
        chosen = sorted(chosen, key=lambda op: (-slow[op], int(times.units.group_of[op]), op))
    devices = () if times is None else times.devices
    weights = graph.op_weight_bytes
    return OpListing(
        tuple(
            ListedOp(
                graph.op_names[op],
                graph.op_kinds[op],
                None if times is None else int(times.units.group_of[op]),
                float(graph.op_flops[op]),
                float(weights[op]),
                tuple(graph.tensor_shapes[tensor] for tensor in graph.op_outputs.row(op)),
                {}
                if seconds is None
                else {
                    name: float(value) if np.isfinite(value) else None
                    for name, value in zip(devices, seconds[op], strict=True)
                },
            )
            for op in chosen
        ),
        devices,
        "s" if problem is None else problem.time_unit,
    )


def _kept(model: Model) -> UnitTimes | None:
    """Seconds of the latest measurement, on devices that this machine has with their options."""
    graph, source = model.graph, model.source
    if source is None:
        return None
    times = last_measured(CostStore(), model_identity(graph, source), graph.n_ops)
    if times is None:
        return None
    try:
        found = runtime_named(runtime_of(source)).discover()
    except (PlacewrightError, RuntimeError) as error:  # a listing needs no runtime
        _log.debug("no devices are found: %s", error)
        return None
    known = times.on({device.name: device.fingerprint for device in found})
    left = [name for name in times.devices if known is None or name not in known.devices]
    if left:
        _log.info("seconds are left out of devices not found here: %s", ", ".join(left))
    return known

"""One placement for calls of several shapes: mean problem, check per shape, loaded plans."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from placewright.core.arrays import FloatArray, frozen_floats
from placewright.core.cluster import Cluster
from placewright.core.costs import CostTable
from placewright.core.graph import ComputationGraph
from placewright.core.grouping import Grouping
from placewright.core.placement import Placement
from placewright.core.plan import Plan
from placewright.core.problem import Problem
from placewright.core.quantities import value_text
from placewright.core.source import Call, calls_of, calls_option
from placewright.errors import FieldError, InfeasibleError, InputError, MismatchError
from placewright.execution.comparing import compare_outputs
from placewright.execution.inputs import GivenInputs, flattened, given_inputs, with_values
from placewright.execution.placements import LoadsBeside
from placewright.execution.requests import numbered, request_numbers
from placewright.execution.runtime import HostArray, LoadedModel, Runtime
from placewright.frameworks.registry import framework_of
from placewright.io.opened import shown_name
from placewright.profiling.hardware import NEVER, Deadline
from placewright.report.stream_text import random_lines
from placewright.session.loaded.plans import LoadedPlan, TensorInfo, Turns
from placewright.session.measuring import Measured
from placewright.session.models import (
    ModelOfRequest,
    finder,
    loaded_model,
    require_model,
    runtime_named,
)
from placewright.session.request import Request
from placewright.session.running import limited
from placewright.simulation.bounds.lower import lower_bound
from placewright.simulation.evaluator import CLOSED
from placewright.simulation.model import Simulator

_log = logging.getLogger(__name__)
_BOUND_SECONDS = 5.0  # of the relaxation of each call, at most
UNMEASURED = "check on the hardware: calls of several shapes were not measured beside simpler ways"
_SAME = 0.01  # relative difference of two values that is not worth a clause


class Measure(Protocol):
    """Measures a model whose units are given, or formed from its ops if `units` is None."""

    def __call__(
        self, model: ModelOfRequest, /, units: Grouping | None, *, calibrate: bool
    ) -> Measured:
        """The measured problem."""
        ...


def refuse_calls(request: Request, *, is_measured: bool) -> None:
    """Refuse a mix of calls that cannot be placed, before any long work.

    Raises:
        FieldError: it contradicts another field, or needs devices of this machine.
    """
    if not request.calls:
        return
    if not (is_measured and isinstance(request.model, str)):
        raise FieldError(
            "calls",
            "are read and measured one by one: give a module or a file, and devices of this "
            "machine; a stored problem or a catalogue has one shape",
        )
    if request.objective not in (None, "latency"):
        raise FieldError(
            "calls", f"follow each other: objective is latency, not {request.objective}"
        )
    if request.limits:
        raise FieldError("limits", "is of one sample, and calls of several shapes differ")
    if request.evaluator != "simulated":
        raise FieldError("calls", "have a mean that is simulated: leave out argument `evaluator`")


def refuse_one_shape(request: Request, runtime: Runtime) -> None:
    """Refuse calls for a runtime that could not run their plan.

    Raises:
        FieldError: the runtime loads one shape of a model.
    """
    if request.calls and not isinstance(runtime, LoadsBeside):
        raise FieldError(
            "calls",
            f"need a runtime that loads several shapes of a model, and '{runtime.name}' loads one; "
            "argument `runtime` torch does, for a module or a .pt2 file",
        )


def mixed(model: ModelOfRequest, measure: Measure, *, calibrate: bool) -> Measured:
    """Measure a model with the shapes of each call, and make the problem of the mean call.

    Units are those of the first call. Costs are means over all calls by their times. A tensor has
    the bytes of its largest shape, since they must fit; links and cuts are that much quicker, so
    that they take their mean over all tensors. Overheads are calibrated with the shape that takes
    most of the time.

    Args:
        model: of a request with calls.
        measure: measures one shape.
        calibrate: fit overheads.

    Raises:
        FieldError: two calls have one shape, the model runs other ops with one of them, or a state
            has several shapes.
    """
    calls = model.request.calls
    models = [model, *(_with_shapes(model, call) for call in calls[1:])]
    graphs = [model.read.graph for model in models]
    for call, graph in zip(calls[1:], graphs[1:], strict=True):
        _require_same_ops(graphs[0], graph, call)
    stored = _complete(calls, [_shapes_of(model) for model in models])
    _require_one_state(model, stored)
    found = [measure(models[0], None, calibrate=False)]
    units = found[0].problem.units
    found += [measure(model, units, calibrate=False) for model in models[1:]]
    shares = np.array([call.times for call in calls]) / sum(call.times for call in calls)
    longest = int(np.argmax([s * _seconds(f.problem) for s, f in zip(shares, found, strict=True)]))
    if calibrate:
        found[longest] = measure(models[longest], units, calibrate=True)
    left_out = [text for measured in found for text in measured.left_out]
    cluster = found[longest].problem.cluster
    parts = tuple(replace(measured.problem, cluster=cluster) for measured in found)
    mean = _mean(parts, shares)
    assert mean.source is not None
    options = {**mean.source.options, **calls_option(stored)}
    problem = replace(mean, source=replace(mean.source, options=options))
    # Each call is compared, which takes no longer than its check on the hardware would.
    check_seconds = sum(measured.check_seconds for measured in found)
    return Measured(problem, tuple(dict.fromkeys(left_out)), check_seconds, parts)


def _shapes_of(model: ModelOfRequest) -> dict[str, tuple[int, ...]]:
    """Shapes of all inputs of a model that was read."""
    source = model.read.source
    assert source is not None
    return dict(source.shapes)


def _with_shapes(model: ModelOfRequest, call: Call) -> ModelOfRequest:
    request = model.request
    return ModelOfRequest(replace(request, calls=(), shapes={**request.shapes, **call.shapes}))


def _complete(
    calls: Sequence[Call], shapes: Sequence[dict[str, tuple[int, ...]]]
) -> tuple[Call, ...]:
    """The calls with the shapes of all inputs that differ between them.

    Raises:
        FieldError: two calls have one shape.
    """
    varying = [name for name in shapes[0] if len({row[name] for row in shapes}) > 1]
    rows = [tuple(row[name] for name in varying) for row in shapes]
    for at, row in enumerate(rows):
        if row in rows[:at]:
            raise FieldError(
                "calls",
                f"{rows.index(row) + 1} and {at + 1} have the same shapes; add up their times, or "
                "give a shape that differs",
            )
    return tuple(
        Call(call.times, dict(zip(varying, row, strict=True)))
        for call, row in zip(calls, rows, strict=True)
    )


def _require_one_state(model: ModelOfRequest, calls: Sequence[Call]) -> None:
    """Refuse state that stays if it has other shapes in other calls.

    Args:
        calls: with the shapes of all inputs that differ between them.

    Raises:
        FieldError: the message names the state.
    """
    source = model.read.source
    if not model.request.state or source is None or source.signature is None:
        return
    given = {name for port in source.signature.inputs for name in port.names}
    for name in calls[0].shapes:
        if name not in given:  # inputs that stay are given in no call
            raise FieldError(
                "calls",
                f"give state '{name}' several shapes, but all calls share one state; give it one "
                "shape, which the calls leave out",
            )


def _require_same_ops(first: ComputationGraph, other: ComputationGraph, call: Call) -> None:
    """Refuse a model that runs other ops with other shapes.

    Raises:
        FieldError: the message names the first op that differs.
    """
    fault = ""
    if first.op_names != other.op_names:
        mine, known = set(other.op_names), set(first.op_names)
        apart = [name for name in first.op_names if name not in mine]
        apart += [name for name in other.op_names if name not in known]
        fault = f"op '{shown_name((apart or ['?'])[0])}' runs with some of the shapes only"
    else:
        rows = ("op_inputs", "op_outputs", "op_weights")
        same = all(
            np.array_equal(getattr(getattr(first, row), part), getattr(getattr(other, row), part))
            for row in rows
            for part in ("indptr", "indices")
        )
        if not same or first.op_kinds != other.op_kinds:
            fault = "its ops are connected in another way"
        elif not np.array_equal(first.op_colocation, other.op_colocation):
            fault = "other ops share a device"
    if fault:
        raise FieldError(
            "calls",
            f"{call}: {fault}; one placement needs the same ops for all shapes, so that the "
            "model's code must not branch on them",
        )


def _seconds(problem: Problem) -> float:
    """Seconds of all units, each on its fastest device."""
    return float(problem.costs.seconds.min(axis=1).sum())


def _mean(parts: Sequence[Problem], shares: FloatArray) -> Problem:
    """The problem of the mean call."""
    first = parts[0]
    tensors = np.stack([part.graph.tensor_bytes for part in parts])
    most = tensors.max(axis=0)
    part = float((shares @ tensors).sum() / most.sum()) if most.any() else 1.0
    weights = np.stack([part.graph.weight_bytes for part in parts])
    # A constant with another size in each shape is another constant.
    sizes = np.where((weights == weights[0]).all(axis=0), weights[0], weights.sum(axis=0))
    graph = replace(
        first.graph,
        tensor_bytes=frozen_floats(most),
        weight_bytes=frozen_floats(sizes),
        op_flops=frozen_floats(shares @ np.stack([part.graph.op_flops for part in parts])),
    )
    seconds = sum(s * part.costs.seconds for s, part in zip(shares, parts, strict=True))
    working = [part.op_working_bytes for part in parts if part.op_working_bytes is not None]
    return replace(
        first,
        graph=graph,
        cluster=_slower(first.cluster, part),
        costs=CostTable(frozen_floats(np.asarray(seconds)), first.costs.source),
        op_working_bytes=frozen_floats(np.max(working, axis=0)) if working else None,
    )


def _slower(cluster: Cluster, part: float) -> Cluster:
    """Scale a cluster's costs per byte, as if only a part of each tensor crossed."""
    links = tuple(replace(link, bandwidth=link.bandwidth / part) for link in cluster.links)
    devices = tuple(
        replace(
            device,
            cut_seconds_per_byte=part * device.cut_seconds_per_byte,
            layout_seconds_per_byte=part * device.layout_seconds_per_byte,
        )
        for device in cluster.devices
    )
    return replace(cluster, links=links, devices=devices)


def _part_of(mean: Problem, part: Problem) -> Problem:
    """The problem of one call, with the units, limits and pins of the mean call's."""
    ops = part.units.members.indices[part.units.members.indptr[:-1]]  # one of each unit
    seconds = np.zeros(mean.costs.seconds.shape)
    np.add.at(seconds, mean.units.group_of[ops], part.costs.seconds)
    limits = {device.name: device.memory_bytes for device in mean.cluster.devices}
    devices = tuple(
        replace(device, memory_bytes=limits[device.name]) for device in part.cluster.devices
    )
    return replace(
        mean,
        graph=replace(part.graph, op_colocation=mean.graph.op_colocation),
        source=part.source,
        cluster=replace(mean.cluster, devices=devices, links=part.cluster.links),
        costs=CostTable(frozen_floats(seconds), part.costs.source),
        op_working_bytes=part.op_working_bytes,
    )


def checked_calls(
    plan: Plan,
    parts: Sequence[Problem],
    model: ModelOfRequest,
    *,
    compares: bool,
    deadline: Deadline = NEVER,
) -> Plan:
    """Check a placement with each shape: limits, and outputs against the unsplit model's.

    Bound and status become those of the calls themselves, which the mean call only approximates.

    Args:
        plan: of the mean call.
        parts: problems of the single calls.
        compares: run the model, and compare its outputs.
        deadline: no comparison begins after it, and bounds get what is left.

    Raises:
        InfeasibleError: a call breaks a limit.
        MismatchError: outputs differ from the unsplit model's.
    """
    calls = calls_of(plan.problem.source)
    owns = [_part_of(plan.problem, part) for part in parts]
    ordered, random = _ordered(plan.placement, Simulator(plan.problem)), dict[str, None]()
    late = list[str]()
    for at, (call, own) in enumerate(zip(calls, owns, strict=True)):
        violation = Simulator(own).violation(ordered)
        if violation is not None:
            raise InfeasibleError(f"the placement does not fit {call}: {violation.message}")
        if not compares:
            continue
        if deadline.is_over:
            late.append(str(call))
            continue
        loaded = (model if at == 0 else _with_shapes(model, call)).loaded(plan.runtime)
        with limited(plan):
            comparison = compare_outputs(own, plan.placement, loaded)
        if not comparison.equal:
            raise MismatchError(
                f"outputs of {call} differ from the unsplit model: {comparison.text}; the plan was "
                "not written"
            )
        random |= dict.fromkeys(comparison.random)
    seconds = min(_BOUND_SECONDS, deadline.seconds_left / len(calls))
    checked = proven_of_calls(plan, owns, [call.times for call in calls], seconds)
    clause = UNMEASURED if compares else f"{UNMEASURED}, nor were outputs compared"
    if late:
        clause += f"; the total ended before outputs of {', '.join(late)} were compared"
    return replace(checked, left_out=(*checked.left_out, clause, *random_lines(list(random))))


def unproven_of_calls(plan: Plan, parts: Sequence[Problem]) -> Plan | None:
    """The plan of a search that was cut short, without the bound of the mean call.

    Returns:
        None if a call breaks a limit; a plan without calls as it is.
    """
    if not parts:
        return plan
    ordered = _ordered(plan.placement, Simulator(plan.problem))
    owns = [_part_of(plan.problem, part) for part in parts]
    if any(Simulator(own).violation(ordered) is not None for own in owns):
        return None
    history = tuple(replace(point, lower_bound=None) for point in plan.placer.history)
    placer = replace(plan.placer, history=history)
    return replace(plan, placer=placer, status="feasible", lower_bound=0.0, bound_method="")


def proven_of_calls(
    plan: Plan,
    owns: Sequence[Problem],
    times: Sequence[float],
    seconds: float = _BOUND_SECONDS,
) -> Plan:
    """The plan with the bound and status of the calls themselves; the log gives their values.

    The plan's value is the mean call's. It differs from the mean of the calls' values, because one
    share stands for the bytes of all tensors, and each call has a critical path of its own.
    A bound of the mean call is therefore no bound of the calls. The weighted sum of their own
    bounds is, and the gap here is that of the larger of both values.

    Args:
        plan: of the mean call.
        owns: the problem of each call, with the plan's units.
        times: how often each call is made.
        seconds: of the relaxation of each call, at most.
    """
    shares = np.array(times) / sum(times)
    bound = float(shares @ [lower_bound(own, seconds).value for own in owns])
    scale, left_out = 1.0, plan.left_out
    placements = [plan.placement, *([plan.searched.placement] if plan.searched else [])]
    simulated = Simulator(plan.problem)
    for placement in placements:
        values = [Simulator(own).value(_ordered(placement, simulated)) for own in owns]
        mean, exact = simulated.value(placement), float(shares @ values)
        if not math.isfinite(exact):
            scale = 0.0  # nothing is proven of a call that cannot be made
        elif exact > 0:
            scale = min(scale, mean / exact)
        *texts, own, other = (
            value_text(value, plan.problem.time_unit) for value in (*values, exact, mean)
        )
        _log.info("calls predicted %s, %s on average", ", ".join(texts), own)
        if placement is plan.placement and abs(exact - mean) > _SAME * mean:
            clause = f"the calls' own values: their mean is {own}, and the mean call takes {other}"
            left_out = (*left_out, clause)
    is_closed = plan.value <= scale * bound * (1.0 + CLOSED)
    return replace(
        plan,
        lower_bound=min(scale * bound, plan.value),
        status="optimal" if is_closed else "feasible",
        bound_method="bounds of each call",
        left_out=left_out,
    )


def _ordered(placement: Placement, simulated: Simulator) -> Placement:
    """The placement with the order in which every call runs, which is that of the mean call."""
    has_order = placement.order is not None or not simulated.has_timeline
    if has_order or simulated.violation(placement) is not None:
        return placement
    return Placement.of(placement.device_of, simulated.timeline(placement).order)


def models_of_calls(plan: Plan) -> list[tuple[Plan, LoadedModel]]:
    """The plan of each call, and its model, loaded with one copy of weights and state.

    Raises:
        InputError: the runtime loads one shape only.
        StalePlanError: the model has changed.
    """
    problem = plan.problem
    runtime, source = runtime_named(plan.runtime), require_model(problem)
    if not isinstance(runtime, LoadsBeside):
        raise InputError(
            f"runtime '{plan.runtime}' loads one shape of a model; place these calls for torch"
        )
    framework = framework_of(source)
    assert framework is not None
    first = loaded_model(problem, plan.runtime)
    made = [(plan, first)]
    values = {} if source.signature is None else source.signature.values
    for call in calls_of(source)[1:]:
        shapes = {**source.shapes, **call.shapes}
        options = {**source.options, "open_dimensions": "yes"}
        asked = replace(source, shapes=shapes, options=options)
        graph, found = framework.again(asked, finder(framework))
        if found.signature is not None:  # reading again forgets which values are fixed
            found = replace(found, signature=with_values(found.signature, values))
        if graph.n_ops == problem.graph.n_ops:  # granularity may have added classes
            graph = replace(graph, op_colocation=problem.graph.op_colocation)
        _require_same_ops(problem.graph, graph, call)
        plan_of_call = replace(plan, problem=replace(problem, graph=graph, source=found))
        made.append((plan_of_call, runtime.load_beside(found, graph, first)))
    return made


Shapes = dict[str, tuple[int, ...]]


class LoadedCalls:
    """A plan for calls of several shapes, ready to be called. A context manager; `close` ends it.

    Weights are in each memory once, and so is state that stays: each call continues with the state
    that the call before left, whatever its shape. Calls take turns. `placewright.load` makes it:

    >>> import torch
    >>> request = {"devices": "cpu", "placer": "single", "calibrate": False, "check": False}
    >>> calls = [(1, {}), (9, {"input": (1, 4)})]  # one of the example's shape, nine of another
    >>> example = (torch.ones(3, 4),)
    >>> plan = pw.place(torch.nn.Linear(4, 2), example_inputs=example, calls=calls, **request)
    >>> with pw.load(plan) as model:
    ...     print(*(tuple(model(torch.ones(rows, 4)).shape) for rows in (3, 1)))
    (3, 2) (1, 2)

    Attributes:
        plan: as given.

    Raises:
        InputError: the plan cannot be executed, or its runtime loads one shape only.
        StalePlanError: the model has changed.
        RuntimeFailure: the runtime refuses a segment.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._turns = Turns()
        with ExitStack() as stack, numbered(request_numbers()):
            self._loaded = [
                stack.enter_context(LoadedPlan(one, model, in_flight=1, turns=self._turns))
                for one, model in models_of_calls(plan)
            ]
            self._open = stack.pop_all()

    def __enter__(self) -> LoadedCalls:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def inputs(self) -> tuple[tuple[TensorInfo, ...], ...]:
        """The inputs of each call, in the model's own order."""
        return tuple(loaded.inputs for loaded in self._loaded)

    def __call__(self, *given: Any, **named: Any) -> Any:
        """Run the model once with inputs of one of the shapes; see `LoadedPlan.__call__`.

        Raises:
            InputError: no call has such shapes; the message lists them.
            RuntimeFailure: a segment failed, or this is closed.
        """
        return self.run(given_inputs(given, named, self._loaded[0].open_inputs))

    def run(self, inputs: GivenInputs) -> Any:
        """Run the model once; inputs are a sequence in the model's order, or a mapping by name."""
        return self._chosen(inputs).run(inputs)

    def random_inputs(self) -> list[HostArray]:
        """Valid values for all inputs of the first call, the same in every call."""
        return self._loaded[0].random_inputs()

    def reset(self) -> None:
        """Give all state that the model keeps between calls its initial value.

        Raises:
            RuntimeFailure: this is closed.
        """
        for loaded in self._loaded:
            loaded.reset()

    def close(self) -> None:
        """Free everything: threads, segments, the models. Calls under way end before."""
        self._open.close()

    def _chosen(self, inputs: GivenInputs) -> LoadedPlan:
        first = self._loaded[0]
        with first.in_use() as model:
            flat, _ = flattened(model, inputs)
        names = [port.name for port in first.inputs]
        if isinstance(flat, Mapping):
            found = {name: np.shape(flat[name]) for name in names if name in flat}
        else:
            given = first.open_inputs if len(flat) == len(first.open_inputs) else names
            found = dict(zip(given, map(np.shape, flat), strict=False))
        if not found.keys() >= set(first.open_inputs):
            return first  # its check names the missing input
        for loaded in self._loaded:
            if all(found.get(port.name, port.shape) == port.shape for port in loaded.inputs):
                return loaded
        known = " or ".join(_text({port.name: port.shape for port in row}) for row in self.inputs)
        raise InputError(
            f"no call of this plan has inputs {_text(found)}; it has {known}. Divide the inputs "
            "into such calls, or place again with argument `calls`"
        )


def _text(shapes: Shapes) -> str:
    return str(Call(1, shapes)).removeprefix("1 x ")

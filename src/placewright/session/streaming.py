"""Plans that serve: what runs single calls, and samples that follow each other."""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np

from placewright.core.cluster import Device
from placewright.core.contender_names import (
    ALL_CORES,
    COPIES,
    CORES,
    PLAN,
    UNSPLIT_STREAMS,
    device_of,
)
from placewright.core.execution_models import Event
from placewright.core.placement import Placement
from placewright.core.plan import Plan
from placewright.errors import InfeasibleError, InputError
from placewright.execution.members import Members
from placewright.execution.placements import placement_runner, whole_model_runner
from placewright.execution.runner import ConcurrentRunner
from placewright.execution.runtime import LoadedModel
from placewright.execution.sample_server import SampleServer
from placewright.profiling.streams import stream_runner
from placewright.session.comparable import whole_processor, why_default_is_not_comparable
from placewright.session.running import loaded_model, require_model
from placewright.session.stream_ways import stream_server, stream_ways
from placewright.simulation.model import Simulator

LEAST_SAMPLES = 20


def require_streamable(plan: Plan) -> None:
    """Refuse a plan through which samples cannot follow each other, before its model is loaded.

    Raises:
        InputError: they cannot; the message says why.
    """
    problem = plan.problem
    if problem.objective == "training":
        raise InputError(
            "a training step changes its weights, so that the next one must wait for it: a plan "
            "for training has no stream; place for throughput or latency"
        )
    if problem.costs.source != "measured" or problem.time_unit != "s":
        raise InputError(
            f"its costs are '{problem.costs.source}' in {problem.time_unit}; place a model on "
            "devices of this machine to stream samples through it"
        )
    require_model(problem)


def streamable(plan: Plan, model: LoadedModel | None = None) -> LoadedModel:
    """The model of a plan, where samples can follow each other through it; `model` if it is loaded.

    Raises:
        InputError: they cannot; the message says why.
    """
    require_streamable(plan)
    return model or loaded_model(plan.problem, plan.runtime)


def kept_way(plan: Plan) -> str:
    """The way that a plan is to be run for a stream: its placement, or what was recommended."""
    measured = plan.measured
    if measured is not None and measured.recommendation in UNSPLIT_STREAMS:
        return measured.recommendation
    return PLAN


def unsplit_devices(plan: Plan, model: LoadedModel) -> tuple[Device, ...]:
    """Devices that each run single calls of the unsplit model; none where a split runs them.

    The model stays whole where that was recommended when the plan was measured, and where the
    placement uses one device only.
    """
    problem = plan.problem
    if problem.objective == "training":
        return ()
    simulator, name = Simulator(problem), PLAN
    if plan.measured is not None:
        name = plan.measured.recommendation
    if name in UNSPLIT_STREAMS:
        ways = stream_ways(plan, model)
        if name in ways.names:
            found = {COPIES: ways.copies, CORES: ways.cores}.get(name)
            return tuple(one for one in (ways.mode,) if one) if found is None else found
    if name == ALL_CORES and why_default_is_not_comparable(problem, simulator) is None:
        whole = whole_processor(plan)
        if whole is not None:
            return (whole,)
    used = np.unique(plan.placement.device_of).tolist()
    index = device_of(name, problem.cluster.device_names)
    if index is not None:
        alone = Placement.on_one_device(problem.n_units, index)
        used = [index] if simulator.violation(alone) is None else used
    return Members.of([problem.cluster.devices[used[0]]]).devices if len(used) == 1 else ()


def call_runner(plan: Plan, model: LoadedModel, *, in_flight: int | None) -> ConcurrentRunner:
    """What runs single calls of a split plan; None in flight are as many as pay."""
    problem, placement = plan.problem, plan.placement
    if problem.objective == "training":
        return placement_runner(problem, placement, model)
    allowed = in_flight or _in_flight(plan)
    groups = any(device.replicas > 1 for device in problem.cluster.devices)
    if isinstance(problem.execution_model, Event) and not groups:
        return placement_runner(problem, placement, model, in_flight=allowed)
    return stream_runner(problem, placement, model, in_flight=allowed)


def _in_flight(plan: Plan) -> int:
    """As many samples as pay, one where no more fit."""
    if plan.in_flight is not None:
        return plan.in_flight
    try:
        return Simulator(plan.problem).stream(plan.placement, samples=LEAST_SAMPLES).in_flight
    except InfeasibleError:
        return 1


def recommended_server(
    plan: Plan, model: LoadedModel, stack: ExitStack, *, in_flight: int | None = None
) -> SampleServer:
    """What runs a plan's samples the recommended way; `stack` closes it.

    Raises:
        InfeasibleError: so many samples do not fit into a device's memory.
    """
    allowed = in_flight or plan.in_flight
    name = kept_way(plan)
    if name != PLAN:
        ways = stream_ways(plan, model, in_flight=allowed)
        if name in ways.names:
            return stream_server(plan, model, ways, name, stack, in_flight=in_flight)
    elsewhere = [] if name != PLAN else unsplit_devices(plan, model)
    if len(elsewhere) == 1 and elsewhere[0] not in _devices_used(plan):
        runner = whole_model_runner(model, elsewhere[0], in_flight=allowed or 2)
        return stack.enter_context(runner)
    if allowed is None:
        played = Simulator(plan.problem).stream(plan.placement, samples=LEAST_SAMPLES)
        allowed = played.in_flight
    runner = stream_runner(plan.problem, plan.placement, model, in_flight=allowed)
    return stack.enter_context(runner)


def _devices_used(plan: Plan) -> list[Device]:
    devices = plan.problem.cluster.devices
    return [devices[index] for index in np.unique(plan.placement.device_of).tolist()]

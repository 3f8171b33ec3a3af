"""Ways to run a model for samples that follow each other, and which of them may be compared."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field, replace

import numpy as np

from placewright.core.cluster import Device
from placewright.core.contender_names import COPIES, CORES, EVEN_SPLIT, MODE, PLAN, contender_of
from placewright.core.placement import Placement
from placewright.core.plan import Plan
from placewright.core.problem import Problem
from placewright.errors import InfeasibleError
from placewright.execution.members import Members
from placewright.execution.placements import whole_model_runner
from placewright.execution.runtime import LoadedModel
from placewright.execution.sample_server import HasThroughputMode, SampleServer
from placewright.placers.registry import make_placer
from placewright.profiling.streams import copy_per_device, stream_runner
from placewright.session.comparable import is_same, whole_processor, why_default_is_not_comparable
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.model import Simulator
from placewright.simulation.stream.play import Stream

_PLAYED = 60  # samples, to predict a period


@dataclass(frozen=True)
class StreamWays:
    """Ways to stream a plan's model that obey the plan's limits and pins, simplest first.

    Attributes:
        single: the best device that may run the whole model alone; None where none may.
        copies: devices that each may hold a copy of the whole model; () where one may not.
        mode: the processor with options for the library's throughput mode; None where it has none
            or may not be compared.
        cores: cores for a copy each, where the plan's device is the whole processor.
        even: the even split; None where there is none or the plan is it.
        played: the plan's and the even split's streams by the simulator.
        predicted: name -> seconds per sample by the simulator.
        left_out: name -> why it is not comparable.
    """

    single: Device | None
    copies: tuple[Device, ...]
    mode: Device | None
    cores: tuple[Device, ...]
    even: Placement | None
    played: dict[str, Stream]
    predicted: dict[str, float]
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """All that are measured, simplest first, the plan last."""
        found = [] if self.single is None else [contender_of(self.single.name)]
        found += [MODE] if self.mode is not None else []
        found += [COPIES] if self.copies else []
        found += [CORES] if self.cores else []
        found += [EVEN_SPLIT] if self.even is not None else []
        return (*found, PLAN)

    def without(self, name: str, reason: str) -> StreamWays:
        """The others, where one turned out not to be comparable."""
        told = {**self.left_out, name: reason}
        if name == MODE:
            return replace(self, mode=None, left_out=told)
        if name == COPIES:
            return replace(self, copies=(), left_out=told)
        if name == CORES:
            return replace(self, cores=(), left_out=told)
        if name == EVEN_SPLIT:
            return replace(self, even=None, left_out=told)
        return replace(self, single=None, left_out=told)


def stream_ways(plan: Plan, model: LoadedModel, *, in_flight: int | None = None) -> StreamWays:
    """What a plan's stream is compared with.

    Raises:
        InfeasibleError: the plan's own stream does not fit into a device's memory.
    """
    problem, simulator = plan.problem, Simulator(plan.problem)
    played = {PLAN: simulator.stream(plan.placement, samples=_PLAYED, in_flight=in_flight)}
    left_out: dict[str, str] = {}
    legal: list[tuple[float, Device]] = []
    for index, device in enumerate(problem.cluster.devices):
        violation = simulator.violation(Placement.on_one_device(problem.n_units, index))
        if violation is not None:
            left_out[contender_of(device.name)] = violation.message
            continue
        seconds = float(problem.costs.seconds[:, index].sum()) + device.dispatch_seconds
        legal += [(seconds, member) for member in Members.of([device]).devices]
    members = Members.of(problem.cluster.devices).devices
    used = {one.name: seconds for seconds, one in legal}
    single = min(legal, key=lambda row: row[0])[1] if legal else None
    copies = members if len(members) > 1 and len(legal) == len(members) else ()
    if len(members) > 1 and not copies:
        left_out[COPIES] = f"{next(iter(left_out.values()))}"
    predicted = {} if single is None else {contender_of(single.name): used[single.name]}
    if copies:
        predicted[COPIES] = _copies_period(problem, used)
    mode, cores = _processor_ways(plan, model, simulator, left_out)
    even = _even_split(plan)
    if even is not None:
        try:
            played[EVEN_SPLIT] = simulator.stream(even, samples=_PLAYED)
        except InfeasibleError as error:
            even, left_out[EVEN_SPLIT] = None, str(error)
    predicted |= {name: one.steady.period for name, one in played.items()}
    return StreamWays(single, copies, mode, cores, even, played, predicted, left_out)


def _copies_period(problem: Problem, seconds: dict[str, float]) -> float:
    """Seconds per sample when every device runs a copy, with all of them busy."""
    rate = 0.0
    for device in Members.of(problem.cluster.devices).devices:
        domain = device.memory_domain or ""
        factors = problem.cluster.contention.get(domain, (1.0,))
        members = Members.of(problem.cluster.devices).devices
        busy = sum(one.memory_domain == device.memory_domain for one in members)
        rate += 1.0 / (seconds[device.name] * factors[min(busy, len(factors)) - 1])
    return 1.0 / rate


def _processor_ways(
    plan: Plan, model: LoadedModel, simulator: Simulator, left_out: dict[str, str]
) -> tuple[Device | None, tuple[Device, ...]]:
    """The library's own mode on the processor, or a copy on each of its cores."""
    from placewright.session.runtimes import runtime_named

    members = Members.of(plan.problem.cluster.devices).devices
    cores = [one for one in members if one.name.startswith("cpu:")]
    whole = whole_processor(plan)
    if whole is None:
        whole = next((one for one in members if one.name == "cpu"), None)
    if whole is None:
        return None, ()
    reason = why_default_is_not_comparable(plan.problem, simulator)
    if reason is not None:
        left_out[MODE if isinstance(model, HasThroughputMode) else CORES] = reason
        return None, ()
    found = runtime_named(plan.runtime).discover()
    all_cores = tuple(one for one in found if one.name.startswith("cpu:"))
    if isinstance(model, HasThroughputMode):
        return model.throughput_device(whole, len(cores) or max(1, len(all_cores))), ()
    return None, () if cores or len(all_cores) < 2 else all_cores


def _even_split(plan: Plan) -> Placement | None:
    problem = plan.problem
    found = make_placer("even-split").place(problem, Evaluator(problem), np.random.default_rng(0))
    placement = found.placement
    if placement is None or is_same(placement, plan.placement):
        return None
    return placement if len(np.unique(placement.device_of)) > 1 else None


def stream_server(
    plan: Plan,
    model: LoadedModel,
    ways: StreamWays,
    name: str,
    stack: ExitStack,
    *,
    in_flight: int | None = None,
) -> SampleServer:
    """What runs samples one way; `stack` closes it.

    Args:
        plan, model, ways: what is run.
        name: the way.
        stack: closes what is returned.
        in_flight: samples under way at most in a copy per device or the library's own mode; None is
            as many as pay. Placements are played with theirs in `ways`.
    """
    problem = plan.problem
    if name == PLAN:
        in_flight = ways.played[PLAN].in_flight
        return stack.enter_context(
            stream_runner(problem, plan.placement, model, in_flight=in_flight)
        )
    if name == EVEN_SPLIT and ways.even is not None:
        in_flight = ways.played[EVEN_SPLIT].in_flight
        return stack.enter_context(stream_runner(problem, ways.even, model, in_flight=in_flight))
    if name == COPIES:
        return stack.enter_context(copy_per_device(model, ways.copies, in_flight=in_flight))
    if name == CORES:
        return stack.enter_context(copy_per_device(model, ways.cores, in_flight=in_flight))
    if name == MODE and ways.mode is not None and isinstance(model, HasThroughputMode):
        server = model.throughput_mode(ways.mode, in_flight)
        stack.callback(server.close)
        return server
    assert ways.single is not None
    assert contender_of(ways.single.name) == name
    return stack.enter_context(whole_model_runner(model, ways.single))

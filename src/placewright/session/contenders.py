"""Contenders: ways to run a plan's model that are measured beside the plan.

A contender obeys the limits, pins and colocation classes of the problem. One that breaks them
answers another question, however fast it is: it is listed with the reason, and neither measured
nor recommended.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import numpy as np

from placewright.core.arrays import FloatArray
from placewright.core.charges import CHARGED
from placewright.core.cluster import Device
from placewright.core.placement import Placement
from placewright.core.plan import (
    ALL_CORES,
    COPIES,
    CORES,
    EVEN_SPLIT,
    MODE,
    PLAN,
    UNSPLIT_STREAMS,
    Plan,
    contender_of,
    device_of,
)
from placewright.core.problem import Problem
from placewright.core.processors import first_on_processors
from placewright.core.quantities import format_bytes
from placewright.errors import InfeasibleError
from placewright.execution.direct import DirectRunner
from placewright.execution.members import Members
from placewright.execution.placements import call_runner, whole_call_runner, whole_model_runner
from placewright.execution.runner import ConcurrentRunner
from placewright.execution.runtime import HasThroughputMode, LoadedModel, SampleServer
from placewright.frameworks.registry import framework_named
from placewright.placers.registry import make_placer
from placewright.profiling.stream_calibration import copy_per_device, stream_runner
from placewright.profiling.verdict import Verdict, judge
from placewright.report.verdict import PREDICTED_SAMPLES, played_samples
from placewright.session.models import runtime_named
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.model import Simulator
from placewright.simulation.serving import served_seconds
from placewright.simulation.stream.play import Stream

CallRunner = DirectRunner | ConcurrentRunner
Runner = TypeVar("Runner", bound=SampleServer | DirectRunner)

_SPLITS = (COPIES, CORES, EVEN_SPLIT, MODE)  # simpler contenders that use several devices
_OURS = (ALL_CORES, EVEN_SPLIT, PLAN, *UNSPLIT_STREAMS)  # all others are single devices


@dataclass(frozen=True)
class Contender(Generic[Runner]):
    """One way to run a plan's model."""

    name: str  # see `core.plan`
    # of the problem's units; None if no placement expresses the contender
    placement: Placement | None
    # seconds of a request, or per sample of a stream, by the simulator; None if it cannot predict
    # them
    predicted: float | None
    # make the runner, which the stack closes. The number limits the samples in flight of copies of
    # the whole model; None means as many as pay. Placements have a limit already
    open: Callable[[ExitStack, int | None], Runner]

    @property
    def is_single(self) -> bool:
        """True if one device runs the whole model."""
        return self.name not in _OURS


@dataclass(frozen=True)
class Contenders(Generic[Runner]):
    """The contenders of one plan."""

    # simplest first; the searched placement last, unless a simpler contender equals it
    members: tuple[Contender[Runner], ...]
    searched: str = PLAN  # name of the contender that the search returned
    left_out: Mapping[str, str] = field(default_factory=dict)  # name -> why it is not comparable
    # the plan's stream by the simulator; None if single requests are measured
    played: Stream | None = None

    def __getitem__(self, name: str) -> Contender[Runner]:
        return next(member for member in self.members if member.name == name)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all members, in their order."""
        return tuple(member.name for member in self.members)

    @property
    def predicted(self) -> dict[str, float]:
        """Name -> predicted seconds, of the members that have them."""
        return {m.name: m.predicted for m in self.members if m.predicted is not None}

    def only(self, names: Collection[str]) -> Contenders[Runner]:
        """Keep only the members of these names."""
        return replace(self, members=tuple(m for m in self.members if m.name in names))

    def without(self, name: str, reason: str) -> Contenders[Runner]:
        """Leave out a contender that is not comparable."""
        members = tuple(member for member in self.members if member.name != name)
        return replace(self, members=members, left_out={**self.left_out, name: reason})

    def simplest_first(self, medians: Mapping[str, float], kept: Collection[str]) -> Sequence[str]:
        """Names of simpler members than a plan: single devices, the fastest first, then others."""
        simpler = [m for m in self.members if m.name in kept and m.name != PLAN]
        singles = sorted((m.name for m in simpler if m.is_single), key=medians.__getitem__)
        return [*singles, *(m.name for m in simpler if not m.is_single)]


def judged(
    contenders: Contenders[Any],
    seconds: Mapping[str, Sequence[float]],
    kept: Collection[str] | None = None,
    most_loss: float = math.inf,
) -> Verdict:
    """The verdict over contenders, simpler ones first.

    Args:
        seconds: name -> of each round.
        kept: names that keep the latency limit, and may be recommended; None is all.
        most_loss: see `profiling.verdict.judge`.
    """
    medians = {name: statistics.median(row) for name, row in seconds.items()}
    everyone = contenders.simplest_first(medians, seconds)
    whole = judge(
        seconds,
        everyone,
        searched=contenders.searched,
        splits=_SPLITS,
        like_searched=(EVEN_SPLIT,),
    )
    if kept is None:
        return whole
    if not kept:
        text = "no contender keeps the latency limit; let fewer samples in, or raise the limit"
        return replace(whole, recommendation=PLAN, split=False, text=text)
    simpler = contenders.simplest_first(medians, kept)
    if contenders.searched in kept:
        verdict = judge(
            {name: row for name, row in seconds.items() if name in kept},
            simpler,
            searched=contenders.searched,
            splits=_SPLITS,
            like_searched=(EVEN_SPLIT,),
            most_loss=most_loss,
        )
        return replace(verdict, contenders=whole.contenders)
    fastest = min(simpler, key=lambda name: whole.contenders[name].median)
    text = f"run '{fastest}': the plan does not keep the latency limit, and this is the fastest"
    return replace(whole, recommendation=fastest, split=False, text=text)


def request_contenders(plan: Plan, model: LoadedModel) -> Contenders[CallRunner]:
    """Single devices, the runtime's default, an even split and the plan, for single requests."""
    problem, simulator = plan.problem, Simulator(plan.problem)
    alone, left_out = _legal_devices(problem, simulator)
    members = [alone_contender(simulator, device, model) for device in alone]
    placements = {m.name: m.placement for m in members if m.placement is not None}
    searched = _name_of(plan.placement, placements)
    whole = whole_processor(plan)
    reason = None if whole is None else why_default_is_not_comparable(problem, simulator)
    if reason is not None:
        left_out[ALL_CORES] = reason
    elif whole is not None:
        members.append(Contender(ALL_CORES, None, None, _opens_calls(model, whole)))
    even = _even_split(problem)
    if even is None:
        left_out[EVEN_SPLIT] = "no even split keeps the limits and pins"
    elif not (_name_of(even, placements) or is_same(even, plan.placement)):
        members.append(split_contender(EVEN_SPLIT, simulator, even, model))
    if not searched:
        members.append(split_contender(PLAN, simulator, plan.placement, model))
    return Contenders(tuple(members), searched or PLAN, left_out)


def alone_contender(simulator: Simulator, device: int, model: LoadedModel) -> Contender[CallRunner]:
    """One device with the unsplit model, for single requests."""
    own = simulator.problem.cluster.devices[device]
    placement = Placement.on_one_device(simulator.problem.n_units, device)
    seconds = served_seconds(simulator.problem, placement)
    return Contender(contender_of(own.name), placement, seconds, _opens_calls(model, own))


def split_contender(
    name: str, simulator: Simulator, placement: Placement, model: LoadedModel
) -> Contender[CallRunner]:
    """A placement, for single requests."""

    def opened(stack: ExitStack, in_flight: int | None) -> CallRunner:
        runner = call_runner(simulator.problem, placement, model)
        stack.callback(runner.close)
        return runner

    seconds = served_seconds(simulator.problem, placement)
    return Contender(name, placement, seconds, opened)


def stream_contenders(
    plan: Plan, model: LoadedModel, *, in_flight: int | None = None
) -> Contenders[SampleServer]:
    """The best single device, copies of the whole model, an even split and the plan, for streams.

    Args:
        in_flight: samples under way at most in the plan; None is as many as pay.

    Raises:
        InfeasibleError: the plan's own stream does not fit into a device's memory.
    """
    problem, simulator = plan.problem, Simulator(plan.problem)
    samples = played_samples(PREDICTED_SAMPLES, in_flight)
    played = simulator.stream(plan.placement, samples=samples, in_flight=in_flight)
    whole = whole_model_streams(plan, model)
    left_out = dict(whole.left_out)
    members = [whole.contender(name, problem, model) for name in whole.devices]
    even = _even_split(problem)
    is_split = even is not None and len(np.unique(even.device_of)) > 1
    if even is not None and is_split and not is_same(even, plan.placement):
        try:
            stream = simulator.stream(even, samples=samples, in_flight=in_flight)
            members.append(_stream_contender(EVEN_SPLIT, problem, even, stream, model))
        except InfeasibleError as error:
            left_out[EVEN_SPLIT] = str(error)
    members.append(_stream_contender(PLAN, problem, plan.placement, played, model))
    return Contenders(tuple(members), PLAN, left_out, played)


def _stream_contender(
    name: str, problem: Problem, placement: Placement, played: Stream, model: LoadedModel
) -> Contender[SampleServer]:
    def opened(stack: ExitStack, in_flight: int | None) -> SampleServer:
        return stack.enter_context(
            stream_runner(problem, placement, model, in_flight=played.in_flight)
        )

    return Contender(name, placement, played.steady.period, opened)


@dataclass(frozen=True)
class WholeModelStreams:
    """Ways to stream samples through the unsplit model."""

    # contender -> devices that each run the whole model, simplest contender first: the best single
    # device, the library's throughput mode, a copy on each device, or on each core if the plan's
    # device is the whole processor
    devices: Mapping[str, tuple[Device, ...]]
    # contender -> seconds per sample, if they follow from the cost table
    predicted: Mapping[str, float]
    left_out: Mapping[str, str]  # contender -> why it is not comparable

    def contender(self, name: str, problem: Problem, model: LoadedModel) -> Contender[SampleServer]:
        """One of them."""
        devices = self.devices[name]

        def opened(stack: ExitStack, in_flight: int | None) -> SampleServer:
            if name == MODE and isinstance(model, HasThroughputMode):
                server = model.throughput_mode(devices[0], in_flight)
                stack.callback(server.close)
                return server
            if name in UNSPLIT_STREAMS:
                return stack.enter_context(copy_per_device(model, devices, in_flight=in_flight))
            return stack.enter_context(whole_model_runner(model, devices[0]))

        at = None  # no placement stands for several devices, nor for a member of a group
        if name not in UNSPLIT_STREAMS:
            at = device_of(name, problem.cluster.device_names)
        placement = None if at is None else Placement.on_one_device(problem.n_units, at)
        return Contender(name, placement, self.predicted.get(name), opened)


def whole_model_streams(plan: Plan, model: LoadedModel) -> WholeModelStreams:
    """Ways to stream through the unsplit model that obey the plan's limits and pins."""
    problem, simulator = plan.problem, Simulator(plan.problem)
    alone, left_out = _legal_devices(problem, simulator)
    seconds: dict[str, float] = {}
    legal: list[Device] = []
    for index in alone:
        device = problem.cluster.devices[index]
        own = float(problem.costs.seconds[:, index].sum()) + device.dispatch_seconds
        for member in Members.of([device]).devices:
            legal.append(member)
            seconds[member.name] = own
    devices: dict[str, tuple[Device, ...]] = {}
    predicted: dict[str, float] = {}
    if legal:
        single = min(legal, key=lambda device: seconds[device.name])
        devices[contender_of(single.name)] = (single,)
        predicted[contender_of(single.name)] = seconds[single.name]
    members = Members.of(problem.cluster.devices).devices
    copies = fastest_modes(members, legal, seconds)
    is_several = len(set(first_on_processors(members))) > 1
    if is_several and not copies:
        left_out[COPIES] = _why_no_copies(members, legal, left_out)
    elif copies:
        reason = _why_unknown(problem) or _why_not_together(simulator, copies)
        if reason is not None:
            left_out[COPIES], copies = reason, ()
    mode, cores = _processor_streams(plan, model, simulator, left_out)
    devices |= {name: row for name, row in ((MODE, mode), (COPIES, copies), (CORES, cores)) if row}
    if copies:
        predicted[COPIES] = _copies_period(problem, copies, seconds)
    return WholeModelStreams(devices, predicted, left_out)


def _why_no_copies(
    members: Sequence[Device], legal: Sequence[Device], left_out: Mapping[str, str]
) -> str:
    """The reason of a processor that cannot run the whole model in any mode."""
    numbered = list(zip(first_on_processors(members), members, strict=True))
    able = {at for at, device in numbered if device in legal}
    reasons = [
        left_out.get(contender_of(device.name), "") for at, device in numbered if at not in able
    ]
    return next(filter(None, reasons), next(iter(left_out.values())))


def _why_not_together(simulator: Simulator, copies: Sequence[Device]) -> str | None:
    """The pool that has no room for a copy with one sample on each device; None if none."""
    cluster = simulator.problem.cluster
    if not (copies and cluster.shared_pools):
        return None
    used = [
        index
        for index, device in enumerate(cluster.devices)
        if any(member in copies for member in Members.of([device]).devices)
    ]
    return next(
        (
            f"copies with one sample on each device take {format_bytes(size)} of '{name}', which "
            f"has {format_bytes(limit)}"
            for name, size, limit in exceeded_by_whole(simulator, used)
        ),
        None,
    )


def exceeded_by_whole(
    simulator: Simulator, devices: Iterable[int], samples: int = 1
) -> list[tuple[str, float, float]]:
    """Device or pool, bytes taken and available, for each limit that the unsplit model exceeds.

    Args:
        devices: that run it at a time.
        samples: under way at a time on each of them.
    """
    return exceeded_by_peaks(simulator.problem, whole_peaks(simulator, devices), samples)


def whole_peaks(simulator: Simulator, devices: Iterable[int]) -> FloatArray:
    """Bytes of the unsplit model with one sample on each of `devices`, shape (n_devices,)."""
    problem, peaks = simulator.problem, np.zeros(simulator.problem.n_devices)
    for index in devices:
        whole = Placement.on_one_device(problem.n_units, index)
        own = simulator.sample_peaks(whole)
        peaks[index] = (simulator.memory_peaks(whole) if own is None else own)[index]
    return peaks


def exceeded_by_peaks(
    problem: Problem, whole: FloatArray, samples: int
) -> list[tuple[str, float, float]]:
    """As `exceeded_by_whole`, by peaks from `whole_peaks`."""
    cluster, weights = problem.cluster, problem.kept_weights.total
    peaks = whole + (samples - 1) * np.maximum(0.0, whole - weights)
    if cluster.shares_weights and not np.any(cluster.replicas > 1):  # each weight counts once
        peaks[np.flatnonzero(peaks)[1:]] -= weights
    return cluster.exceeded_limits(peaks)


def fastest_modes(
    members: Sequence[Device], legal: Sequence[Device], seconds: Mapping[str, float]
) -> tuple[Device, ...]:
    """The fastest mode of each processor, all legal and at least two; else nothing."""
    best: dict[int, Device] = {}
    for at, device in zip(first_on_processors(members), members, strict=True):
        if device in legal and (at not in best or seconds[device.name] < seconds[best[at].name]):
            best[at] = device
    is_whole = len(best) == len(set(first_on_processors(members)))
    return tuple(best.values()) if is_whole and len(best) > 1 else ()


def _copies_period(
    problem: Problem, members: Sequence[Device], seconds: Mapping[str, float]
) -> float:
    """Seconds per sample if every device runs a copy, with all of them busy."""
    rate = 0.0
    for device in members:
        factors = problem.cluster.contention.get(device.memory_domain or "", (1.0,))
        busy = sum(other.memory_domain == device.memory_domain for other in members)
        rate += 1.0 / (seconds[device.name] * factors[min(busy, len(factors)) - 1])
    return 1.0 / rate


def _processor_streams(
    plan: Plan, model: LoadedModel, simulator: Simulator, left_out: dict[str, str]
) -> tuple[tuple[Device, ...], tuple[Device, ...]]:
    """The processor in the library's throughput mode, or its cores with a copy each."""
    members = Members.of(plan.problem.cluster.devices).devices
    workers = [members[at] for at in sorted(set(first_on_processors(members)))]
    cores = [device for device in workers if device.name.startswith("cpu:")]
    whole = whole_processor(plan)
    if whole is None:
        whole = next((device for device in members if device.name == "cpu"), None)
    if whole is None:
        return (), ()
    way = MODE if isinstance(model, HasThroughputMode) else CORES
    discovered = runtime_named(plan.runtime).discover()
    cores_here = [device for device in discovered if device.name.startswith("cpu:")]
    all_cores = tuple(_with_options_of(plan, device) for device in cores_here)
    if way == CORES and (cores or len(all_cores) < 2):
        return (), ()
    n_cores = len(cores) or max(1, len(all_cores))  # each computes a sample at a time
    reason = why_default_is_not_comparable(
        plan.problem, simulator, way=way, whole=whole.name, samples=n_cores
    )
    if reason is not None:
        left_out[way] = reason
        return (), ()
    if isinstance(model, HasThroughputMode):
        return (model.throughput_device(whole, n_cores),), ()
    return (), all_cores


def _opens_calls(
    model: LoadedModel, device: Device
) -> Callable[[ExitStack, int | None], DirectRunner]:
    return lambda stack, in_flight: stack.enter_context(whole_call_runner(model, device))


def _legal_devices(problem: Problem, simulator: Simulator) -> tuple[list[int], dict[str, str]]:
    """Devices that may run the whole model alone; contender -> why the others may not."""
    legal: list[int] = []
    left_out: dict[str, str] = {}
    for index, name in enumerate(problem.cluster.device_names):
        reason = _why_not_alone(simulator, Placement.on_one_device(problem.n_units, index))
        if reason is None:
            legal.append(index)
        else:
            left_out[contender_of(name)] = reason
    return legal, left_out


def _why_not_alone(simulator: Simulator, whole: Placement) -> str | None:
    """The constraint that a device breaks with the whole model, or with a stream; None if none."""
    violation = simulator.violation(whole)
    if violation is not None:
        return violation.message
    peaks = simulator.sample_peaks(whole)
    if peaks is None:
        return None
    exceeded = simulator.problem.cluster.exceeded_limits(peaks)
    return next((_too_large_for(*limit) for limit in exceeded), None)


def _too_large_for(name: str, size: float, limit: float) -> str:
    return (
        f"a stream with one sample in flight takes {format_bytes(size)} on '{name}', "
        f"which has {format_bytes(limit)}"
    )


def is_same(first: Placement, second: Placement) -> bool:
    """True if two placements run the same: on one device the runtime orders the ops."""
    if not np.array_equal(first.device_of, second.device_of):
        return False
    if len(np.unique(first.device_of)) == 1 or first.order is second.order:
        return True
    return (
        first.order is not None
        and second.order is not None
        and np.array_equal(first.order, second.order)
    )


def _name_of(wanted: Placement, placements: Mapping[str, Placement]) -> str:
    return next((name for name, other in placements.items() if is_same(other, wanted)), "")


def _even_split(problem: Problem) -> Placement | None:
    placer = make_placer("even-split")
    return placer.place(problem, Evaluator(problem), np.random.default_rng(0)).placement


def whole_processor(plan: Plan) -> Device | None:
    """The runtime's default: the CPU with all threads, with the options of the first core.

    None if the plan has that device already, or uses no core of it.
    """
    names = plan.problem.cluster.device_names
    if "cpu" in names or not any(name.startswith("cpu:") for name in names):
        return None
    discovered = runtime_named(plan.runtime).discover()
    whole = next((device for device in discovered if device.name == "cpu"), None)
    return None if whole is None else _with_options_of(plan, whole)


def _with_options_of(plan: Plan, device: Device) -> Device:
    """A processor with the precision and the compiler of the first one of the plan."""
    framework, devices = framework_named(plan.runtime), plan.problem.cluster.devices
    first = next((each for each in devices if each.kind == "cpu"), devices[0])
    known = (*framework.precision_options, *framework.compile_options)
    taken = {option: first.options[option] for option in known if option in first.options}
    return replace(device, options={**device.options, **taken})


def why_default_is_not_comparable(
    problem: Problem,
    simulator: Simulator,
    *,
    way: str = ALL_CORES,
    whole: str = "cpu",
    samples: int = 1,
) -> str | None:
    """The constraint that the runtime's default breaks, in words; None if it breaks none.

    It runs every op on all cores and keeps the whole model in one memory, whatever the limits of
    single cores are.

    Args:
        way: name of the default.
        whole: name of the device that stands for all cores; pins to it are kept.
        samples: under way at a time.
    """
    names = problem.cluster.device_names
    elsewhere = [(op, at) for op, at in sorted(problem.pins.items()) if names[at] != whole]
    for op, at in elsewhere[:1]:
        return (
            f"op '{problem.graph.op_names[op]}' is pinned to '{names[at]}', and "
            f"'{way}' runs every op on all cores"
        )
    for index in processor_memories(problem):
        for name, size, limit in exceeded_by_whole(simulator, [index], samples):
            at_once = f" with {samples} samples at a time" if samples > 1 else ""
            return (
                f"it keeps the whole model{at_once}, {format_bytes(size)}, in one memory, and "
                f"'{name}' has {format_bytes(limit)}"
            )
    return _why_unknown(problem)


def processor_memories(problem: Problem) -> list[int]:
    """Devices whose limits hold for a model that runs on the whole processor."""
    return [at for at, device in enumerate(problem.cluster.devices) if device.kind == "cpu"]


def _why_unknown(problem: Problem) -> str | None:
    """The limited quantity that nobody predicts of a way that no placement expresses, or None."""
    limited = (quantity for quantity in problem.limits if quantity in CHARGED)
    return next(
        (f"its {quantity} is not known, and there is a limit on it" for quantity in limited), None
    )

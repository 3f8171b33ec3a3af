"""Plans on the hardware: executed, compared with the unsplit model, measured, traced."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from placewright.core.charges import CHARGED
from placewright.core.execution_models import Event
from placewright.core.plan import PLAN, Measurement, Plan
from placewright.core.problem import Problem
from placewright.core.source import calls_of, calls_text
from placewright.errors import (
    FieldError,
    InputError,
    RuntimeFailure,
    StalePlanError,
    UnsuitableInputs,
)
from placewright.execution.comparing import Comparison, compare_outputs
from placewright.execution.inputs import GivenInputs, checked_inputs
from placewright.execution.members import Members
from placewright.execution.placements import (
    call_runner,
    served_segments,
    taking_turns,
)
from placewright.execution.runner import allowed_seconds, time_limit
from placewright.execution.runtime import HostArray, LoadedModel, MeasuresMemory
from placewright.frameworks.runtimes import MODULE_PREFIX, default_runtime
from placewright.profiling.hardware import measure_interleaved
from placewright.profiling.several_hosts import SOURCE
from placewright.profiling.verdict import LEAST_FOR_INTERVAL, median_interval
from placewright.report.machine_speed import drifted
from placewright.report.plan_text import is_all_on
from placewright.report.stream_text import run_lines, run_verdict
from placewright.report.time_left import Report, TimeLeft, no_report, rough_duration
from placewright.report.trace import SegmentRun, run_trace_text
from placewright.session.contenders import (
    CallRunner,
    Contender,
    alone_contender,
    split_contender,
)
from placewright.session.language.problem import is_of_tokens
from placewright.session.models import (
    ModelOfRequest,
    require_existing,
    runtime_named,
)
from placewright.session.modules import module_in_memory
from placewright.session.plans import recommendation_lines
from placewright.simulation.model import Simulator
from placewright.simulation.serving import served_seconds

ELSEWHERE = (SOURCE, "roofline")  # costs of devices of other machines
ROUNDS = 15
_TRACED_RUNS = 9  # of which the trace shows the one of median length


@dataclass(frozen=True)
class RunResult:
    """Outputs and seconds of an executed plan, compared with the best single device.

    Attributes:
        comparison: of the outputs with those of the unsplit model.
        plan_seconds, device_seconds: medians; both were measured in turns. `device_seconds` is None
            if no device may run the whole model, and the one that was tried refused it.
        predicted: seconds.
        device: the best single device that keeps limits and pins, or the fastest if none does.
        device_is_legal: False if none does.
        device_predicted: seconds of that device by the simulator; None if it is not legal.
        memory: device name -> predicted and measured peak bytes; empty if no allocator counts them.
        recommendation: what was recommended when the plan was measured; None if it never was.
        advice: lines about running the recommended contender, if that is not the plan.
        device_scatter: of that device's calibration, see `core.cluster.Device.speed_scatter`.
        measurement: the same figures as plans keep them.
        ratio: the plan's seconds over that device's, median over rounds with its 95 % interval;
            None if the plan is that device, or there were too few rounds for an interval.
        is_split: the plan uses several devices.
        is_by_time: the plan's objective is a time; else a time recommends nothing.
        refusal: why that device could not run the whole model; "" if it could.
    """

    comparison: Comparison
    plan_seconds: float
    device_seconds: float | None
    predicted: float
    device: str
    device_is_legal: bool = True
    device_predicted: float | None = None
    memory: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    recommendation: str | None = None
    advice: tuple[str, ...] = ()
    device_scatter: float | None = None
    measurement: Measurement | None = None
    ratio: tuple[float, float, float] | None = None
    is_split: bool = False
    is_by_time: bool = True
    refusal: str = ""

    @property
    def equal(self) -> bool:
        """True if outputs differ by no more than rounding, or than runs of the runtime differ."""
        return self.comparison.equal

    @property
    def changed_devices(self) -> dict[str, float]:
        """Devices that are no longer as fast as predicted -> measured over predicted seconds."""
        if self.device_predicted is None or self.device_seconds is None:
            return {}
        name = self.device
        return drifted(
            {name: self.device_predicted}, {name: self.device_seconds}, {name: self.device_scatter}
        )

    @property
    def verdict(self) -> str:
        """One sentence: the measured plan against the best single device; "" if there is none."""
        if self.ratio is None or not self.device_is_legal or not self.is_by_time:
            return ""
        return run_verdict(self.device, self.ratio, is_split=self.is_split)

    def data(self) -> dict[str, Any]:
        """The result as a JSON document."""
        return {
            "equal": self.equal,
            "updated_tensors": self.comparison.n_updated,
            "relative_error": self.comparison.error,
            "tolerance": self.comparison.tolerance,
            "worst_op": self.comparison.worst,
            "worst_part": self.comparison.part,
            "scatter": self.comparison.scatter,
            "random_ops": list(self.comparison.random),
            "measured": self.plan_seconds,
            "measured_iqr": None if self.measurement is None else self.measurement.iqr,
            "runs": None if self.measurement is None else self.measurement.runs,
            "predicted": self.predicted,
            "prediction_error": self.predicted / self.plan_seconds - 1.0,
            "best_single_device": self.device,
            "best_single_device_is_legal": self.device_is_legal,
            "best_single_device_measured": self.device_seconds,
            "best_single_device_refusal": self.refusal or None,
            "best_single_device_predicted": self.device_predicted,
            "plan_over_best_single_device": self.ratio,
            "verdict": self.verdict,
            "memory": {
                name: {"predicted": row[0], "measured": row[1]} for name, row in self.memory.items()
            },
            "changed_devices": self.changed_devices,
            "recommendation": self.recommendation,
            "advice": list(self.advice),
        }

    def lines(self) -> list[str]:
        """The result as lines of text."""
        return run_lines(self.data(), self.comparison.text)

    def __str__(self) -> str:
        return "\n".join(self.lines())


def can_run(plan: Plan) -> bool:
    """True if the plan has a model, and costs that were measured under the event model."""
    problem = plan.problem
    return (
        problem.source is not None
        and isinstance(problem.execution_model, Event)
        and problem.costs.source == "measured"
        and problem.time_unit == "s"
    )


def require_here(problem: Problem) -> None:
    """Refuse a problem whose costs are those of other machines.

    Raises:
        InputError: the costs are of devices that are not here.
    """
    if problem.costs.source in ELSEWHERE:
        raise InputError(f"this plan cannot be executed: {_of_other_devices(problem)}")


def _of_other_devices(problem: Problem) -> str:
    return f"its costs are '{problem.costs.source}'; place a model on devices of this machine"


def why_no_run(problem: Problem) -> str:
    """The reason why `can_run` is False, and what to do."""
    if problem.source is None:
        return "it has no model; place a model file"
    if is_of_tokens(problem):
        return "it is of a language model, which an engine runs; give argument `engine` llama.cpp"
    if problem.costs.source != "measured" or problem.time_unit != "s":
        return _of_other_devices(problem)
    instead = "place it under execution model 'event'"
    if problem.objective == "throughput":
        instead = "argument `samples` 200 runs a stream of samples through it"
    other = problem.execution_model.name
    return f"its value under '{other}' is not the latency of one sample; {instead}"


def require_one_shape(plan: Plan) -> None:
    """Refuse a plan whose value is that of a mean call.

    Raises:
        InputError: it has several.
    """
    if calls := calls_of(plan.problem.source):
        raise InputError(
            f"this plan is for calls of several shapes ({calls_text(calls)}), and its value is "
            "that of their mean; load it (pw.load), or pw.run it with inputs of one of them"
        )


def can_stream(problem: Problem) -> bool:
    """True for throughput of a model at hand on devices of this machine that were measured."""
    return (
        problem.objective == "throughput"
        and problem.source is not None
        and problem.costs.source == "measured"
        and problem.time_unit == "s"
    )


def why_no_check(plan: Plan) -> str | None:
    """The reason why no check on the hardware is possible; None if it is."""
    if not (can_run(plan) or can_stream(plan.problem)):
        return why_no_run(plan.problem)
    objective = plan.problem.objective
    return f"it measures time, not {objective}" if objective in CHARGED else None


def changed_device(problem: Problem, runtime: str | None) -> str | None:
    """The first device that differs from the one on which the costs were measured, or None.

    Raises:
        UnknownNameError: a device is not there.
    """
    chosen = runtime_named(runtime or default_runtime(problem))
    for device in Members.of(problem.cluster.devices).devices:
        found = chosen.completed(device).fingerprint
        if found != device.fingerprint:
            return (
                f"device '{device.name}' has changed: the plan was measured on "
                f"'{device.fingerprint}', here it is '{found}'; place again"
            )
    return None


def why_away(problem: Problem, model: ModelOfRequest) -> str | None:
    """The reason why this machine cannot check a stored problem; None if it can, or none could.

    Raises:
        InputError: the request asks for such a check, or for a runtime without these devices.
    """
    source = problem.source
    is_stored = model.read.problem is not None and problem.costs.source == "measured"
    if source is None or not is_stored or problem.time_unit != "s":
        return None
    is_module = source.path.startswith(MODULE_PREFIX)
    find: Callable[[str], object] = module_in_memory if is_module else require_existing
    try:
        find(source.path)
        fault = changed_device(problem, None)  # by the runtime that measured
    except InputError as error:
        fault = str(error)
    runtime = model.request.runtime
    if fault is None and runtime is not None:
        try:
            check_devices(problem, runtime)
        except InputError:
            raise InputError(
                f"'{runtime}' cannot check what '{default_runtime(problem)}' measured: leave out "
                f"argument `runtime`, or place '{source.path}' with it"
            ) from None
    if fault is not None and model.request.check:
        raise InputError(f"there can be no check on the hardware: {fault}")
    return fault and f"it needs the model and the devices that were measured: {fault}"


def check_devices(problem: Problem, runtime: str | None) -> None:
    """Refuse devices that differ from those on which the costs were measured.

    Raises:
        UnknownNameError: a device is not there.
        StalePlanError: a device has changed; the message names both.
    """
    if text := changed_device(problem, runtime):
        raise StalePlanError(text)


def require_executable(plan: Plan, runs: int = ROUNDS) -> None:
    """Refuse a plan that cannot be executed here, before its model is loaded.

    Raises:
        ClusterError: a device stands for several.
        InputError: the plan cannot be executed.
        StalePlanError: the devices have changed.
    """
    plan.problem.cluster.require_single_devices("a runtime")
    require_one_shape(plan)
    if not can_run(plan):
        raise InputError(f"this plan cannot be executed: {why_no_run(plan.problem)}")
    if runs < 1:
        raise FieldError("runs", f"must be >= 1, got {runs}")
    check_devices(plan.problem, plan.runtime)


def limited(plan: Plan, timeout: float | None = None) -> AbstractContextManager[None]:
    """Limit the time of each run of a plan and of its contenders, for a block.

    Args:
        timeout: seconds; None is a minute, or 20 times the sum of the plan's op times if that is
            longer.

    Raises:
        InputError: `timeout` is not above 0.
    """
    if timeout is not None and not timeout > 0:
        raise FieldError("timeout", f"must be above 0 s, got {timeout:g}")
    plan = plan.timed  # a value in joules or money says nothing of time
    seconds = plan.problem.costs.seconds
    taken = seconds[np.arange(len(seconds)), plan.placement.device_of]
    predicted = max(plan.value, float(taken.sum()))
    return time_limit(allowed_seconds(predicted) if timeout is None else timeout)


def execute(
    plan: Plan,
    model: LoadedModel,
    *,
    runs: int = ROUNDS,
    boundaries: bool = False,
    inputs: GivenInputs | None = None,
    report: Report = no_report,
) -> RunResult:
    """Execute a plan, compare its outputs and measure it beside the best single device.

    Args:
        plan: that `require_executable` lets pass.
        model: the plan's, loaded by its runtime.
        runs: measured runs of each, >= 1.
        boundaries: compare every tensor that crosses devices, too.
        inputs: as `run` takes them; None draws random ones.

    Raises:
        InputError: an input is not the model's.
    """
    is_by_time = plan.problem.objective not in CHARGED
    plan = plan.timed
    problem = plan.problem
    given = None if inputs is None else checked_inputs(model, inputs)
    report(0.0, "comparing outputs")  # nobody knows how long a runtime loads and compiles
    comparison = compare_outputs(
        problem, plan.placement, model, inputs=given, boundaries=boundaries
    )
    simulator = Simulator(problem)
    each = np.repeat(np.arange(problem.n_devices)[:, None], problem.n_units, axis=1)
    alone = simulator.values(each)
    is_legal = bool(np.isfinite(alone).any())
    index = int(np.argmin(alone if is_legal else problem.costs.seconds.sum(axis=0)))
    best = problem.cluster.devices[index]
    # A device that is the plan itself is not measured twice: on small models its time would differ.
    is_same = is_all_on(plan, index)
    alone_way = alone_contender(simulator, index, model)
    own_way = split_contender(PLAN, simulator, plan.placement, model)
    alone_name = alone_way.name
    values = model.random_inputs(np.random.default_rng(0)) if given is None else given
    ways = (own_way,) if is_same else (own_way, alone_way)
    samples, refusal = _samples(ways, model, values, runs, report, may_refuse=not is_legal)
    alone_seconds = samples[PLAN] if is_same else samples.get(alone_name, [])
    ratio = None if is_same else _ratio(samples[PLAN], alone_seconds)
    others = {alone_name: statistics.median(alone_seconds)} if alone_seconds else {}
    is_slower = is_legal and is_by_time and ratio is not None and ratio[1] > 1.0
    return RunResult(
        comparison,
        statistics.median(samples[PLAN]),
        others.get(alone_name),
        served_seconds(problem, plan.placement),
        best.name,
        is_legal,
        alone_way.predicted if is_legal else None,
        device_memory(plan, model),
        None if plan.measured is None else plan.measured.recommendation,
        tuple(recommendation_lines(plan)),
        best.speed_scatter,
        _measurement(samples[PLAN], others, alone_name if is_slower else PLAN),
        ratio,
        len(np.unique(plan.placement.device_of)) > 1,
        is_by_time,
        refusal,
    )


def _samples(
    ways: Sequence[Contender[CallRunner]],
    model: LoadedModel,
    values: Sequence[HostArray],
    runs: int,
    report: Report,
    *,
    may_refuse: bool,
) -> tuple[dict[str, list[float]], str]:
    """Seconds of each run of contenders in turns, the plan first, and why one was left out.

    Args:
        may_refuse: leave out others that the runtime refuses: they break a limit of memory, which
            is the user's own or the device's.
    """
    refusal = ""
    with ExitStack() as stack:
        with taking_turns(model):
            runners = {ways[0].name: ways[0].open(stack, None)}
            for way in ways[1:]:
                with ExitStack() as own:
                    try:
                        runner = way.open(own, None)
                        if may_refuse:
                            runner.run(values)
                    except RuntimeFailure as error:
                        if not may_refuse or isinstance(error, UnsuitableInputs):
                            raise
                        refusal = str(error)
                        continue
                    runners[way.name] = runner
                    stack.enter_context(own.pop_all())
        seconds = runs * sum(way.predicted or math.inf for way in ways if way.name in runners)
        progress = _measuring_left(report, seconds)
        samples = measure_interleaved(runners, values, rounds=runs, progress=progress)
    return samples, refusal


def _measuring_left(report: Report, seconds: float) -> Callable[[float], None]:
    """Report the time left of the measured rounds, by their pace or the predicted `seconds`."""
    pace = TimeLeft()

    def progress(part: float) -> None:
        left = pace.seconds(part)
        left = seconds * (1.0 - part) if math.isnan(left) else left
        is_known = math.isfinite(left)
        report(part, f"measuring, about {rough_duration(left)} left" if is_known else "measuring")

    progress(0.0)
    return progress


def _ratio(plan: Sequence[float], alone: Sequence[float]) -> tuple[float, float, float] | None:
    if len(alone) < LEAST_FOR_INTERVAL:
        return None
    return median_interval(np.asarray(plan) / np.asarray(alone))


def _measurement(
    plan: Sequence[float], others: Mapping[str, float], recommendation: str
) -> Measurement:
    """The figures of a run as plans keep them; those of earlier runs had another machine."""
    low, median, high = np.quantile(plan, (0.25, 0.5, 0.75)).tolist()
    return Measurement(median, high - low, len(plan), others, recommendation)


def run_trace(plan: Plan, model: LoadedModel, given: GivenInputs | None = None) -> str:
    """A Chrome trace of the run of median length, beside the predicted timeline.

    Args:
        plan, model: as `execute` takes them.
        given: inputs, as `execute` takes them.
    """
    problem = plan.problem
    random = model.random_inputs(np.random.default_rng(0))
    inputs = random if given is None else checked_inputs(model, given)
    runs = []
    with call_runner(problem, plan.placement, model) as runner:
        segments = runner.segments
        runner.run(inputs)
        for _ in range(_TRACED_RUNS):
            seconds = runner.time(1)[0]
            runs.append((seconds, runner.last_timed.spans))
    runs.sort(key=lambda run: run[0])
    spans = runs[len(runs) // 2][1]
    names = problem.graph.op_names
    measured = [
        SegmentRun(segment.device, tuple(names[op] for op in segment.ops), start, end)
        for segment, (start, end) in zip(segments, spans, strict=True)
    ]
    return run_trace_text(problem, Simulator(problem).timeline(plan.placement), measured)


def device_memory(plan: Plan, model: LoadedModel) -> dict[str, tuple[float, float]]:
    """Device name -> predicted and measured peak bytes; empty if the runtime cannot measure them.

    The simulator predicts, the runtime's allocators measure.
    """
    if not isinstance(model, MeasuresMemory):
        return {}
    problem = plan.problem
    segments = served_segments(problem, plan.placement)
    measured = model.memory_peaks(segments, problem.cluster.devices).tolist()
    predicted = Simulator(problem).memory_peaks(plan.placement).tolist()
    pairs = zip(predicted, measured, strict=True)
    return dict(zip(problem.cluster.device_names, pairs, strict=True))

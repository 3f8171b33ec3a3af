"""Plans on the hardware: check against baselines, execute, compare outputs."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

from placewright.core.contender_names import PLAN, contender_of
from placewright.core.execution_models import Event
from placewright.core.plan import Measurement, Plan
from placewright.core.problem import Problem
from placewright.core.source import ModelSource
from placewright.errors import FieldError, InputError, StalePlanError
from placewright.execution.comparing import Comparison, compare_outputs
from placewright.execution.inputs import GivenInputs, checked_inputs
from placewright.execution.members import Members
from placewright.execution.placements import (
    placement_runner,
    taking_turns,
    whole_model_runner,
)
from placewright.execution.runtime import LoadedModel
from placewright.execution.time_limit import allowed_seconds, time_limit
from placewright.files.quantities import format_bytes, format_duration
from placewright.profiling.hardware import measure_interleaved
from placewright.profiling.several_hosts import SOURCE
from placewright.profiling.verdict import LEAST_FOR_INTERVAL, median_interval
from placewright.session.device_memory import DeviceMemory, device_memory
from placewright.session.machine_speed import drifted, speed_note
from placewright.session.models import runnable_source
from placewright.session.recommended import is_all_on, recommendation_lines
from placewright.session.runtimes import default_runtime, runtime_named
from placewright.session.steps import Report, no_report
from placewright.simulation.model import Simulator

ELSEWHERE = (SOURCE, "roofline")  # costs of devices that are not of this machine
ROUNDS = 15


@dataclass(frozen=True)
class RunResult:
    """What `run` found.

    Attributes:
        comparison: outputs beside those of the unsplit model.
        plan_seconds, device_seconds: medians, measured interleaved.
        predicted: seconds.
        device: the best single device that keeps limits and pins, or the fastest where none does.
        device_is_legal: False where none does.
        device_predicted: seconds of that device by the simulator; None where it is not legal.
        memory: peaks per device; empty where the runtime cannot measure them.
        device_scatter: of that device's calibration, see `core.cluster.Device.speed_scatter`.
        measurement: the same figures as plans keep them.
        ratio: the plan's seconds over that device's, median over rounds with its 95 % interval;
            None where the plan is that device, or there were too few rounds for an interval.
        is_split: the plan uses several devices.
        recommendation: what was recommended when the plan was measured; None where it never was.
        advice: lines that say how to run that, where it is not what the search found.
    """

    comparison: Comparison
    plan_seconds: float
    device_seconds: float
    predicted: float
    device: str
    device_is_legal: bool = True
    device_predicted: float | None = None
    memory: tuple[DeviceMemory, ...] = ()
    recommendation: str | None = None
    advice: tuple[str, ...] = ()
    device_scatter: float | None = None
    measurement: Measurement | None = None
    ratio: tuple[float, float, float] | None = None
    is_split: bool = False

    @property
    def equal(self) -> bool:
        """True when outputs are equal within what precision or the runtime's scatter explains."""
        return self.comparison.equal

    @property
    def changed_devices(self) -> dict[str, float]:
        """Devices that are no longer as fast as predicted -> measured over predicted seconds."""
        if self.device_predicted is None:
            return {}
        name = self.device
        return drifted(
            {name: self.device_predicted}, {name: self.device_seconds}, {name: self.device_scatter}
        )

    @property
    def what(self) -> str:
        """What was compared."""
        updated = self.comparison.n_updated
        if self.comparison.random:
            return "other outputs"
        return f"loss and {updated} updated tensors" if updated else "outputs"

    @property
    def verdict(self) -> str:
        """One sentence: the measured plan against the best single device; "" without a ratio."""
        if self.ratio is None or not self.device_is_legal:
            return ""
        ratio, low, high = self.ratio
        alone = f"'{self.device}' alone"
        measured = f"of its time (95 % interval {low:.2f} to {high:.2f})"
        if low > 1.0:
            advice = "slower, do not split" if self.is_split else "slower"
            again = "place again with the check on the hardware for a plan that holds it"
            return f"{advice}: use {alone}; the plan takes {ratio:.2f} {measured}; {again}"
        if high < 1.0:
            return f"faster than {alone}: the plan takes {ratio:.2f} {measured}"
        return f"as fast as {alone} within noise: the plan takes {ratio:.2f} {measured}"

    def data(self) -> dict[str, Any]:
        """As a JSON document."""
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
            "predicted": self.predicted,
            "prediction_error": self.predicted / self.plan_seconds - 1.0,
            "best_single_device": self.device,
            "best_single_device_is_legal": self.device_is_legal,
            "best_single_device_measured": self.device_seconds,
            "best_single_device_predicted": self.device_predicted,
            "plan_over_best_single_device": self.ratio,
            "verdict": self.verdict,
            "memory": {
                one.device: {"predicted": one.predicted, "measured": one.measured}
                for one in self.memory
            },
            "changed_devices": self.changed_devices,
            "recommendation": self.recommendation,
            "advice": list(self.advice),
        }

    def lines(self) -> list[str]:
        """As text."""
        word = "equal" if self.equal else "NOT EQUAL"
        error = self.predicted / self.plan_seconds - 1.0
        fault = "" if self.device_is_legal else " (breaks a limit or a pin)"
        alone, note = format_duration(self.device_seconds), ""
        if self.device_predicted is not None:
            off = self.device_predicted / self.device_seconds - 1.0
            alone += f", predicted {format_duration(self.device_predicted)} ({off:+.1%})"
            note = speed_note(self.changed_devices)
        return [
            f"{self.what} {word} to the unsplit model: {self.comparison.text}",
            *(
                f"the output of '{name}' is random: two runs of the unsplit model differ, so that "
                "it was not compared"
                for name in self.comparison.random
            ),
            f"measured {format_duration(self.plan_seconds)}, predicted "
            f"{format_duration(self.predicted)} ({error:+.1%})",
            f"best single device '{self.device}'{fault}: {alone}",
            *filter(None, [self.verdict, note]),
            *(
                f"peak memory of '{one.device}': measured {format_bytes(one.measured)}, predicted "
                f"{format_bytes(one.predicted)} ({one.predicted / one.measured - 1.0:+.1%})"
                for one in self.memory
                if one.measured > 0
            ),
            *self.advice,
        ]


def can_run(plan: Plan) -> bool:
    """True when the plan's model is at hand and its execution model is what runtimes do."""
    problem = plan.problem
    return (
        problem.source is not None
        and isinstance(problem.execution_model, Event)
        and problem.costs.source == "measured"
        and problem.time_unit == "s"
    )


def require_here(problem: Problem) -> None:
    """Refuse what cannot run on this machine at all.

    Raises:
        InputError: the costs are of devices that are not here.
    """
    if problem.costs.source in ELSEWHERE:
        raise InputError(f"this plan cannot be executed: {_of_other_devices(problem)}")


def _of_other_devices(problem: Problem) -> str:
    return f"its costs are '{problem.costs.source}'; place a model on devices of this machine"


def _why_not(problem: Problem) -> str:
    """Why `can_run` says no, and what to do."""
    if problem.source is None:
        return "it has no model; place a model file"
    if not isinstance(problem.execution_model, Event):
        other = problem.execution_model.name
        return (
            f"its value under '{other}' is not the latency of one sample; "
            "argument `samples` 200 runs a stream of samples through it"
        )
    return _of_other_devices(problem)


def loaded_model(problem: Problem, runtime: str | None) -> LoadedModel:
    """The model behind a problem, read by the runtime.

    Raises:
        InputError: the problem has no model.
        StalePlanError: the model has changed since.
    """
    source = require_model(problem)
    chosen = runtime_named(runtime or default_runtime(problem))
    return chosen.load(runnable_source(source, problem.graph), problem.graph)


def require_model(problem: Problem) -> ModelSource:
    """Where the model behind a problem is.

    Raises:
        InputError: the problem has no model.
    """
    if problem.source is None:
        raise InputError("this plan has no model to run; place a model file to get one that has")
    return problem.source


def check_devices(problem: Problem, runtime: str | None) -> None:
    """Refuse to execute on other hardware than the costs were measured on.

    Raises:
        UnknownNameError: a device is not there.
        StalePlanError: a device is another one now; the message says what it was and is.
    """
    chosen = runtime_named(runtime or default_runtime(problem))
    for device in Members.of(problem.cluster.devices).devices:
        found = chosen.completed(device).fingerprint
        if found != device.fingerprint:
            raise StalePlanError(
                f"device '{device.name}' has changed: the plan was measured on "
                f"'{device.fingerprint}', here it is '{found}'; place again"
            )


def require_executable(plan: Plan, runs: int = ROUNDS) -> None:
    """Refuse a plan that cannot be executed here, before its model is loaded.

    Raises:
        ClusterError: a device stands for several.
        InputError: the plan cannot be executed.
        StalePlanError: the devices have changed.
    """
    plan.problem.cluster.require_single_devices("a runtime")
    if not can_run(plan):
        raise InputError(f"this plan cannot be executed: {_why_not(plan.problem)}")
    if runs < 1:
        raise FieldError("runs", f"must be >= 1, got {runs}")
    check_devices(plan.problem, plan.runtime)


def limited(plan: Plan, timeout: float | None = None) -> AbstractContextManager[None]:
    """The time that each run of a plan, and of what it is measured beside, may take.

    Args:
        plan: of a model.
        timeout: seconds; None is a minute, or 20 times as long as the plan's ops take one after
            the other where that is longer.

    Raises:
        InputError: `timeout` is not above 0.
    """
    if timeout is not None and not timeout > 0:
        raise FieldError("timeout", f"must be above 0 s, got {timeout:g}")
    seconds = plan.problem.costs.seconds
    taken = seconds[np.arange(len(seconds)), plan.placement.device_of]
    predicted = max(plan.value, float(taken.sum()))
    return time_limit(allowed_seconds(predicted) if timeout is None else timeout)


def execute(
    plan: Plan,
    model: LoadedModel | None = None,
    *,
    runs: int = ROUNDS,
    boundaries: bool = False,
    inputs: GivenInputs | None = None,
    report: Report = no_report,
) -> RunResult:
    """Execute a plan, compare its outputs and measure it beside the best single device.

    Args:
        plan: what is executed.
        model: the plan's, loaded by its runtime; None loads it.
        runs: measured runs of each, >= 1.
        boundaries: compare every tensor that crosses devices, too.
        inputs: as `run` takes them; None draws random ones.
        report: told what is being done.

    Raises:
        ClusterError: a device stands for several.
        InputError: the plan cannot be executed, or an input is not the model's.
        StalePlanError: the model or the devices have changed.
    """
    require_executable(plan, runs)
    problem = plan.problem
    model = model or loaded_model(problem, plan.runtime)
    given = None if inputs is None else checked_inputs(model, inputs)
    report(0.1, "comparing outputs")
    comparison = compare_outputs(
        problem, plan.placement, model, inputs=given, boundaries=boundaries
    )
    each = np.repeat(np.arange(problem.n_devices)[:, None], problem.n_units, axis=1)
    alone = Simulator(problem).values(each)
    is_legal = bool(np.isfinite(alone).any())
    index = int(np.argmin(alone if is_legal else problem.costs.seconds.sum(axis=0)))
    best = problem.cluster.devices[index]
    alone_name = contender_of(best.name)
    values = model.random_inputs(np.random.default_rng(0)) if given is None else given
    with ExitStack() as stack:
        with taking_turns(model):
            mine = stack.enter_context(placement_runner(problem, plan.placement, model))
            other = stack.enter_context(whole_model_runner(model, best))
        samples = measure_interleaved({PLAN: mine, alone_name: other}, values, rounds=runs)
    return RunResult(
        comparison,
        statistics.median(samples[PLAN]),
        statistics.median(samples[alone_name]),
        plan.value,
        best.name,
        is_legal,
        float(alone[index]) if is_legal else None,
        device_memory(plan, model),
        None if plan.measured is None else plan.measured.recommendation,
        tuple(recommendation_lines(plan)),
        best.speed_scatter,
        _measurement(plan, alone_name, samples),
        _ratio(samples[PLAN], samples[alone_name], is_same=is_all_on(plan, index)),
        len(np.unique(plan.placement.device_of)) > 1,
    )


def _ratio(
    plan: Sequence[float], alone: Sequence[float], *, is_same: bool
) -> tuple[float, float, float] | None:
    if is_same or len(plan) < LEAST_FOR_INTERVAL:
        return None
    return median_interval(np.asarray(plan) / np.asarray(alone))


def _measurement(plan: Plan, device: str, samples: Mapping[str, Sequence[float]]) -> Measurement:
    """What a run says of its plan, as plans keep it."""
    low, median, high = np.quantile(samples[PLAN], (0.25, 0.5, 0.75)).tolist()
    other = statistics.median(samples[device])
    before = dict(plan.measured.baselines) if plan.measured else {}
    faster = device if other < median else PLAN
    return Measurement(
        median,
        high - low,
        len(samples[PLAN]),
        {**before, device: other},
        plan.measured.recommendation if plan.measured else faster,
    )

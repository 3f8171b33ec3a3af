"""Plans on the hardware: check against baselines, execute, compare outputs."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from placewright.core.placement import Placement
from placewright.core.plan import Measurement, Plan
from placewright.core.problem import Problem
from placewright.errors import InputError, MismatchError, StalePlanError
from placewright.files.quantities import format_bytes, format_duration
from placewright.placers.registry import make_placer
from placewright.profiling.hardware import (
    Comparison,
    compare_outputs,
    measure_interleaved,
    measured_values,
    placement_runner,
    placement_segments,
    taking_turns,
    whole_model_runner,
)
from placewright.profiling.verdict import PLAN, Verdict, judge
from placewright.runtimes.base import LoadedModel, MeasuresMemory
from placewright.runtimes.runner import ConcurrentRunner
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.model import Simulator
from placewright.workflow.models import runnable_source
from placewright.workflow.problems import Report, no_report
from placewright.workflow.runtimes import default_runtime, runtime_named

ROUNDS = 15
DEFAULT_NAME = "all cores"
EVEN_NAME = "even split"


@dataclass(frozen=True)
class Table:
    """The table that `place` prints."""

    title: str
    columns: tuple[str, ...]
    rows: list[list[str]]
    verdict: str


@dataclass(frozen=True)
class DeviceMemory:
    """Peak memory of one device in bytes.

    Attributes:
        device: its name.
        predicted: by the simulator.
        measured: by the allocator.
    """

    device: str
    predicted: float
    measured: float


@dataclass(frozen=True)
class RunResult:
    """What `run` found.

    Attributes:
        comparison: outputs beside those of the unsplit model.
        plan_seconds, device_seconds: medians, measured interleaved.
        predicted: seconds.
        device: the best single device that keeps limits and pins, or the fastest where none does.
        device_is_legal: False where none does.
        memory: peaks per device; empty where the runtime cannot measure them.
    """

    comparison: Comparison
    plan_seconds: float
    device_seconds: float
    predicted: float
    device: str
    device_is_legal: bool = True
    memory: tuple[DeviceMemory, ...] = ()

    @property
    def equal(self) -> bool:
        """True when outputs are equal within the precision's tolerance."""
        return self.comparison.equal

    @property
    def what(self) -> str:
        """What was compared."""
        updated = self.comparison.n_updated
        return f"loss and {updated} updated tensors" if updated else "outputs"

    def data(self) -> dict[str, Any]:
        """As a JSON document."""
        return {
            "equal": self.equal,
            "updated_tensors": self.comparison.n_updated,
            "relative_error": self.comparison.error,
            "tolerance": self.comparison.tolerance,
            "worst_op": self.comparison.worst,
            "measured": self.plan_seconds,
            "predicted": self.predicted,
            "prediction_error": self.predicted / self.plan_seconds - 1.0,
            "best_single_device": self.device,
            "best_single_device_is_legal": self.device_is_legal,
            "best_single_device_measured": self.device_seconds,
            "memory": {
                one.device: {"predicted": one.predicted, "measured": one.measured}
                for one in self.memory
            },
        }

    def lines(self) -> list[str]:
        """As text."""
        word = "equal" if self.equal else "NOT EQUAL"
        error = self.predicted / self.plan_seconds - 1.0
        fault = "" if self.device_is_legal else " (breaks a limit or a pin)"
        return [
            f"{self.what} {word} to the unsplit model: relative error {self.comparison.error:.2g} "
            f"(tolerance {self.comparison.tolerance:.2g}, worst at '{self.comparison.worst}')",
            f"measured {format_duration(self.plan_seconds)}, predicted "
            f"{format_duration(self.predicted)} ({error:+.1%})",
            f"best single device '{self.device}'{fault}: {format_duration(self.device_seconds)}",
            *(
                f"peak memory of '{one.device}': measured {format_bytes(one.measured)}, predicted "
                f"{format_bytes(one.predicted)} ({one.predicted / one.measured - 1.0:+.1%})"
                for one in self.memory
                if one.measured > 0
            ),
        ]


def can_run(plan: Plan) -> bool:
    """True when the plan's model is at hand and its execution model is what runtimes do."""
    problem = plan.problem
    return (
        problem.source is not None
        and problem.execution_model == "event"
        and problem.costs.source == "measured"
        and problem.time_unit == "s"
    )


def _why_not(problem: Problem) -> str:
    """Why `can_run` says no, and what to do."""
    if problem.source is None:
        return "it has no model; place a model file"
    if problem.execution_model != "event":
        return (
            f"runtimes do one sample after another, and its value under "
            f"'{problem.execution_model}' is another; place for latency or training to run a plan"
        )
    return f"its costs are '{problem.costs.source}'; place a model on devices of this machine"


def loaded_model(problem: Problem, runtime: str | None) -> LoadedModel:
    """The model behind a problem, read by the runtime.

    Raises:
        InputError: the problem has no model.
        StalePlanError: the model has changed since.
    """
    if problem.source is None:
        raise InputError("this plan has no model to run; place a model file to get one that has")
    chosen = runtime_named(runtime or default_runtime(problem))
    return chosen.load(runnable_source(problem.source), problem.graph)


def check_devices(problem: Problem, runtime: str | None) -> None:
    """Refuse to execute on other hardware than the costs were measured on.

    Raises:
        UnknownNameError: a device is not there.
        StalePlanError: a device is another one now; the message says what it was and is.
    """
    chosen = runtime_named(runtime or default_runtime(problem))
    for device in problem.cluster.devices:
        found = chosen.completed(device).fingerprint
        if found != device.fingerprint:
            raise StalePlanError(
                f"device '{device.name}' has changed: the plan was measured on "
                f"'{device.fingerprint}', here it is '{found}'; place again"
            )


def measure_of(
    problem: Problem, runtime: str | None, evaluator: str
) -> Callable[[Placement], float] | None:
    """What ``--evaluator`` asks for: None simulates.

    Raises:
        InputError: neither ``simulated`` nor ``measured``.
    """
    if evaluator not in ("simulated", "measured"):
        raise InputError(f"--evaluator is simulated or measured, got '{evaluator}'")
    if evaluator == "simulated":
        return None
    return measured_values(problem, loaded_model(problem, runtime))


def check_on_hardware(
    plan: Plan, report: Report = no_report, *, rounds: int = ROUNDS
) -> tuple[Plan, Table]:
    """Run the plan beside every single device, the runtime's default and an even split.

    Returns:
        The plan with its measurement, and a table with the verdict.

    Raises:
        MismatchError: outputs differ from the unsplit model's.
    """
    problem = plan.problem
    model = loaded_model(problem, plan.runtime)
    report(0.8, "comparing outputs")
    comparison = compare_outputs(problem, plan.placement, model)
    if not comparison.equal:
        raise MismatchError(
            f"outputs differ from the unsplit model: relative error {comparison.error:.3g} at op "
            f"'{comparison.worst}', tolerance {comparison.tolerance:.3g}; the plan was not written"
        )
    with ExitStack() as stack:
        with taking_turns(model):
            contenders = _contenders(plan, model, stack)
        inputs = model.random_inputs(np.random.default_rng(0))
        samples = measure_interleaved(
            contenders.runners,
            inputs,
            rounds=rounds,
            progress=lambda done: report(0.8 + 0.2 * done / rounds, "measuring on the hardware"),
        )
    names = [name for name in contenders.runners if name != PLAN]
    singles = [name for name in names if name in problem.cluster.device_index]
    singles.sort(key=lambda name: statistics.median(samples[name]))  # all equally simple
    simplest = [*singles, *(name for name in names if name not in singles)]
    verdict = judge(samples, simplest)
    return _measured(plan, verdict), _table(plan, verdict, contenders, comparison)


@dataclass(frozen=True)
class _Contenders:
    """Ways to run a plan's model.

    Attributes:
        runners: of single devices, the runtime's default, an even split and the plan.
        predicted: seconds of those that the simulator knows.
        left_out: single devices that break a constraint, and which.
    """

    runners: dict[str, ConcurrentRunner]
    predicted: dict[str, float]
    left_out: dict[str, str]


def _contenders(plan: Plan, model: LoadedModel, stack: ExitStack) -> _Contenders:
    """All ways that the plan is measured beside; `stack` closes their runners."""
    problem, simulator = plan.problem, Simulator(plan.problem)
    found = _Contenders({}, {}, {})
    runners, predicted = found.runners, found.predicted
    for device, one in enumerate(problem.cluster.devices):
        if not np.isfinite(problem.costs.seconds[:, device]).all():
            continue
        everything = Placement.of(np.full(problem.n_units, device))
        violation = simulator.violation(everything)
        if violation is not None:
            found.left_out[one.name] = violation.message
            continue
        runners[one.name] = stack.enter_context(whole_model_runner(model, one))
        predicted[one.name] = simulator.value(everything)
    whole = _whole_processor(plan)
    if whole is not None:
        runners[DEFAULT_NAME] = stack.enter_context(whole_model_runner(model, whole))
    even = _even_split(problem)
    if even is not None:
        runners[EVEN_NAME] = stack.enter_context(placement_runner(problem, even, model))
        predicted[EVEN_NAME] = simulator.value(even)
    runners[PLAN] = stack.enter_context(placement_runner(problem, plan.placement, model))
    predicted[PLAN] = plan.value
    return found


def execute(
    plan: Plan, *, runs: int = ROUNDS, boundaries: bool = False, report: Report = no_report
) -> RunResult:
    """Execute a plan, compare its outputs and measure it beside the best single device.

    Raises:
        ClusterError: a device stands for several.
        InputError: the plan cannot be executed.
        StalePlanError: the model or the devices have changed.
    """
    plan.problem.cluster.require_single_devices("a runtime")
    if not can_run(plan):
        raise InputError(f"this plan cannot be executed: {_why_not(plan.problem)}")
    if runs < 1:
        raise InputError(f"--runs must be >= 1, got {runs}")
    problem = plan.problem
    check_devices(problem, plan.runtime)
    model = loaded_model(problem, plan.runtime)
    report(0.1, "comparing outputs")
    comparison = compare_outputs(problem, plan.placement, model, boundaries=boundaries)
    each = np.repeat(np.arange(problem.n_devices)[:, None], problem.n_units, axis=1)
    alone = Simulator(problem).values(each)
    is_legal = bool(np.isfinite(alone).any())
    index = int(np.argmin(alone if is_legal else problem.costs.seconds.sum(axis=0)))
    best = problem.cluster.devices[index]
    inputs = model.random_inputs(np.random.default_rng(0))
    with ExitStack() as stack:
        with taking_turns(model):
            mine = stack.enter_context(placement_runner(problem, plan.placement, model))
            other = stack.enter_context(whole_model_runner(model, best))
        samples = measure_interleaved({PLAN: mine, best.name: other}, inputs, rounds=runs)
    return RunResult(
        comparison,
        statistics.median(samples[PLAN]),
        statistics.median(samples[best.name]),
        plan.value,
        best.name,
        is_legal,
        _memory(plan, model),
    )


def _memory(plan: Plan, model: LoadedModel) -> tuple[DeviceMemory, ...]:
    if not isinstance(model, MeasuresMemory):
        return ()
    problem = plan.problem
    devices = problem.cluster.devices
    segments = placement_segments(problem, plan.placement)
    measured = model.memory_peaks(segments, devices).tolist()
    predicted = Simulator(problem).memory_peaks(plan.placement).tolist()
    names = problem.cluster.device_names
    return tuple(map(DeviceMemory, names, predicted, measured))


def _whole_processor(plan: Plan) -> Any:
    """The runtime's default: the CPU with all threads, in the precision of the first device."""
    names = plan.problem.cluster.device_names
    if "cpu" in names or not any(name.startswith("cpu:") for name in names):
        return None
    whole = next((one for one in runtime_named(plan.runtime).discover() if one.name == "cpu"), None)
    hint = "INFERENCE_PRECISION_HINT"
    first = plan.problem.cluster.devices[0].options
    if whole is None or hint not in first:
        return whole
    return replace(whole, options={**whole.options, hint: first[hint]})


def _even_split(problem: Problem) -> Placement | None:
    evaluator = Evaluator(problem)
    placer = make_placer("even-split")
    if placer.supports(problem):
        return None
    return placer.place(problem, evaluator, np.random.default_rng(0)).placement


def _measured(plan: Plan, verdict: Verdict) -> Plan:
    mine = verdict.contenders[PLAN]
    others = {name: c.median for name, c in verdict.contenders.items() if name != PLAN}
    return replace(
        plan,
        measured=Measurement(mine.median, mine.iqr, mine.runs, others, verdict.recommendation),
    )


def _table(plan: Plan, verdict: Verdict, contenders: _Contenders, comparison: Comparison) -> Table:
    rows = [[name, "-", reason, "-", "-"] for name, reason in contenders.left_out.items()]
    for name, contender in verdict.contenders.items():
        expected = contenders.predicted.get(name)
        rows.append(
            [
                f"{name} ({plan.placer.name})" if name == PLAN else name,
                "-" if expected is None else f"{expected * 1e3:.2f} ms",
                f"{contender.median * 1e3:.2f} ms",
                f"{contender.iqr * 1e3:.2f} ms",
                "-" if expected is None else f"{expected / contender.median - 1:+.1%}",
            ]
        )
    rows.append(["lower bound", f"{plan.lower_bound * 1e3:.2f} ms", "-", "-", "-"])
    devices = plan.problem.cluster.device_names
    singles = [c.median for name, c in verdict.contenders.items() if name in devices]
    reached = ""
    is_split = len(np.unique(plan.placement.device_of)) > 1
    gained = min(singles, default=0.0) - verdict.contenders[PLAN].median
    if is_split and gained > 0 and min(singles) > plan.lower_bound:
        share = gained / (min(singles) - plan.lower_bound)
        reached = f"; {share:.0%} of what a perfect split could gain over the best single device"
    text = (
        f"outputs equal to the unsplit model (relative error {comparison.error:.1g}, tolerance "
        f"{comparison.tolerance:.1g}){reached}\n{verdict.text}"
    )
    columns = ("contender", "predicted", "measured", "spread", "prediction error")
    title = "Training step" if plan.problem.objective == "training" else "Latency"
    return Table(title, columns, rows, text)

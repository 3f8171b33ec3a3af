"""A plan beside simpler ways to run its model, measured, with a verdict: what `place` prints."""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from placewright.core.placement import Placement
from placewright.core.plan import Measurement, Plan
from placewright.core.problem import Problem
from placewright.errors import MismatchError
from placewright.placers.registry import make_placer
from placewright.profiling.hardware import (
    Comparison,
    compare_outputs,
    measure_interleaved,
    placement_runner,
    taking_turns,
    whole_model_runner,
)
from placewright.profiling.verdict import PLAN, Verdict, judge
from placewright.runtimes.base import LoadedModel
from placewright.runtimes.runner import ConcurrentRunner
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.model import Simulator
from placewright.workflow.machine_speed import is_notable, slowdown, speed_note
from placewright.workflow.problems import Report, no_report
from placewright.workflow.running import ROUNDS, loaded_model
from placewright.workflow.runtimes import runtime_named

_MEASURING_SECONDS = 60.0  # of all contenders, where a request is so slow that rounds are left out
DEFAULT_NAME = "all cores"
EVEN_NAME = "even split"


@dataclass(frozen=True)
class Table:
    """The table that `place` prints."""

    title: str
    columns: tuple[str, ...]
    rows: list[list[str]]
    verdict: str


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
            seconds=_MEASURING_SECONDS,
            progress=lambda part: report(0.8 + 0.2 * part, "measuring on the hardware"),
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
        everything = Placement.on_one_device(problem.n_units, device)
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
    if placer.why_not(problem) is not None:
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
    alone = {name: c.median for name, c in verdict.contenders.items() if name in devices}
    singles, factor = list(alone.values()), slowdown(contenders.predicted, alone)
    reached = ""
    is_split = len(np.unique(plan.placement.device_of)) > 1
    gained = min(singles, default=0.0) - verdict.contenders[PLAN].median
    # The bound is predicted: beside seconds of a machine that has changed it says nothing.
    if is_split and gained > 0 and min(singles) > plan.lower_bound and not is_notable(factor):
        share = gained / (min(singles) - plan.lower_bound)
        reached = f"; {share:.0%} of what a perfect split could gain over the best single device"
    text = (
        f"outputs equal to the unsplit model (relative error {comparison.error:.1g}, tolerance "
        f"{comparison.tolerance:.1g}){reached}\n{verdict.text}"
    )
    text = "\n".join(filter(None, (text, speed_note(factor))))
    columns = ("contender", "predicted", "measured", "spread", "prediction error")
    title = "Training step" if plan.problem.objective == "training" else "Latency"
    return Table(title, columns, rows, text)

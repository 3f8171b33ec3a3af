"""A plan beside simpler ways to run its model, measured, with a verdict: what `place` prints."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from placewright.core.contender_names import (
    ALL_CORES,
    EVEN_SPLIT,
    LOWER_BOUND,
    PLAN,
    contender_of,
    device_of,
)
from placewright.core.deadline import NEVER, Deadline
from placewright.core.plan import Plan
from placewright.errors import MismatchError
from placewright.execution.comparing import Comparison, compare_outputs
from placewright.execution.placements import placement_runner, taking_turns, whole_model_runner
from placewright.execution.runner import ConcurrentRunner
from placewright.execution.runtime import LoadedModel
from placewright.profiling.hardware import measure_interleaved
from placewright.profiling.verdict import Verdict, judge
from placewright.session.comparable import Ways, ways_to_run
from placewright.session.machine_speed import drifted, speed_note
from placewright.session.recommended import held_lines, recommended_plan
from placewright.session.running import ROUNDS, limited
from placewright.session.steps import Report, no_report

_MEASURING_SECONDS = 60.0  # of all contenders, where a request is so slow that rounds are left out


@dataclass(frozen=True)
class Table:
    """The table that `place` prints."""

    title: str
    columns: tuple[str, ...]
    rows: list[list[str]]
    verdict: str


def check_on_hardware(
    plan: Plan,
    model: LoadedModel,
    report: Report = no_report,
    *,
    rounds: int = ROUNDS,
    deadline: Deadline = NEVER,
) -> tuple[Plan, Table]:
    """Run the plan beside every single device, the runtime's default and an even split.

    Args:
        plan: what the search found.
        model: the plan's, loaded by its runtime.
        report: told what is being done.
        rounds: of measuring.
        deadline: of everything.

    Returns:
        The plan with the recommended placement (the best one, where the runtime's default beats
        all placements) and its measurement, and a table with the verdict.

    Raises:
        MismatchError: outputs differ from the unsplit model's.
        OutOfTime: the deadline passed before enough rounds were measured.
    """
    problem = plan.problem
    deadline.require("outputs were compared")
    report(0.0, "comparing outputs")
    with limited(plan):
        comparison = compare_outputs(problem, plan.placement, model)
    if not comparison.equal:
        raise MismatchError(
            f"outputs differ from the unsplit model: {comparison.text}; the plan was not written"
        )
    ways = ways_to_run(plan)
    with limited(plan):
        samples = _measured(plan, ways, model, rounds, report, deadline)
    ways, chosen, verdict = _judged(plan, ways, samples, model)
    found = recommended_plan(plan, ways, chosen, verdict)
    return found, _table(plan, found, ways, verdict, comparison)


def _measured(
    plan: Plan, ways: Ways, model: LoadedModel, rounds: int, report: Report, deadline: Deadline
) -> dict[str, list[float]]:
    """Seconds of each round of each way; single devices run the unsplit model."""
    problem = plan.problem
    runners: dict[str, ConcurrentRunner] = {}
    with ExitStack() as stack:
        with taking_turns(model):
            for name, placement in ways.placements.items():
                deadline.require(f"'{name}' was compiled")
                one = device_of(name, problem.cluster.device_names)
                runners[name] = stack.enter_context(
                    placement_runner(problem, placement, model)
                    if one is None
                    else whole_model_runner(model, problem.cluster.devices[one])
                )
            if ways.whole is not None:
                runners[ALL_CORES] = stack.enter_context(whole_model_runner(model, ways.whole))
        return measure_interleaved(
            runners,
            model.random_inputs(np.random.default_rng(0)),
            rounds=rounds,
            seconds=_MEASURING_SECONDS,
            deadline=deadline,
            progress=lambda part: report(0.3 + 0.7 * part, "measuring on the hardware"),
        )


def _judged(
    plan: Plan, ways: Ways, samples: dict[str, list[float]], model: LoadedModel
) -> tuple[Ways, str, Verdict]:
    """What is left of the ways without those that compute other outputs, the placement to write,
    and the verdict over all."""
    while True:
        verdict = _verdict(plan, ways, samples)
        chosen = _verdict(plan, ways, {n: samples[n] for n in ways.placements}).recommendation
        if chosen == ways.searched:
            return ways, chosen, verdict
        comparison = compare_outputs(plan.problem, ways.placements[chosen], model)
        if comparison.equal:
            return ways, chosen, verdict
        ways = ways.without(
            chosen,
            f"its outputs differ from the unsplit model's (relative error {comparison.error:.2g}, "
            f"tolerance {comparison.tolerance:.2g})",
        )
        samples = {name: row for name, row in samples.items() if name != chosen}


def _verdict(plan: Plan, ways: Ways, samples: Mapping[str, Sequence[float]]) -> Verdict:
    devices = plan.problem.cluster.device_names
    singles = [name for name in ways.placements if device_of(name, devices) is not None]
    singles.sort(key=lambda name: statistics.median(samples[name]))  # all equally simple
    simplest = [*singles, *(name for name in (ALL_CORES, EVEN_SPLIT) if name in samples)]
    return judge(samples, simplest, searched=ways.searched, splits=(EVEN_SPLIT,))


def _table(plan: Plan, found: Plan, ways: Ways, verdict: Verdict, comparison: Comparison) -> Table:
    rows = [[name, "-", "not comparable", "-", "-"] for name in ways.left_out]
    for name in sorted(verdict.contenders, key=_position):
        contender, expected = verdict.contenders[name], ways.predicted.get(name)
        rows.append(
            [
                _label(name, ways.searched, plan.placer.name),
                "-" if expected is None else f"{expected * 1e3:.2f} ms",
                f"{contender.median * 1e3:.2f} ms",
                f"{contender.iqr * 1e3:.2f} ms",
                "-" if expected is None else f"{expected / contender.median - 1:+.1%}",
            ]
        )
    rows.append([LOWER_BOUND, f"{plan.lower_bound * 1e3:.2f} ms", "-", "-", "-"])
    devices = {contender_of(device.name): device for device in plan.problem.cluster.devices}
    alone = {name: c.median for name, c in verdict.contenders.items() if name in devices}
    scatter = {name: device.speed_scatter for name, device in devices.items()}
    singles, changed = list(alone.values()), drifted(ways.predicted, alone, scatter)
    reached = ""
    is_split = len(np.unique(plan.placement.device_of)) > 1
    gained = min(singles, default=0.0) - verdict.contenders[ways.searched].median
    # The bound is predicted: beside seconds of a machine that has changed it says nothing.
    if is_split and gained > 0 and min(singles) > plan.lower_bound and not changed:
        share = gained / (min(singles) - plan.lower_bound)
        reached = f"; {share:.0%} of what a perfect split could gain over the best single device"
    lines = [
        *(f"'{name}' is not comparable: {reason}" for name, reason in ways.left_out.items()),
        f"outputs equal to the unsplit model (relative error {comparison.error:.1g}, tolerance "
        f"{comparison.tolerance:.1g}){reached}",
        verdict.text,
        *held_lines(found),
        *filter(None, [speed_note(changed)]),
    ]
    columns = ("contender", "predicted", "measured", "spread", "prediction error")
    title = "Training step" if plan.problem.objective == "training" else "Latency"
    return Table(title, columns, rows, "\n".join(lines))


def _position(name: str) -> int:
    """The runtime's default stands behind single devices, before splits."""
    return {ALL_CORES: 1, EVEN_SPLIT: 2, PLAN: 3}.get(name, 0)


def _label(name: str, searched: str, placer: str) -> str:
    if name != searched:
        return name
    return f"searched ({placer})" if name == PLAN else f"{name}, searched ({placer})"

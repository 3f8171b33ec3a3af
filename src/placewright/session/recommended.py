"""The plan that is written: the recommended placement, with the searched one beside it."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np

from placewright.core.contender_names import (
    ALL_CORES,
    EVEN_SPLIT,
    PLAN,
    SEARCHED,
    UNSPLIT_STREAMS,
    device_of,
)
from placewright.core.placement import Placement
from placewright.core.plan import Measurement, Plan, Searched
from placewright.core.solution import Solution
from placewright.files.quantities import format_duration
from placewright.profiling.verdict import Verdict
from placewright.report.predicted_gain import predicted_gain
from placewright.session.comparable import Ways, whole_processor, why_default_is_not_comparable
from placewright.session.runtimes import default_runtime_name, runtime_named
from placewright.session.search import plan_of
from placewright.simulation.evaluator import CLOSED
from placewright.simulation.model import Simulator


def recommended_plan(plan: Plan, ways: Ways, chosen: str, verdict: Verdict) -> Plan:
    """The plan with the placement `chosen` and its measurement.

    Args:
        plan: as the search made it.
        ways: what was measured.
        chosen: the best of ``ways.placements``.
        verdict: over all, the runtime's default included; it names what to run.
    """
    mine = verdict.contenders[chosen]
    others = {
        SEARCHED if name == PLAN else name: one.median
        for name, one in verdict.contenders.items()
        if name != chosen
    }
    measured = Measurement(mine.median, mine.iqr, mine.runs, others, verdict.recommendation)
    if chosen == ways.searched:
        return replace(plan, measured=measured)
    found = _holding(plan, ways.placements[chosen], ways.predicted[chosen])
    return replace(found, measured=measured)


def predicted_plan(plan: Plan) -> Plan:
    """The plan with what its verdict recommends where nothing was measured.

    A split whose predicted gain is not larger than predictions are off by gives way to the best
    device that may run everything; the plan keeps it in `searched`.

    Args:
        plan: as the search made it.
    """
    gain = predicted_gain(plan.problem, plan.placement, plan.value)
    if plan.measured is not None or gain is None or gain.is_sure:
        return plan
    alone = Placement.on_one_device(plan.problem.n_units, gain.device)
    found = _holding(plan, alone, Simulator(plan.problem).value(alone))
    return replace(found, left_out=plan.left_out, in_flight=plan.in_flight)


def _holding(plan: Plan, placement: Placement, value: float) -> Plan:
    """The plan with another placement, and what the search found beside it."""
    is_best = plan.status == "optimal" and value <= plan.value * (1.0 + CLOSED)
    solution = Solution(
        placement,
        value,
        "optimal" if is_best else "feasible",
        plan.lower_bound,
        bound_method=plan.bound_method,
    )
    found = plan_of(plan.problem, solution, plan.placer, plan.runtime)
    return replace(found, searched=Searched(plan.placement, plan.value))


def searched_plan(plan: Plan) -> Plan:
    """The plan with what the search found; the same plan where it holds that already."""
    if plan.searched is None:
        measured = plan.measured
        others = (ALL_CORES, *UNSPLIT_STREAMS)  # which no placement expresses
        is_other = measured is not None and measured.recommendation in others
        return replace(plan, measured=None) if is_other else plan
    found = plan.searched
    is_closed = found.value <= plan.lower_bound * (1.0 + CLOSED)
    solution = Solution(
        found.placement,
        found.value,
        "optimal" if is_closed else "feasible",
        plan.lower_bound,
        bound_method=plan.bound_method,
    )
    return plan_of(plan.problem, solution, plan.placer, plan.runtime)


def held_lines(plan: Plan) -> list[str]:
    """What a plan that was just measured holds, where that is not what the search found."""
    measured = plan.measured
    if measured is None:
        return []
    name = measured.recommendation
    lines = how_to_run_default(plan) if name == ALL_CORES else []
    if name == ALL_CORES and plan.searched is None:
        lines.append("the plan holds what the search found, the fastest of the placements")
    if plan.searched is not None:
        what = _what(plan)
        lines.append(f"the plan holds {what}; argument `searched` takes what the search found")
    return lines


def recommendation_lines(plan: Plan) -> list[str]:
    """What was recommended when the plan was measured, and how to run that; none where it is this.

    A file of version 1 holds what the search found, also where something simpler was faster.
    """
    measured = plan.measured
    if measured is None and plan.searched is not None:
        return [
            f"this plan holds {_what(plan)}, because a larger gain was not predicted for sure; "
            "argument `searched` takes what the search found"
        ]
    if measured is None or measured.recommendation == PLAN:
        return []
    name = measured.recommendation
    if name == ALL_CORES:
        reason = why_default_is_not_comparable(plan.problem, Simulator(plan.problem))
        if reason is not None:  # an earlier version recommended it all the same
            return [f"'{name}' was measured beside this plan, but is not comparable: {reason}"]
        return [_faster(measured), *how_to_run_default(plan)]
    if name in UNSPLIT_STREAMS:
        return [
            f"{_faster(measured)}; argument `samples` of a run, or `pw.stream`, runs that, "
            "argument `searched` what the search found"
        ]
    if plan.searched is not None or is_all_on(
        plan, device_of(name, plan.problem.cluster.device_names)
    ):
        line = f"this plan holds {_what(plan)}, as recommended when it was measured"
        other = "argument `searched` takes what the search found"
        return [line if plan.searched is None else f"{line}; {other}"]
    return [f"{_faster(measured)}; place again for a plan that holds it"]


def how_to_run_default(plan: Plan) -> list[str]:
    """How to run the model with the runtime's own default, which no placement can express."""
    problem = plan.problem
    if problem.source is None or problem.source.path.startswith("module:"):
        return [f"to run '{ALL_CORES}', call the unsplit model itself"]
    path = problem.source.path
    words = [f"placewright place {shlex.quote(path)} --devices cpu"]
    if problem.objective == "training":
        words.append("--objective training")
    if plan.runtime != default_runtime_name(problem.objective):
        words.append(f"--runtime {plan.runtime}")
    lines = [f"a plan for '{ALL_CORES}': {' '.join(words)}"]
    is_called = Path(path).exists() and problem.objective != "training"
    whole = whole_processor(plan) if is_called else None
    if whole is not None:
        call = runtime_named(plan.runtime).unsplit_call(path, whole)
        lines.append(f"'{ALL_CORES}' in Python: {call}")
    return lines


def _faster(measured: Measurement) -> str:
    name = measured.recommendation
    seconds = measured.baselines.get(name)
    if seconds is None:
        return f"'{name}' was recommended when this plan was measured"
    return (
        f"'{name}' was recommended when this plan was measured: {format_duration(seconds)}, "
        f"{seconds / measured.median:.2f} of the plan's time"
    )


def _what(plan: Plan) -> str:
    """The placement of a plan that is not the searched one, in words."""
    used = np.unique(plan.placement.device_of).tolist()
    if len(used) > 1:
        return f"'{EVEN_SPLIT}'"
    return f"the unsplit model on '{plan.problem.cluster.device_names[used[0]]}'"


def is_all_on(plan: Plan, device: int | None) -> bool:
    """True where the plan's placement is one device with everything on it."""
    return device is not None and bool((plan.placement.device_of == device).all())

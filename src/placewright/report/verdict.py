"""The verdict on a plan: split or not, gain, proven gap, what to do next."""

from __future__ import annotations

import math
from dataclasses import dataclass

from placewright.core.contender_names import PLAN, SEARCHED, contender_of
from placewright.core.plan import Plan
from placewright.core.problem import Problem
from placewright.core.quantities import format_duration
from placewright.report.alternatives import (
    Alternative,
    alternatives_of,
    best_alone,
    devices_in_use,
)
from placewright.report.values import value_text
from placewright.simulation.model import Simulator

_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
_WORTH = 0.01  # a smaller gain is within what predictions are off by
_SAME = 1e-9  # a relative difference of exact costs that is rounding
_CLOSED, _OPEN = 0.01, 0.10  # gaps: as good as proven, and worth a longer search
_OFF = 0.15  # prediction errors that call for a new calibration


@dataclass(frozen=True)
class PlanVerdict:
    """What a reader wants to know first.

    Attributes:
        answer: ``"split"``, ``"do not split"`` or ``"no choice"`` (only a split fits).
        sentence: the verdict.
        next_step: what to do now.
    """

    answer: str
    sentence: str
    next_step: str


def verdict_of(plan: Plan, alternatives: tuple[Alternative, ...]) -> PlanVerdict:
    """Judge a plan by what was measured, or else by what is predicted."""
    used = devices_in_use(plan)
    alone = best_alone(alternatives)
    unit = plan.problem.time_unit
    proof = _proof(plan)
    held = (PLAN, *map(contender_of, used))
    if plan.measured is not None and plan.measured.recommendation not in held:
        return _other_is_better(plan, proof)
    if len(used) == 1:
        what = f"Do not split: '{used[0]}' runs everything in {value_text(plan.value, unit)}"
        return PlanVerdict("do not split", f"{what}{_by(plan)}; {proof}.", _next(plan))
    names = f"{len(used)} devices"
    here = value_text(plan.value, unit)
    if alone is None or alone.predicted is None:
        text = f"Split over {names}, since no single device can take it: {here}{_by(plan)}; {proof}"
        return PlanVerdict("no choice", f"{text}.", _next(plan))
    gain = alone.predicted / plan.value - 1.0 if plan.value > 0 else 0.0
    against = f"'{alone.name}' alone ({value_text(alone.predicted, unit)})"
    if gain < least_gain(plan.problem):
        text = f"Do not split: {here} over {names} is no gain on {against}; {proof}"
        return PlanVerdict("do not split", f"{text}.", f"Use '{alone.name}' alone.")
    text = f"Split over {names}: {here}{_by(plan)}, {1 + gain:.2f} times as fast as {against}"
    return PlanVerdict("split", f"{text}; {proof}.", _next(plan))


def least_gain(problem: Problem) -> float:
    """The predicted gain from which a split is worth it, as a part of the best device's value.

    Costs of a model that runs on hardware are predictions; those of a workload are exact.
    """
    source = problem.costs.source
    is_prediction = source.startswith("measured") or source == "roofline"
    return _WORTH if problem.source is not None and is_prediction else _SAME


def verdict_lines(plan: Plan) -> list[str]:
    """The verdict and what to do next, each as one line of text."""
    verdict = verdict_of(plan, alternatives_of(plan, Simulator(plan.problem)))
    return [verdict.sentence, f"Next: {verdict.next_step}"]


def _by(plan: Plan) -> str:
    if plan.measured is None:
        return " predicted"
    return f" predicted, {format_duration(plan.measured.median)} measured"


def _proof(plan: Plan) -> str:
    if not plan.lower_bound > 0 or not math.isfinite(plan.gap):
        return "how far it is from the best is not proven"
    bound = value_text(plan.lower_bound, plan.problem.time_unit)
    if plan.status == "optimal":
        return "no placement is faster (proven)"
    return f"no placement is faster than {bound} (gap {plan.gap:.1%})"


def _other_is_better(plan: Plan, proof: str) -> PlanVerdict:
    assert plan.measured is not None
    name, here = plan.measured.recommendation, format_duration(plan.measured.median)
    seconds = plan.measured.baselines.get(name)
    beside = "" if seconds is None else f" ({format_duration(seconds)} against {here})"
    answer = "split" if name == SEARCHED else "do not split"
    word = "Run what the search found" if answer == "split" else f"Do not split: use '{name}'"
    text = f"{word}, which was faster on the hardware{beside}; {proof}."
    return PlanVerdict(answer, text, f"Run '{name}' instead of this plan.")


def prediction_error(plan: Plan) -> float | None:
    """Predicted / measured - 1; None without a measurement or a unit of time."""
    scale = _SECONDS.get(plan.problem.time_unit)
    if plan.measured is None or scale is None or plan.measured.median <= 0:
        return None
    return plan.value * scale / plan.measured.median - 1.0


def _next(plan: Plan) -> str:
    error = prediction_error(plan)
    if error is not None and abs(error) > _OFF:
        return (
            f"The prediction is off by {error:+.0%}: measure again on a quiet machine, "
            "`placewright place MODEL --remeasure`, before you trust smaller differences."
        )
    if math.isfinite(plan.gap) and plan.gap > _OPEN and plan.status != "optimal":
        longer = "`placewright place MODEL --placer auto --budget 5m`"
        return f"A longer search may close the gap: {longer}."
    is_here = plan.problem.source is not None and plan.problem.costs.source == "measured"
    if is_here and plan.measured is None:
        return "`placewright run PLAN` runs it and compares outputs and time."
    if plan.status == "optimal" or plan.gap <= _CLOSED:
        return (
            "No placement can gain more; only other devices, links or kernels can. See the "
            "critical path."
        )
    return "Use it: `placewright export PLAN` writes it for the runtime that you have."

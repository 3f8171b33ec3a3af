"""The verdict on a plan: split or not, gain, proven gap, what to do next."""

from __future__ import annotations

import math
from dataclasses import dataclass

from placewright.core.contender_names import PLAN, SEARCHED, contender_of
from placewright.core.plan import Plan
from placewright.core.quantities import format_duration
from placewright.report.alternatives import (
    Alternative,
    alternatives_of,
    best_alone,
    devices_in_use,
)
from placewright.report.predicted_gain import PredictedGain, least_gain, predicted_gain
from placewright.report.values import value_text
from placewright.simulation.model import Simulator

_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
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
    told = "" if plan.measured is not None else "not measured; "
    if len(used) == 1:
        what = f"Do not split: '{used[0]}' runs everything in {value_text(plan.value, unit)}"
        beside = _split_beside(plan)
        return PlanVerdict("do not split", f"{what}{_by(plan)}; {beside}{proof}.", _next(plan))
    names = f"{len(used)} devices"
    here = value_text(plan.value, unit)
    if alone is None or alone.predicted is None:
        text = f"Split over {names}, since no single device can take it: {here}{_by(plan)}"
        return PlanVerdict("no choice", f"{text}; {told}{proof}.", _next(plan))
    gain = predicted_gain(plan.problem, plan.placement, plan.value)
    against = f"'{alone.name}' alone ({value_text(alone.predicted, unit)})"
    factor = alone.predicted / plan.value if plan.value > 0 else 1.0
    if plan.measured is None and gain is not None:
        factor = min(factor, gain.factor)
    if factor < 1.0 + least_gain(plan.problem):
        text = f"Do not split: {here} over {names} is no gain on {against}; {told}{proof}"
        return PlanVerdict("do not split", f"{text}.", f"Use '{alone.name}' alone.")
    if plan.measured is None and gain is not None and not gain.is_sure:
        what = f"{here} over {names} is {_unsure(gain, against, unit)}"
        return PlanVerdict(
            "do not split", f"Do not split: {what}; {told}{proof}.", f"Use '{alone.name}' alone."
        )
    text = f"Split over {names}: {here}{_by(plan)}, {factor:.2f} times as fast as {against}"
    if told and gain is not None and gain.error is not None:
        text += f", {gain.least_factor:.2f} times at least if calibration's errors hold"
    return PlanVerdict("split", f"{text}; {told}{proof}.", _next(plan))


def _unsure(gain: PredictedGain, against: str, unit: str) -> str:
    """How a split is predicted to differ, where that is less than predictions are off."""
    error = value_text(gain.error or 0.0, unit)
    return (
        f"predicted to be {gain.factor:.2f} times as fast as {against}, and the prediction may be "
        f"off by {error}"
    )


def _split_beside(plan: Plan) -> str:
    """The split that a plan of one device does not hold because nothing was measured."""
    if plan.measured is not None or plan.searched is None:
        return ""
    gain = predicted_gain(plan.problem, plan.searched.placement, plan.searched.value)
    if gain is None:
        return ""
    unit, name = plan.problem.time_unit, plan.problem.cluster.device_names[gain.device]
    here = value_text(gain.value, unit)
    unsure = _unsure(gain, f"'{name}' alone", unit)
    return f"the split that the search found ({here}) is {unsure}; not measured; "


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
        return "by these costs no placement takes less (proven)"
    return f"by these costs no placement takes less than {bound} (gap {plan.gap:.1%})"


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
            "By these costs no placement gains more; only other devices, links or kernels can. See "
            "the critical path."
        )
    return "Use it: `placewright export PLAN` writes it for the runtime that you have."

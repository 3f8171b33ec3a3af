"""The verdict on a plan: split or not, gain, proven gap, next step; and its alternatives."""

from __future__ import annotations

import math
import re
import shlex
from dataclasses import dataclass, replace

import numpy as np

from placewright.core.charges import CHARGED
from placewright.core.cluster import UNIT_SHARE
from placewright.core.execution_models import Event
from placewright.core.placement import Placement
from placewright.core.plan import (
    EVEN_SPLIT,
    PLAN,
    SEARCHED,
    Plan,
    contender_of,
    devices_in_use,
    holds_advised,
    no_choice,
    scope_of_proof,
)
from placewright.core.problem import Problem
from placewright.core.quantities import format_duration, value_text
from placewright.core.source import CLUSTER, calls_of
from placewright.errors import InfeasibleError, InputError
from placewright.simulation.model import Simulator
from placewright.simulation.serving import served_seconds

STREAM_SAMPLES = 24  # samples of a simulated stream
PREDICTED_SAMPLES = 60  # of one whose period is compared with a measured stream
_WORTHWHILE = 0.01  # smallest gain that justifies a split of a model on hardware
_SAME = 1e-9  # relative difference of equal exact costs, from rounding
_MOST_IN_FLIGHT = 1_000  # samples that a simulated stream is long enough for


@dataclass(frozen=True)
class PredictedGain:
    """Predicted values of a split and of the best single device."""

    device: int  # the device with the smallest value alone
    alone: float  # value on that device
    value: float  # of the split
    error: float | None  # possible error of the split's value; None without calibration
    least_gain: float  # smallest gain that is worth a split, see `least_gain`
    call: float = 0.0  # what a call takes beyond either value, see `Cluster.call_seconds`

    @property
    def factor(self) -> float:
        """Predicted speed of the split relative to the device alone."""
        return self._factor(self.value)

    @property
    def least_factor(self) -> float:
        """`factor` if the split takes longer than predicted by the whole `error`."""
        return self._factor(self.value + (self.error or 0.0))

    def _factor(self, value: float) -> float:
        return (self.alone + self.call) / (value + self.call) if value > 0 else 1.0

    @property
    def is_worth_a_probe(self) -> bool:
        """True if the gain is worth a split, provided that the prediction is right."""
        return self.factor >= 1.0 + self.least_gain

    @property
    def is_sure(self) -> bool:
        """True if the gain is larger than the error and worth a split."""
        return self.least_factor >= 1.0 + self.least_gain


def played_samples(least: int, in_flight: int | None) -> int:
    """Number of samples of a simulated stream: at least `least`, and enough to fill and drain it.

    Args:
        in_flight: samples under way at most; None if the simulator chooses.
    """
    return max(least, 3 * min(in_flight or 0, _MOST_IN_FLIGHT) + 2)


def least_gain(problem: Problem) -> float:
    """The smallest predicted gain that is worth a split, relative to the split's value.

    Costs of a model that runs on hardware are predictions; costs of a workload are exact.
    """
    source = problem.costs.source
    is_prediction = source.startswith("measured") or source == "roofline"
    return _WORTHWHILE if problem.source is not None and is_prediction else _SAME


def predicted_gain(
    problem: Problem, placement: Placement, value: float, in_flight: int | None = None
) -> PredictedGain | None:
    """Compare a placement with the best single device.

    error = prediction_error × (overheads + `UNIT_SHARE` × rest)

    Overheads are the predicted dispatch, cuts and contention; nine of ten calibration placements
    had a smaller error. A calibrated device alone was timed as a whole, so its units contain the
    dispatch of its segment.

    Args:
        in_flight: samples of a stream under way at most; None is as many as pay.

    Returns:
        None if the placement uses one device, or no device alone is feasible, or the value is
        an energy or a price.
    """
    if problem.objective in CHARGED or len(np.unique(placement.device_of)) < 2:
        return None
    simulator = Simulator(problem)
    bare = Simulator(replace(problem, cluster=problem.cluster.without_overheads))
    alone_simulator = simulator if problem.cluster.prediction_error is None else bare
    placements = [Placement.on_one_device(problem.n_units, at) for at in range(problem.n_devices)]
    alone = np.array(
        [
            alone_simulator.value(single) if simulator.violation(single) is None else np.inf
            for single in placements
        ]
    )
    device = int(np.argmin(alone))
    if not np.isfinite(alone[device]):
        return None
    least, share = bare.value(placement), problem.cluster.prediction_error
    value = _streamed(simulator, placement, value, in_flight)
    error = None
    if share is not None:
        error = share * (max(0.0, value - least) + UNIT_SHARE * least)
    is_call = isinstance(problem.execution_model, Event) and problem.objective == "latency"
    call = problem.cluster.call_seconds if is_call else 0.0
    return PredictedGain(device, float(alone[device]), value, error, least_gain(problem), call)


def _streamed(
    simulator: Simulator, placement: Placement, value: float, in_flight: int | None
) -> float:
    """Replace the value by the period of a simulated stream, if that is larger; only throughput.

    A stream pays for cuts and dispatch; max-load is the period of a pipeline without them.
    """
    if simulator.problem.objective != "throughput":
        return value
    try:
        samples = played_samples(STREAM_SAMPLES, in_flight)
        stream = simulator.stream(placement, samples=samples, in_flight=in_flight)
        return max(value, stream.steady.period)
    except (InfeasibleError, InputError):  # replicas, or too little memory
        return value


_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
_CLOSED, _OPEN = 0.01, 0.10  # gaps: as good as optimal up to here; worth a longer search from here
_OFF = 0.15  # a larger error of a prediction calls for a new measurement


@dataclass(frozen=True)
class Alternative:
    """A contender, or the searched placement, with its values."""

    name: str  # of `core.plan`
    # value in the problem's time unit; None without a prediction, inf if infeasible
    predicted: float | None
    measured: float | None = None  # median seconds; None if it was not measured
    note: str = ""  # why it is infeasible, else empty
    is_device: bool = False  # a single device runs everything


def alternatives_of(plan: Plan, simulator: Simulator) -> tuple[Alternative, ...]:
    """The plan, the searched placement, every device alone, and the other measured contenders."""
    measured = dict(plan.measured.baselines) if plan.measured else {}
    rows = [Alternative(PLAN, plan.value, plan.measured.median if plan.measured else None)]
    if plan.searched is not None:
        rows.append(Alternative(SEARCHED, plan.searched.value, measured.pop(SEARCHED, None)))
    for device, name in enumerate(map(contender_of, plan.problem.cluster.device_names)):
        rows.append(_alone(simulator, device, name, measured.pop(name, None)))
    rows += [Alternative(name, None, seconds) for name, seconds in measured.items()]
    return tuple(rows)


def _alone(simulator: Simulator, device: int, name: str, measured: float | None) -> Alternative:
    placement = Placement.on_one_device(simulator.problem.n_units, device)
    value = simulator.value(placement)
    violation = simulator.violation(placement) if math.isinf(value) else None
    note = "" if violation is None else violation.message
    return Alternative(name, value, measured, note, is_device=True)


def best_device(alternatives: tuple[Alternative, ...]) -> Alternative | None:
    """The single device with the smallest predicted value; None if no device can run everything."""
    alone = [
        (row.predicted, at)
        for at, row in enumerate(alternatives)
        if row.is_device and row.predicted is not None and math.isfinite(row.predicted)
    ]
    return alternatives[min(alone)[1]] if alone else None


@dataclass(frozen=True)
class PlanVerdict:
    """Advice to split the model over devices or not, with the reason and the next step."""

    answer: str  # ``"split"``, ``"do not split"`` or ``"no choice"`` (only a split fits)
    sentence: str  # the verdict
    next_step: str  # advice


def verdict_of(plan: Plan, alternatives: tuple[Alternative, ...]) -> PlanVerdict:
    """Judge a plan by its measurement, or by its prediction if it was not measured."""
    used = devices_in_use(plan)
    alone = best_device(alternatives)
    unit = plan.problem.value_unit
    proof, is_by_time = _proof(plan), plan.problem.objective not in CHARGED
    advised = plan.measured.recommendation if plan.measured and is_by_time else PLAN
    if not holds_advised(advised, used):
        assert plan.measured is not None
        if advised == EVEN_SPLIT and plan.searched is not None:
            return _even_split(plan, proof)  # which the plan holds
        return _other_is_better(plan, proof)
    caveat = "" if plan.measured is not None else "not measured; "
    if len(used) == 1:
        here = f"{_with(plan)} {value_text(plan.value, unit)}"
        what = f"Do not split: '{used[0]}' runs everything {here}"
        beside = _split_beside(plan)
        return PlanVerdict("do not split", f"{what}{_by(plan)}; {beside}{proof}.", _next(plan))
    names = f"{len(used)} devices"
    here = value_text(plan.value, unit)
    if alone is None or alone.predicted is None:
        text = f"Split over {names}, since no single device can take it: {here}{_by(plan)}"
        return PlanVerdict("no choice", f"{text}; {caveat}{proof}.", _next(plan))
    gain = predicted_gain(plan.problem, plan.placement, plan.value, plan.in_flight)
    here = _value_and_period(plan.value, gain, unit)
    factor, best, seconds = _best_alone(plan, alternatives, alone, gain)
    against = f"'{best}' alone ({seconds})"
    if factor < 1.0 + (least := least_gain(plan.problem)):
        by = "" if plan.measured is None else _by(plan)
        how = "no gain" if factor <= 1.0 + _SAME else f"a gain of less than {least:.0%}"
        text = f"Do not split: {here}{by} over {names} is {how} on {against}; {caveat}{proof}"
        return PlanVerdict("do not split", f"{text}.", f"Use '{best}' alone.")
    if plan.measured is None and gain is not None and not gain.is_sure:
        what = f"{here} over {names} is {_unsure(gain, against, unit)}"
        return PlanVerdict(
            "do not split", f"Do not split: {what}; {caveat}{proof}.", f"Use '{best}' alone."
        )
    text = f"Split over {names}: {here}{_by(plan)}, "
    if is_by_time:
        text += f"{_times(factor)} times as fast as {against}"
    else:
        text += f"where {against} takes {_times(factor)} times as much"
    if caveat and gain is not None and gain.error:
        text += f", {_times(gain.least_factor)} times at least if calibration's errors hold"
    return PlanVerdict("split", f"{text}; {caveat}{proof}.", _next(plan))


def _best_alone(
    plan: Plan,
    alternatives: tuple[Alternative, ...],
    predicted: Alternative,
    gain: PredictedGain | None,
) -> tuple[float, str, str]:
    """Speed of a split relative to the best single device, its name, and its value in words.

    A measured split is compared with what was measured in turns with it, if that is a device and
    the value is a time.
    """
    assert predicted.predicted is not None
    measured = [
        (row.measured, row.name)
        for row in alternatives
        if row.is_device and row.measured is not None and row.predicted != math.inf
    ]
    if plan.measured is not None and measured and plan.problem.objective not in CHARGED:
        seconds, name = min(measured)
        return seconds / plan.measured.median, name, f"{format_duration(seconds)} measured"
    factor = predicted.predicted / plan.value if plan.value > 0 else 1.0
    unit = plan.problem.value_unit
    if plan.measured is None and gain is not None and gain.factor < factor:
        name = contender_of(plan.problem.cluster.device_names[gain.device])
        return gain.factor, name, _alone_text(gain, unit)
    return factor, predicted.name, value_text(predicted.predicted, unit)


def _alone_text(gain: PredictedGain, unit: str) -> str:
    """The value of the best single device; a calibration timed it with its dispatch inside."""
    text = value_text(gain.alone, unit)
    return text if gain.error is None else f"{text} as calibrated"


def _times(factor: float) -> str:
    """A factor with two decimals, or as many as its difference from 1 needs."""
    off = abs(factor - 1.0)
    decimals = max(2, math.ceil(-math.log10(off)) + 1) if _SAME < off < 0.01 else 2
    return f"{factor:.{decimals}f}".rstrip("0") if decimals > 2 else f"{factor:.2f}"


def _value_and_period(value: float, gain: PredictedGain | None, unit: str) -> str:
    """A value in words, with the period of a simulated stream if that is larger."""
    text = value_text(value, unit)
    if gain is None or gain.value <= value * (1.0 + _SAME):
        return text
    return f"{text} ({value_text(gain.value, unit)} as a simulated stream)"


def _unsure(gain: PredictedGain, against: str, unit: str) -> str:
    """Clause for a predicted gain that is too small, or smaller than the error of predictions."""
    clause = f"predicted to be {_times(gain.factor)} times as fast as {against}"
    if gain.factor <= 1.0:
        return clause
    if gain.factor < 1.0 + gain.least_gain or not gain.error:
        return f"{clause}, a gain of less than {gain.least_gain:.0%}"
    return f"{clause}, and the prediction may be off by {value_text(gain.error, unit)}"


def _split_beside(plan: Plan) -> str:
    """Clause for a split that was found but not recommended; "" if there is none."""
    if plan.searched is None:
        return ""
    found = plan.searched
    gain = predicted_gain(plan.problem, found.placement, found.value, found.in_flight)
    if gain is None:
        return ""
    unit, name = plan.problem.time_unit, plan.problem.cluster.device_names[gain.device]
    here = _value_and_period(found.value, gain, unit)
    if plan.measured is not None:
        seconds = plan.measured.baselines.get(SEARCHED)
        took = "" if seconds is None else f"took {format_duration(seconds)}; "
        return took and f"the split that the search found ({here} predicted) {took}"
    alone = "" if math.isclose(gain.alone, plan.value) else f" ({_alone_text(gain, unit)})"
    unsure = _unsure(gain, f"'{name}' alone{alone}", unit)
    return f"the split that the search found ({here}) is {unsure}; not measured; "


def verdict_lines(plan: Plan) -> list[str]:
    """The verdict and the next step, each as one line of text."""
    verdict = verdict_of(plan, alternatives_of(plan, Simulator(plan.problem)))
    return [verdict.sentence, f"Next: {verdict.next_step}"]


def _with(plan: Plan) -> str:
    return "with" if plan.problem.objective in CHARGED else "in"


def _by(plan: Plan) -> str:
    if plan.measured is None:
        return " predicted"
    of = "its time " if plan.problem.objective in CHARGED else ""
    return f" predicted, {of}{format_duration(plan.measured.median)} measured"


def _proof(plan: Plan) -> str:
    if alone := no_choice(plan.problem):
        return alone
    if not plan.lower_bound > 0 or not math.isfinite(plan.gap):
        return "how far it is from the best is not proven"
    bound = value_text(plan.lower_bound, plan.problem.value_unit)
    none = f"by these costs no placement{scope_of_proof(plan)} takes less"
    if plan.status == "optimal":
        return f"{none} (proven)"
    return f"{none} than {bound} (gap {plan.gap:.1%})"


def _even_split(plan: Plan, proof: str) -> PlanVerdict:
    """The verdict on a plan that holds the even split, as recommended when it was measured.

    The measurement decides: by prediction the searched placement is faster.
    """
    assert plan.measured is not None
    searched = plan.measured.baselines.get(SEARCHED)
    here = value_text(plan.value, plan.problem.value_unit)
    text = f"Split evenly over {len(devices_in_use(plan))} devices: {here}{_by(plan)}"
    if searched is not None and searched > plan.measured.median:
        beside = format_duration(searched)
        text += f", faster on the hardware than what the search found ({beside})"
    return PlanVerdict("split", f"{text}; {proof}.", _next(plan))


def _other_is_better(plan: Plan, proof: str) -> PlanVerdict:
    assert plan.measured is not None
    name, here = plan.measured.recommendation, format_duration(plan.measured.median)
    seconds = plan.measured.baselines.get(name)
    beside = "" if seconds is None else f" ({format_duration(seconds)} against {here})"
    why = "which was faster on the hardware"
    if seconds is not None and seconds >= plan.measured.median:
        why = "which was recommended when this plan was measured"
    splits = {SEARCHED: "Run what the search found", EVEN_SPLIT: "Split evenly"}
    word = splits.get(name, f"Do not split: use '{name}'")
    text = f"{word}, {why}{beside}; {proof}."
    answer = "split" if name in splits else "do not split"
    return PlanVerdict(answer, text, f"Run '{name}' instead of this plan.")


def prediction_error(plan: Plan) -> float | None:
    """Predicted / measured - 1; None without a measurement, a unit of time or a stream to play.

    The period of a played stream is compared with a measured stream.
    """
    scale = _SECONDS.get(plan.problem.time_unit)
    is_time = plan.problem.objective not in CHARGED
    if plan.measured is None or scale is None or plan.measured.median <= 0 or not is_time:
        return None
    predicted = served_seconds(plan.problem, plan.placement)
    if plan.problem.objective == "throughput":
        try:
            stream = Simulator(plan.problem).stream(
                plan.placement,
                samples=played_samples(PREDICTED_SAMPLES, plan.in_flight),
                in_flight=plan.in_flight,
            )
        except (InfeasibleError, InputError):  # replicas, or too little memory
            return None
        predicted = stream.steady.period
    return predicted * scale / plan.measured.median - 1.0


def run_command(plan: Plan) -> str:
    """The command that measures a plan on the hardware, with PLAN for its file; "" if none can."""
    problem = plan.problem
    if problem.source is None or calls_of(problem.source):
        return ""
    if CLUSTER in problem.source.options:
        return "placewright run PLAN --engine llama.cpp"
    if problem.costs.source != "measured" or problem.time_unit != "s":
        return ""
    if isinstance(problem.execution_model, Event):
        return "placewright run PLAN"
    is_streamed = problem.objective == "throughput"
    return "placewright run PLAN --samples 200" if is_streamed else ""


def with_plan_file(text: str, file: str, *options: str) -> str:
    """Advice with the file of a plan, and options of its own, in place of PLAN in its commands."""
    words = " ".join([shlex.quote(file), *options])
    return re.sub(r"(?<= )PLAN(?=[ `]|$)", lambda _: words, text)


def searched_was(plan: Plan) -> str:
    """The searched placement against the plan's own; "" if it was not measured."""
    seconds = None if plan.measured is None else plan.measured.baselines.get(SEARCHED)
    if plan.measured is None or seconds is None:
        return ""
    return "no faster" if seconds >= plan.measured.median else "not recommended"


def _next_with_small_gap(plan: Plan, gap: float) -> str:
    """Advice on a plan that holds another placement than the searched one, whose gap is small."""
    found = f"what the search found is within {gap:.1%} of the bound by these costs"
    if was := searched_was(plan):
        return f"A longer search gains nothing: {found}, and was {was} on the hardware."
    plain, searched = "placewright run PLAN", "placewright run PLAN --searched"
    return f"`{run_command(plan).replace(plain, searched)}` measures the split: {found}."


def _next(plan: Plan) -> str:
    error = prediction_error(plan)
    if error is not None and abs(error) > _OFF:
        return (
            f"The prediction is off by {error:+.0%}: measure again on a quiet machine, "
            "`placewright place MODEL --remeasure`, before you trust smaller differences."
        )
    if math.isfinite(plan.gap) and plan.gap > _OPEN and plan.status != "optimal":
        gap = math.inf if plan.searched is None else plan.searched.value / plan.lower_bound - 1.0
        if gap > _OPEN:
            longer = "`placewright place MODEL --placer auto --budget 5m`"
            return f"A longer search may close the gap: {longer}."
        if searched_was(plan) or run_command(plan):
            return _next_with_small_gap(plan, gap)
    is_here = plan.measured is None and plan.problem.costs.source == "measured"
    if is_here and (command := run_command(plan)):
        return f"`{command}` runs it and compares outputs and time."
    if plan.status == "optimal" or plan.gap <= _CLOSED:
        return (
            f"By these costs no placement{scope_of_proof(plan)} gains more; only other devices, "
            "links or kernels can. See the critical path."
        )
    if plan.problem.costs.source != "measured":
        return "Its costs were not measured: check it on the devices before you rely on it."
    return "Use it: `placewright export --to FORMAT PLAN` writes it for another tool."

"""Streams of samples through plans: requirements, results of measuring, better candidates.

Max-load is the seconds per sample of an ideal pipeline. If loads are nearly equal, hand-overs and
waiting decide between placements. So the search's placement is improved on the played stream, and
the best candidates are measured.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from placewright.core.placement import Placement
from placewright.core.plan import PLAN, Plan, stream_by_name
from placewright.core.problem import Problem
from placewright.core.quantities import format_duration
from placewright.core.solution import Budget
from placewright.errors import InfeasibleError, InputError, OutOfTime, PlacewrightError
from placewright.execution.runtime import LoadedModel, MeasuresStreamMemory, SampleServer
from placewright.placers.registry import make_placer
from placewright.profiling.hardware import NEVER, Deadline
from placewright.profiling.stream_calibration import (
    StreamRound,
    different_samples,
    measure_streams,
    stream_parts,
    stream_runner,
)
from placewright.profiling.verdict import Verdict
from placewright.report.stream_text import measured_stream_lines, measured_stream_table
from placewright.report.verdict import PREDICTED_SAMPLES, STREAM_SAMPLES, played_samples
from placewright.session.contenders import Contenders, judged
from placewright.session.models import require_model
from placewright.session.plans import moved_plan, predicted_plan
from placewright.session.request import Request
from placewright.session.running import can_stream, require_one_shape
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.model import Simulator
from placewright.simulation.stream.play import Stream

LEAST_SAMPLES = 20
STREAM_ROUNDS = 9
SAMPLES = 200
_MOST_LOSS = 0.03  # a contender that takes so much longer than the fastest is never recommended
_PERIODS = 3  # of full pipelines, to compare memory
_OTHERS = ("ideal-dp", "pipedream", "even-split")
_SETTINGS = {"ideal-dp": {"max_ideals": "20000"}}  # an exact program with more takes too long
_SECONDS = 3.0  # of each other placer, if seconds limit the search
_MOVED_UNITS = 60_000  # simulated while improving, unless the least evaluations take more
_LEAST_EVALUATIONS, _MOST_EVALUATIONS = 50, 300  # of improving
_MEASURED = 3  # candidates
_ROUNDS, _LEAST_ROUNDS = 7, 3
_SHARE = 0.5  # of the time that is left, for measuring them
_SAMPLES = 20


def require_streamable(plan: Plan) -> None:
    """Refuse a plan that cannot be streamed, before its model is loaded.

    Raises:
        InputError: the plan has no stream; the message gives the reason.
    """
    problem = plan.problem
    if problem.objective == "training":
        raise InputError(
            "a training step changes its weights, so that the next one must wait for it: a plan "
            "for training has no stream; place for throughput or latency"
        )
    require_one_shape(plan)
    require_measured(plan)


def require_measured(plan: Plan) -> None:
    """Refuse a plan of devices that are not of this machine.

    Raises:
        InputError: its costs were not measured here, or it has no model.
    """
    problem = plan.problem
    if problem.costs.source != "measured" or problem.time_unit != "s":
        raise InputError(
            f"its costs are '{problem.costs.source}' in {problem.time_unit}; place a model on "
            "devices of this machine to stream samples through it"
        )
    require_model(problem)


def require_no_state(model: LoadedModel) -> None:
    """Refuse a stream with several samples under way of a model that keeps state.

    Raises:
        InputError: a call of the model depends on the one before.
    """
    if model.keeps_state:
        raise InputError(
            "the model of this plan keeps state from call to call, so that a call waits for the "
            "one before: it has no stream with several samples under way; run single calls"
        )


def contender_to_run(plan: Plan) -> str:
    """Name of the contender that runs a plan's streams: the plan, or a recommended unsplit way."""
    return stream_by_name(plan) or PLAN


@dataclass(frozen=True)
class StreamLength:
    """Samples or seconds of a measured stream, and rounds of all contenders.

    Raises:
        InputError: it is too short to have a rate.
    """

    # of the stream whose outputs are compared, and of a round at most, but a round is never too
    # short for a burst of the samples in flight
    samples: int = SAMPLES
    # that this stream goes on, whatever `samples` is; None counts samples
    seconds: float | None = None
    # of all contenders; up to three times as many if they scatter too much for a verdict
    rounds: int = STREAM_ROUNDS

    def __post_init__(self) -> None:
        if self.samples < LEAST_SAMPLES:
            raise InputError(
                f"samples must be >= {LEAST_SAMPLES} to measure a rate, got {self.samples}"
            )
        if self.seconds is not None and not 0 < self.seconds < math.inf:
            raise InputError(f"seconds must be > 0 and finite, got {self.seconds}")


def latency_95(rounds: Sequence[StreamRound]) -> float:
    """95th percentile of the seconds of measured samples from entry to end."""
    return float(np.quantile(np.concatenate([stream.latencies for stream in rounds]), 0.95))


@dataclass(frozen=True, eq=False)
class StreamResult:
    """A measured stream of samples, beside those of other contenders."""

    samples: int  # of the stream whose outputs were all compared
    worst: int  # number of the sample whose outputs are furthest from the unsplit model's
    # error, tolerance: relative error of that sample, and what is allowed
    error: float
    tolerance: float
    contenders: Contenders[SampleServer]  # that were measured; the plan's stream is played in them
    rounds: Mapping[str, Sequence[StreamRound]]  # name of each contender -> its streams
    # seconds that 95 % of a contender's samples may take; inf is no limit
    latency_limit: float = math.inf
    # device name -> predicted and measured peak bytes; empty if no allocator counts them
    memory: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    # outputs that differ between runs of the unsplit model itself, and were not compared
    random: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """True when every sample's outputs equal the unsplit model's within the tolerance."""
        return self.error <= self.tolerance

    @property
    def played(self) -> Stream:
        """The plan's stream by the simulator."""
        assert self.contenders.played is not None
        return self.contenders.played

    @property
    def in_flight(self) -> int:
        """Samples under way at most in the plan."""
        return self.played.in_flight

    @property
    def periods(self) -> dict[str, list[float]]:
        """Name of each contender -> seconds per sample in each round."""
        return {name: [stream.period for stream in row] for name, row in self.rounds.items()}

    def period(self, name: str) -> float:
        """Median seconds per sample of a contender."""
        return statistics.median(stream.period for stream in self.rounds[name])

    def latencies(self, name: str) -> tuple[float, float]:
        """Median and 95th percentile of a sample's seconds from its entry to its end."""
        rows = np.concatenate([stream.latencies for stream in self.rounds[name]])
        return float(np.median(rows)), latency_95(self.rounds[name])

    def keeps_limit(self, name: str) -> bool:
        """True if 95 % of a contender's samples are done within the limit."""
        return latency_95(self.rounds[name]) <= self.latency_limit

    @cached_property
    def verdict(self) -> Verdict:
        """The verdict over the contenders that keep the latency limit, by seconds per sample.

        Only measurements decide. A simpler contender goes first if its rounds could be as fast as
        the fastest one's, but never one whose median is longer by more than 3 %.
        """
        return self._verdict(_MOST_LOSS)

    @property
    def is_close(self) -> bool:
        """True if a simpler contender could be as fast, but has a median that is too long."""
        return self._verdict(math.inf).recommendation != self.verdict.recommendation

    def _verdict(self, most_loss: float) -> Verdict:
        kept = [name for name in self.rounds if self.keeps_limit(name)]
        return judged(self.contenders, self.periods, kept, most_loss)

    def data(self) -> dict[str, Any]:
        """The result as a JSON document."""
        predicted = self.contenders.predicted
        contenders = {}
        for name in self.rounds:
            median, high = self.latencies(name)
            seconds = predicted.get(name)
            contenders[name] = {
                "samples_per_second": 1.0 / self.period(name),
                "iqr": self.verdict.contenders[name].iqr,
                "latency_median": median,
                "latency_95": high,
                "predicted_samples_per_second": 1.0 / seconds if seconds else None,
            }
        return {
            "equal": self.equal,
            "relative_error": self.error,
            "tolerance": self.tolerance,
            "worst_sample": self.worst,
            "random_ops": list(self.random),
            "samples": self.samples,
            "in_flight": self.in_flight,
            "predicted_samples_per_second": self.played.rate,
            "predicted_memory": self.played.memory_peaks.tolist(),
            "prediction_error": self.played.steady.period / self.period(PLAN) - 1.0,
            "contenders": contenders,
            "not_comparable": dict(self.contenders.left_out),
            "memory": {
                name: {"predicted": row[0], "measured": row[1]} for name, row in self.memory.items()
            },
            "recommendation": self.verdict.recommendation,
            "verdict": self.verdict.text,
        }

    def lines(self) -> list[str]:
        """The result as lines of text, without the table."""
        return measured_stream_lines(self.data(), self.latency_limit)

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def table(self) -> tuple[tuple[str, ...], list[list[str]]]:
        """Columns and rows, one for each contender."""
        return measured_stream_table(self.data())


def played_schedule(stream: Stream) -> list[tuple[int, int]]:
    """List (sample, segment) in the order in which a played stream begins them.

    Segment -1 is the end of the sample, which comes before segments of others that begin at that
    instant, but behind its own, which may take no time.
    """
    events: list[tuple[float, int, int, int]] = []
    for sample in range(len(stream.finish)):
        finish, parts = float(stream.finish[sample]), stream.tasks.of_segment
        events.append((finish, 0, sample, len(parts)))
        for index, tasks in enumerate(parts):
            begin = float(stream.begin[sample, tasks.compute])
            events.append((begin, 0 if begin == finish else 1, sample, index))
    count = len(stream.tasks.of_segment)
    return [(sample, index if index < count else -1) for _, _, sample, index in sorted(events)]


def stream_memory(plan: Plan, model: LoadedModel, in_flight: int) -> dict[str, tuple[float, float]]:
    """Device name -> predicted and measured peak bytes; empty if they cannot be measured."""
    problem = plan.problem
    if not isinstance(model, MeasuresStreamMemory) or np.any(problem.cluster.replicas > 1):
        return {}
    stream = Simulator(problem).stream(
        plan.placement, samples=_PERIODS * in_flight + 2, in_flight=in_flight
    )
    parts = stream_parts(problem, plan.placement)
    devices = problem.cluster.devices
    measured = model.stream_memory_peaks(parts, devices, played_schedule(stream)).tolist()
    pairs = zip(stream.memory_peaks.tolist(), measured, strict=True)
    return dict(zip(problem.cluster.device_names, pairs, strict=True))


def played_period(problem: Problem, placement: Placement) -> float:
    """Seconds per sample of a placement's stream; inf if it has none."""
    return _period(Simulator(problem), placement, None)


def candidates(
    plan: Plan,
    rng: np.random.Generator,
    *,
    is_counted: bool = False,
    deadline: Deadline = NEVER,
) -> list[Placement]:
    """Placements by the period of their played streams, the shortest first; all can be played.

    If none can be played, the plan's own is the only one.

    Args:
        plan: of the search; its placement is among them if its stream can be played.
        is_counted: no clock limits the search, so that every machine has the same candidates.
        deadline: nothing new starts after it.
    """
    problem = plan.problem
    placements = [plan.placement]
    for name in _OTHERS:
        placer = make_placer(name, _SETTINGS.get(name, {}))
        left = min(_SECONDS, deadline.seconds_left)
        if placer.why_not(problem) is not None or left <= 0.0:
            continue
        budget = Budget(evaluations=_MOST_EVALUATIONS, seconds=None if is_counted else left)
        evaluator = Evaluator(problem, budget)
        try:
            other = placer.place(problem, evaluator, np.random.default_rng(0)).placement
        except PlacewrightError:  # it has no candidate
            continue
        if other is not None and np.isfinite(Simulator(problem).value(other)):
            placements.append(other)
    rated = [(played_period(problem, placement), placement) for placement in placements]
    rated.sort(key=lambda row: row[0])
    rated.append(improved(problem, rated[0][1], rng, deadline))
    rated.sort(key=lambda row: row[0])
    playable = [row for row in rated if row[0] < math.inf]
    return [placement for _, placement in _distinct(playable or rated[:1])]


def improved(
    problem: Problem, start: Placement, rng: np.random.Generator, deadline: Deadline = NEVER
) -> tuple[float, Placement]:
    """Move units across the border between two devices if that shortens the played period.

    The number of moves is limited; without a deadline the generator alone decides the answer.

    Args:
        start: placement to improve.
        deadline: no move is tried after it.
    """
    graph, simulator = problem.unit_graph, Simulator(problem)
    device_of = start.device_of.copy()
    own = played_period(problem, start)
    in_flight, best = _in_flight(simulator, start), own
    most = int(np.clip(_MOVED_UNITS // problem.n_units, _LEAST_EVALUATIONS, _MOST_EVALUATIONS))
    for _ in range(most):
        border = [
            (unit, int(device_of[other]))
            for unit in range(problem.n_units)
            for other in (*graph.predecessors.row(unit), *graph.successors.row(unit))
            if device_of[other] != device_of[unit]
        ]
        if not border or deadline.is_over:
            break
        unit, target = border[int(rng.integers(len(border)))]
        trial = device_of.copy()
        trial[problem.colocation.group_of == problem.colocation.group_of[unit]] = target
        placement = Placement.of(trial)
        if not np.isfinite(simulator.value(placement)):
            continue
        period = _period(simulator, placement, in_flight)
        if period < best:
            best, device_of = period, trial
    placement = Placement.of(device_of)
    best = played_period(problem, placement)  # with its own number in flight
    return (best, placement) if best <= own else (own, start)


def _in_flight(simulator: Simulator, placement: Placement) -> int | None:
    try:
        return simulator.stream(placement, samples=STREAM_SAMPLES).in_flight
    except InfeasibleError:
        return None


def _period(simulator: Simulator, placement: Placement, in_flight: int | None) -> float:
    samples = played_samples(STREAM_SAMPLES, in_flight)
    try:
        stream = simulator.stream(placement, samples=samples, in_flight=in_flight)
    except InfeasibleError:
        return math.inf
    return stream.steady.period


def _distinct(rows: Sequence[tuple[float, Placement]]) -> list[tuple[float, Placement]]:
    kept: dict[bytes, tuple[float, Placement]] = {}
    for row in rows:
        kept.setdefault(row[1].device_of.tobytes(), row)
    return list(kept.values())


def within_latency(simulator: Simulator, placement: Placement, limit: float) -> int | None:
    """The samples in flight that keep a sample's latency below a limit, by the simulator.

    Args:
        limit: seconds that 95 % of the samples may take; inf is no limit.

    Returns:
        None without a limit; else the largest number up to what pays.

    Raises:
        InfeasibleError: one sample alone takes longer.
    """
    if math.isinf(limit):
        return None
    pays = simulator.stream(placement, samples=PREDICTED_SAMPLES).in_flight
    for in_flight in range(pays, 0, -1):
        with suppress(InfeasibleError):  # late in a longer stream, copies may pile up
            if _latency(simulator, placement, in_flight) <= limit:
                return in_flight
    alone = format_duration(_latency(simulator, placement, 1))
    raise InfeasibleError(
        f"a sample alone takes {alone} by the simulator, more than the latency limit of "
        f"{format_duration(limit)}; raise the limit, or place for latency"
    )


def within_limit(plan: Plan, limit: float | None) -> Plan:
    """The plan with the number of `within_latency`, or 1 where a sample alone takes longer."""
    in_flight: int | None = 1
    with suppress(InfeasibleError):
        simulator = Simulator(plan.problem)
        in_flight = None if limit is None else within_latency(simulator, plan.placement, limit)
    return replace(plan, in_flight=in_flight)


def unchecked(plan: Plan, request: Request) -> Plan:
    """The plan by predictions alone, with the samples in flight that the limit allows."""
    limit = request.latency_limit
    plan = within_limit(plan, limit)
    plan = predicted_within(plan, limit) if request.evaluator == "simulated" else plan
    return within_limit(plan, limit)


def predicted_within(plan: Plan, limit: float | None) -> Plan:
    """The plan of `predicted_plan`, unless one sample of that has no room or breaks the limit."""
    simpler = predicted_plan(plan)
    with suppress(InfeasibleError):
        simulator = Simulator(simpler.problem)
        if can_stream(simpler.problem):
            _latency(simulator, simpler.placement, 1)
        within_latency(simulator, simpler.placement, math.inf if limit is None else limit)
        return simpler
    return plan


def _latency(simulator: Simulator, placement: Placement, in_flight: int) -> float:
    """Seconds that 95 % of the samples of a played stream take at most."""
    samples = played_samples(PREDICTED_SAMPLES, in_flight)
    stream = simulator.stream(placement, samples=samples, in_flight=in_flight)
    return float(np.quantile(stream.latencies, 0.95))


def best_measured(
    plan: Plan,
    model: LoadedModel,
    rng: np.random.Generator,
    *,
    is_counted: bool = False,
    latency_limit: float = math.inf,
    deadline: Deadline = NEVER,
) -> Plan:
    """Give a plan the best candidate: of up to three splits, measured in turns, the fastest.

    If there are fewer than two splits, or their time is over, it is the best one by prediction.

    Args:
        model: as the plan's runtime has read it.
        is_counted: no clock limits the search for candidates.
        latency_limit: seconds that 95 % of the samples may take, by the simulator.
        deadline: no candidate is searched for after it. Measuring gets half of what is left.
    """
    problem = plan.problem
    listed = candidates(plan, rng, is_counted=is_counted, deadline=deadline)
    allowed = [placement for placement in listed if _keeps(problem, placement, latency_limit)]
    if math.isfinite(latency_limit):  # fewer samples in flight give other periods
        allowed.sort(key=lambda placement: _period_within(problem, placement, latency_limit))
    listed = allowed or [plan.placement]
    split = [c for c in listed if len(np.unique(c.device_of)) > 1][:_MEASURED]
    chosen = listed[0]
    if len(split) >= 2 and not deadline.is_over:
        with suppress(OutOfTime):
            flights = [_flight(problem, placement, latency_limit) for placement in split]
            chosen = split[_fastest(problem, split, flights, model, deadline.part(_SHARE))]
    if np.array_equal(chosen.device_of, plan.placement.device_of):
        return plan
    return moved_plan(plan, chosen)


def _keeps(problem: Problem, placement: Placement, limit: float) -> bool:
    try:
        within_latency(Simulator(problem), placement, limit)
    except InfeasibleError:
        return math.isinf(limit)  # without a limit this is no question of latency
    return True


def _period_within(problem: Problem, placement: Placement, limit: float) -> float:
    return _period(Simulator(problem), placement, _flight(problem, placement, limit))


def _flight(problem: Problem, placement: Placement, limit: float) -> int:
    """Samples in flight of a placement: as many as pay, within a limit on their latency."""
    simulator = Simulator(problem)
    pays = simulator.stream(placement, samples=STREAM_SAMPLES).in_flight
    within = within_latency(simulator, placement, limit)
    return pays if within is None else min(pays, within)


def _fastest(
    problem: Problem,
    split: Sequence[Placement],
    flights: Sequence[int],
    model: LoadedModel,
    deadline: Deadline,
) -> int:
    """Number of the split that is fastest by its measured streams.

    Args:
        flights: samples in flight of each split.

    Raises:
        OutOfTime: the deadline passed before there were enough rounds.
    """
    with ExitStack() as stack:
        runners = {}
        most = 1
        for at, (placement, in_flight) in enumerate(zip(split, flights, strict=True)):
            deadline.require(f"candidate {at + 1} was compiled")
            runners[str(at)] = stack.enter_context(
                stream_runner(problem, placement, model, in_flight=in_flight)
            )
            most = max(most, in_flight)
        samples = different_samples(model, max(_SAMPLES, 3 * most + 2))
        for name, runner in runners.items():
            deadline.require(f"candidate {int(name) + 1} had run")
            runner.run_many(samples[: most + 1])
        ways = {name: runner.run_many for name, runner in runners.items()}
        bursts = {name: runner.burst for name, runner in runners.items()}
        rounds = measure_streams(
            ways,
            samples,
            rounds=_ROUNDS,
            skipped=most,
            bursts=bursts,
            least=_LEAST_ROUNDS,
            deadline=deadline,
        )
    medians = [statistics.median(s.period for s in rounds[str(at)]) for at in range(len(split))]
    return int(np.argmin(medians))

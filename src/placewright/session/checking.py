"""The check on the hardware: contenders measured in turns, judged, and recorded in the plan."""

from __future__ import annotations

import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from placewright.core.placement import Placement
from placewright.core.plan import PLAN, SEARCHED, Measurement, Plan
from placewright.core.problem import Problem
from placewright.errors import (
    InfeasibleError,
    MismatchError,
    OutOfTime,
    RuntimeFailure,
)
from placewright.execution.comparing import compare_outputs, devices_used, output_names
from placewright.execution.output_check import OutputCheck
from placewright.execution.placements import taking_turns
from placewright.execution.requests import executions
from placewright.execution.runtime import HostArray, LoadedModel, SampleServer
from placewright.profiling.hardware import NEVER, Deadline, measure_interleaved
from placewright.profiling.stream_calibration import (
    Sample,
    Streaming,
    StreamRound,
    different_samples,
    measure_streams,
    sample_error,
)
from placewright.profiling.verdict import DO_NOT_SPLIT, LEAST_FOR_INTERVAL, Verdict
from placewright.report.comparison_table import ContenderTable, request_table
from placewright.report.stream_text import random_lines
from placewright.report.time_left import Report, no_report
from placewright.report.verdict import predicted_gain
from placewright.session.contenders import (
    CallRunner,
    Contenders,
    judged,
    request_contenders,
    stream_contenders,
)
from placewright.session.measuring import PROBE_SECONDS
from placewright.session.plans import held_lines, recommendation_lines, with_placement
from placewright.session.running import (
    ROUNDS,
    can_stream,
    check_devices,
    limited,
)
from placewright.session.streams import (
    SAMPLES,
    StreamLength,
    StreamResult,
    best_measured,
    contender_to_run,
    latency_95,
    require_no_state,
    stream_memory,
    within_latency,
)
from placewright.simulation.model import Simulator

_MEASURING_SECONDS = 60.0  # of all contenders; slower models get fewer rounds or samples
_PROBE_ROUNDS = 9  # of a split beside one device; an interval needs them
_PROBE_STREAM_ROUNDS = LEAST_FOR_INTERVAL
_NEAR = 1.3  # a single device that is predicted to be slower by more is not probed
_MOST_ROUNDS = 3  # times as many, if the rounds scatter too much for a verdict
_COMPARED = 3  # samples of each simpler contender whose outputs are compared, at least
_CHECKED_SAMPLES = 100


@dataclass(frozen=True)
class Check:
    """Settings of a check on the hardware."""

    latency_limit: float = math.inf  # seconds that 95 % of the samples of a stream may take
    # the fastest of the best candidates by the played stream takes the searched placement's place
    improves: bool = False
    # candidates are searched without a clock, as a search by evaluations is
    is_counted: bool = False


def check_on_hardware(
    plan: Plan,
    model: LoadedModel,
    report: Report = no_report,
    *,
    check: Check | None = None,
    deadline: Deadline = NEVER,
) -> tuple[Plan, ContenderTable]:
    """Measure a plan and its contenders in turns, and keep the recommended placement.

    Args:
        check: None is `Check()`.
        deadline: of everything.

    Returns:
        The plan with its measurement and the recommended contender's placement (if it has none,
        that of the contender which `_written` names), and a table with the verdict.

    Raises:
        InfeasibleError: no number of samples in flight keeps the latency limit and fits memory.
        MismatchError: outputs differ from the unsplit model's.
        OutOfTime: too little was measured at the deadline; for a stream, its `plan` has placement
            and samples in flight as chosen before the contenders were measured.
        StalePlanError: the devices have changed.
    """
    check_devices(plan.problem, plan.runtime)
    checked = _checked_streams if can_stream(plan.problem) else _checked_requests
    return checked(plan, model, check or Check(), report, deadline)


def probe_on_hardware(
    plan: Plan,
    load: Callable[[str], LoadedModel],
    report: Report = no_report,
    *,
    deadline: Deadline = NEVER,
    limit: float | None = None,
    is_asked: bool = False,
) -> tuple[Plan, str]:
    """Measure a split next to the best single devices in a few rounds, and keep the winner.

    Outputs are not compared. A plan whose split is predicted to gain too little is probed only if
    `is_asked`, and one that no single device can replace is not.

    Args:
        load: name of a framework -> the plan's model, loaded by it.
        limit: seconds that 95 % of the samples of a stream may take; single devices that the
            simulator expects to exceed it are not measured, and what exceeds it is not recommended.

    Returns:
        The plan, measured if it was probed, and a clause: what was not measured or compared.

    Raises:
        InfeasibleError: a split that is surely worth it has no room for a stream.
        InputError: a plan for streams has a model that keeps state.
        OutOfTime: the deadline passed before enough was measured.
        StalePlanError: the devices have changed.
    """
    gain = predicted_gain(plan.problem, plan.placement, plan.value, plan.in_flight)
    if gain is None or not (gain.is_worth_a_probe or is_asked):
        return plan, "check on the hardware: outputs were not compared, nor simpler ways measured"
    check_devices(plan.problem, plan.runtime)
    model = load(plan.runtime)
    kept: list[str] | None = None  # by their latency; None is all
    with limited(plan):
        if can_stream(plan.problem):
            require_no_state(model)
            flight = plan.in_flight
            try:
                found = stream_contenders(plan, model, in_flight=flight)
            except InfeasibleError as error:
                if gain.is_sure or is_asked:
                    raise
                return plan, f"check on the hardware: {error}"
            contenders: Contenders[Any] = _few(found)
            has_room = contenders.names != (PLAN,)
            contenders = _within(contenders, plan.problem, limit)
            if contenders.names == (PLAN,):
                why = "keeps the latency limit" if has_room else "has room for a stream"
                return plan, f"check on the hardware: no single device {why}"
            rounds = _probed_rounds(contenders, model, report, deadline)
            seconds = {name: [stream.period for stream in row] for name, row in rounds.items()}
            if limit is not None:
                kept = [name for name, row in rounds.items() if latency_95(row) <= limit]
        else:
            contenders = _few(request_contenders(plan, model))
            seconds = _request_seconds(
                contenders, model, _PROBE_ROUNDS, report, deadline, PROBE_SECONDS
            )
    verdict = judged(contenders, seconds, kept)
    late = "" if kept is None or PLAN in kept else f"; {verdict.text}"
    simpler = " and ".join(f"'{other}'" for other in contenders.names if other != PLAN)
    return _recorded(plan, contenders, verdict, _written(contenders, verdict, seconds)), (
        "check on the hardware: outputs were not compared, and the split was measured beside "
        f"{simpler} only, in {min(map(len, seconds.values()))} rounds{late}"
    )


def _few(contenders: Contenders[Any]) -> Contenders[Any]:
    """Keep the split, and single devices predicted to take <= `_NEAR` times their least seconds."""
    alone = {m.name: m.predicted or math.inf for m in contenders.members if m.is_single}
    near = _NEAR * min(alone.values(), default=math.inf)
    return contenders.only([PLAN, *(name for name, value in alone.items() if value <= near)])


def _within(contenders: Contenders[Any], problem: Problem, limit: float | None) -> Contenders[Any]:
    """Keep the plan, and single devices predicted to keep a latency of `limit` s; None is inf."""
    simulator, kept = Simulator(problem), [PLAN]
    for member in contenders.members:
        with suppress(InfeasibleError):
            if limit is not None and member.placement is not None:
                within_latency(simulator, member.placement, limit)
            kept.append(member.name)
    return contenders.only(kept)


def _probed_rounds(
    contenders: Contenders[SampleServer], model: LoadedModel, report: Report, deadline: Deadline
) -> dict[str, list[StreamRound]]:
    """Contender -> its streams in a probe."""
    inputs = different_samples(model, SAMPLES)
    with ExitStack() as stack:
        servers = {member.name: member.open(stack, None) for member in contenders.members}
        length = StreamRounds(
            servers, inputs, _PROBE_STREAM_ROUNDS, report, deadline, PROBE_SECONDS
        )
        return length.more({})


def _written(
    contenders: Contenders[Any], verdict: Verdict, seconds: Mapping[str, Sequence[float]]
) -> str:
    """Name of the contender whose placement the plan gets: the recommended one, if it has any.

    Else a stream keeps the searched one; for requests, those with a placement are judged again.
    """
    if contenders[verdict.recommendation].placement is not None:
        return verdict.recommendation
    if contenders.played is not None:  # a stream runs the recommended contender by its name
        return contenders.searched
    placed = [member.name for member in contenders.members if member.placement is not None]
    return judged(contenders, {name: seconds[name] for name in placed}).recommendation


def _recorded(plan: Plan, contenders: Contenders[Any], verdict: Verdict, written: str) -> Plan:
    """The plan with the placement of contender `written`, and the verdict's median seconds."""
    mine = verdict.contenders[written]
    others = {
        SEARCHED if name == PLAN else name: timing.median
        for name, timing in verdict.contenders.items()
        if name != written
    }
    measured = Measurement(mine.median, mine.iqr, mine.runs, others, verdict.recommendation)
    if written == contenders.searched:
        return replace(plan, measured=measured)
    placement = contenders[written].placement
    assert placement is not None
    changed = replace(with_placement(plan, placement), measured=measured)
    is_split = len(np.unique(placement.device_of)) > 1
    return changed if contenders.played is None or is_split else replace(changed, in_flight=1)


def _checked_requests(
    plan: Plan, model: LoadedModel, check: Check, report: Report, deadline: Deadline
) -> tuple[Plan, ContenderTable]:
    """Measure single requests, and judge them.

    A contender whose placement the plan would get is left out if its outputs differ; then the rest
    is judged again.
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
    random, contenders = comparison.random, request_contenders(plan, model)
    with limited(plan):
        seconds = _request_seconds(contenders, model, ROUNDS, report, deadline)
    while True:
        verdict = judged(contenders, seconds)
        written = _written(contenders, verdict, seconds)
        placement = contenders[written].placement
        if written == contenders.searched or placement is None:
            break
        with limited(plan):
            other = compare_outputs(problem, placement, model)
        if other.equal:
            random = tuple(dict.fromkeys((*random, *other.random)))
            break
        contenders = contenders.without(written, _why_differs(other.error, other.tolerance))
        seconds = {name: row for name, row in seconds.items() if name != written}
    found = _recorded(plan, contenders, verdict, written)
    found = replace(found, left_out=(*found.left_out, *random_lines(random)))
    return found, request_table(
        plan,
        {name: (timing.median, timing.iqr) for name, timing in verdict.contenders.items()},
        contenders.predicted,
        contenders.searched,
        contenders.left_out,
        (comparison.error, comparison.tolerance, comparison.disputed),
        [verdict.text.removeprefix(DO_NOT_SPLIT), *held_lines(found)],
        random,
    )


def _request_seconds(
    contenders: Contenders[CallRunner],
    model: LoadedModel,
    rounds: int,
    report: Report,
    deadline: Deadline,
    affordable: float = _MEASURING_SECONDS,
) -> dict[str, list[float]]:
    """Contender -> seconds of each round: as many rounds as fit into `affordable` seconds.

    There are at least 9 and at most `rounds`.
    """
    runners: dict[str, CallRunner] = {}
    with ExitStack() as stack:
        with taking_turns(model):
            for member in contenders.members:
                if member.placement is not None:
                    deadline.require(f"'{member.name}' was compiled")
                    runners[member.name] = member.open(stack, None)
        for member in contenders.members:
            if member.placement is None:
                runners[member.name] = member.open(stack, None)
        return measure_interleaved(
            runners,
            model.random_inputs(np.random.default_rng(0)),
            rounds=rounds,
            seconds=affordable,
            deadline=deadline,
            progress=lambda part: report(0.3 + 0.7 * part, "measuring on the hardware"),
        )


def _why_differs(error: float, tolerance: float) -> str:
    """The reason why a contender with such outputs is not comparable."""
    return (
        f"its outputs differ from the unsplit model's (relative error {error:.2g}, tolerance "
        f"{tolerance:.2g})"
    )


def _checked_streams(
    plan: Plan, model: LoadedModel, check: Check, report: Report, deadline: Deadline
) -> tuple[Plan, ContenderTable]:
    """Measure streams of samples, after each contender's outputs were compared."""
    with limited(plan):
        if check.improves and not deadline.is_over:
            report(0.0, "measuring candidates")
            plan = best_measured(
                plan,
                model,
                np.random.default_rng(plan.placer.seed),
                is_counted=check.is_counted,
                latency_limit=check.latency_limit,
                deadline=deadline,
            )
        in_flight = within_latency(Simulator(plan.problem), plan.placement, check.latency_limit)
        plan = replace(plan, in_flight=in_flight)
        try:
            result = execute_stream(
                replace(plan, measured=None),  # the plan's own outputs must be equal
                model,
                length=StreamLength(_CHECKED_SAMPLES),
                latency_limit=check.latency_limit,
                report=report,
                deadline=deadline,
            )
        except OutOfTime as error:
            error.plan = plan
            raise
    _require_equal(result.worst, result.error, result.tolerance)
    return recommended_stream(plan, result)


def _require_equal(worst: int, error: float, tolerance: float) -> None:
    if error > tolerance:
        raise MismatchError(
            f"outputs differ from the unsplit model: relative error {error:.3g} in sample {worst}, "
            f"tolerance {tolerance:.3g}; the plan was not written"
        )


def recommended_stream(plan: Plan, result: StreamResult) -> tuple[Plan, ContenderTable]:
    """The plan that a measured stream recommends, and the table of its contenders."""
    written = _written(result.contenders, result.verdict, result.periods)
    found = _recorded(plan, result.contenders, result.verdict, written)
    keeps = any(map(result.keeps_limit, result.rounds))
    none_keeps = [] if keeps else [f"latency limit: {result.verdict.text}"]
    clauses = (*found.left_out, *random_lines(result.random), *none_keeps)
    found = replace(found, left_out=clauses)
    columns, rows = result.table()
    lines = [line.removeprefix(DO_NOT_SPLIT) for line in result.lines()]
    if found.searched is None:  # else the lines of the plan name both placements
        lines += held_lines(found) or recommendation_lines(found)
    return found, ContenderTable("Streams", columns, rows, "\n".join(dict.fromkeys(lines)))


def execute_stream(
    plan: Plan,
    model: LoadedModel,
    *,
    length: StreamLength | None = None,
    in_flight: int | None = None,
    latency_limit: float = math.inf,
    report: Report = no_report,
    deadline: Deadline = NEVER,
) -> StreamResult:
    """Stream samples through a plan, check all outputs, and measure the rates of all contenders.

    Args:
        plan, model: a plan that `session.streams.require_streamable` accepts, and its model.
        length: None is `StreamLength()`.
        in_flight: largest number of samples in flight; None takes the plan's, or, if it has none,
            as many as shorten the predicted seconds per sample and fit into memory.
        latency_limit: seconds that 95 % of a contender's samples may take.
        deadline: nothing new starts after it.

    Raises:
        InputError: the model keeps state.
        StalePlanError: the devices have changed.
        InfeasibleError: so many samples do not fit into a device's memory.
        RuntimeFailure: a sample failed; the message names it and its segment.
        MismatchError: the plan's outputs differ from the unsplit model's; without a limited
            deadline the result has the error instead.
        OutOfTime: the deadline passed before all contenders had the rounds that a verdict needs.
    """
    require_no_state(model)
    length = length or StreamLength()
    check_devices(plan.problem, plan.runtime)
    if in_flight is None:
        in_flight = plan.in_flight
    elif length.seconds is None:
        in_flight = min(in_flight, length.samples)
    contenders = stream_contenders(plan, model, in_flight=in_flight)
    inputs = different_samples(model, length.samples)
    with ExitStack() as stack:
        servers: dict[str, SampleServer] = {}
        for member in contenders.members:
            deadline.require(f"'{member.name}' was compiled")
            servers[member.name] = member.open(stack, None)
        report(0.1, "comparing the outputs of every sample")
        given = inputs if length.seconds is None else repeated(inputs, length.seconds)
        compare = _Comparing(model, plan)
        first = contender_to_run(plan) if contender_to_run(plan) in servers else PLAN
        count, worst, error = compare.worst(servers[first], given, contenders[first].placement)
        if deadline.is_limited and first == PLAN:  # its end must not hide that outputs differ
            _require_equal(worst, error, compare.tolerance)
        for name in [name for name in contenders.names if name != first]:
            deadline.require(f"outputs of '{name}' were compared")
            some = _some_of(inputs, servers[name].burst)
            _, at, off = compare.worst(servers[name], some, contenders[name].placement)
            if name == PLAN:
                if deadline.is_limited:
                    _require_equal(at, off, compare.tolerance)
                worst, error = (worst, error) if error >= off else (at, off)
            elif off > compare.tolerance:
                del servers[name]
                contenders = contenders.without(name, _why_differs(off, compare.tolerance))
        random, tolerance = compare.random, compare.tolerance
        del compare  # its models would take memory and caches from the rounds
        rounds = StreamRounds(servers, inputs, length.rounds, report, deadline)
        result = StreamResult(
            count, worst, error, tolerance, contenders, rounds.more({}), latency_limit
        )
        for _ in range(1, _MOST_ROUNDS):
            if not result.is_close or deadline.is_over:
                break
            result = replace(result, rounds=rounds.more(result.rounds))
    memory = stream_memory(plan, model, result.in_flight)
    return replace(result, memory=memory, random=random)


def _some_of(inputs: Sequence[Sample], burst: int) -> list[Sample]:
    """Samples of a short comparison: two for each of `burst` parallel requests, at least three."""
    return list(itertools.islice(itertools.cycle(inputs), max(_COMPARED, 2 * burst)))


class _Comparing:
    """Compares each sample's outputs with those of the unsplit model, run by its framework."""

    def __init__(self, model: LoadedModel, plan: Plan) -> None:
        self._model, self._devices = model, plan.problem.cluster.devices
        self._names = output_names(plan.problem.graph, model)
        self._plain = model.plain(self._devices[0])
        self._checks: dict[tuple[str, ...], OutputCheck] = {}  # by the devices of their levels
        self.tolerance = model.tolerance(self._devices)
        self._known: dict[int, list[HostArray]] = {}
        self._open: set[int] = set()  # outputs that some contender compared in no sample

    @property
    def random(self) -> tuple[str, ...]:
        """Names of outputs that could not be compared: runs of the unsplit model itself differ."""
        random = self._open.union(*(check.random for check in self._checks.values()))
        return tuple(dict.fromkeys(name for at, name in enumerate(self._names) if at in random))

    def worst(
        self, server: SampleServer, samples: Iterable[Sample], placement: Placement | None = None
    ) -> tuple[int, int, float]:
        """Number of executed samples, index of the one with the largest error, and this error.

        Args:
            placement: of the contender; None may use every device.

        Raises:
            RuntimeFailure: a sample failed; the message names it.
        """
        check = self._check(placement)
        check.compared.clear()  # what another contender of these devices could compare
        sent: deque[Sample] = deque()  # without an answer yet

        def noted() -> Iterator[Sample]:
            for sample in samples:
                sent.append(sample)
                yield sample

        count, worst, largest = 0, 0, 0.0
        for count, answer in enumerate(server.outcomes(noted()), start=1):
            if isinstance(answer, RuntimeFailure):
                raise RuntimeFailure(f"sample {count - 1}: {answer}") from answer
            error = sample_error(check, sent.popleft(), answer.outputs, self._known)
            if error > largest or math.isnan(error):
                worst, largest = count - 1, math.inf if math.isnan(error) else error
        self._open |= set(range(len(self._names))) - check.compared
        return count, worst, largest

    def _check(self, placement: Placement | None) -> OutputCheck:
        """The check for a placement's devices, kept so that its unsplit models are loaded once."""
        used = self._devices
        if placement is not None:
            used = tuple(devices_used(self._devices, placement.device_of))
        key = tuple(dict.fromkeys(device.name for device in used))
        if key not in self._checks:
            self._checks[key] = OutputCheck(self._model, self._devices, self._plain, levels_of=used)
        return self._checks[key]


def repeated(
    samples: Sequence[Sample], seconds: float, clock: Callable[[], float] = time.monotonic
) -> Iterator[Sample]:
    """Repeat samples until so many seconds have passed; each comes at least once."""
    end = clock() + seconds
    for count, sample in enumerate(itertools.cycle(samples)):
        if clock() >= end and count >= len(samples):
            return
        yield sample


class StreamRounds:
    """Rounds of streams of all contenders.

    A round has as many samples as let all rounds end within `seconds`, at most its share of
    `inputs`, but at least three of the largest bursts and two more.
    """

    def __init__(
        self,
        servers: Mapping[str, SampleServer],
        inputs: Sequence[Sample],
        rounds: int,
        report: Report,
        deadline: Deadline,
        seconds: float = _MEASURING_SECONDS,
    ) -> None:
        self._streams = {name: _run_many(server) for name, server in servers.items()}
        self._bursts = {name: server.burst for name, server in servers.items()}
        self._rounds, self._report, self._deadline = rounds, report, deadline
        self._skipped = max(self._bursts.values())
        least = 3 * self._skipped + 2  # a whole burst between filling and draining
        inputs = [inputs[at % len(inputs)] for at in range(max(len(inputs), least))]
        took = 0.0
        for name, stream in self._streams.items():
            deadline.require(f"'{name}' had run")
            start = time.perf_counter()
            stream(inputs[: self._skipped + 2])
            took += (time.perf_counter() - start) / (self._skipped + 2)
        affordable = int(min(seconds, deadline.seconds_left) / max(rounds * took, 1e-9))
        length = min(len(inputs), max(least, min(affordable, max(least, len(inputs) // rounds))))
        self._inputs = inputs[:length]

    def more(self, before: Mapping[str, Sequence[StreamRound]]) -> dict[str, list[StreamRound]]:
        """Measure `rounds` more; a new dictionary of those in `before`, followed by these.

        Raises:
            OutOfTime: the deadline passed before there were enough rounds for a verdict.
        """
        least = min(LEAST_FOR_INTERVAL, self._rounds)
        rounds = measure_streams(
            self._streams,
            self._inputs,
            rounds=self._rounds,
            skipped=self._skipped,
            bursts=self._bursts,
            progress=lambda done: self._report(0.3 + 0.7 * done, "measuring streams"),
            least=max(0, least - min(map(len, before.values()), default=0)),
            deadline=self._deadline,
        )
        return {name: [*before.get(name, ()), *row] for name, row in rounds.items()}


def _run_many(server: SampleServer) -> Streaming:
    return lambda samples: executions(server.outcomes(samples))

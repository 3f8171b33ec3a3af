"""A stream on the hardware beside simpler ways: outputs of every sample, rates, a verdict."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from placewright.core.contender_names import COPIES, CORES, EVEN_SPLIT, MODE, PLAN
from placewright.core.deadline import NEVER, Deadline
from placewright.core.plan import Plan
from placewright.errors import InputError, RuntimeFailure
from placewright.execution.output_check import OutputCheck
from placewright.execution.requests import Execution
from placewright.execution.runtime import HostArray, LoadedModel
from placewright.execution.sample_server import SampleServer
from placewright.profiling.streams import (
    Sample,
    Streaming,
    StreamRound,
    different_samples,
    measure_streams,
    sample_error,
)
from placewright.profiling.verdict import Verdict, judge
from placewright.session.running import check_devices
from placewright.session.steps import Report, no_report
from placewright.session.stream_memory import stream_memory
from placewright.session.stream_result import StreamResult
from placewright.session.stream_ways import StreamWays, stream_server, stream_ways
from placewright.session.streaming import LEAST_SAMPLES, kept_way, streamable

ROUNDS = 9
SAMPLES = 200
MOST_LOSS = 0.03  # a way that takes so much longer than the fastest one is never recommended
_MOST_ROUNDS = 3  # times as many, where the rounds scatter too much to tell
_MEASURING_SECONDS = 60.0  # of all contenders, where a sample is so slow that fewer make a round
_CHECKED = 3  # samples of each simpler way whose outputs are compared


@dataclass(frozen=True)
class StreamLength:
    """How long is streamed.

    Attributes:
        samples: of the stream whose outputs are compared, and of a round at most.
        seconds: that this stream goes on, whatever `samples` is; None counts samples.
        rounds: of all contenders; up to three times as many where they scatter too much to tell
            which way to recommend.

    Raises:
        InputError: it is too short to have a rate.
    """

    samples: int = SAMPLES
    seconds: float | None = None
    rounds: int = ROUNDS

    def __post_init__(self) -> None:
        if self.samples < LEAST_SAMPLES:
            raise InputError(
                f"samples must be >= {LEAST_SAMPLES} to measure a rate, got {self.samples}"
            )
        if self.seconds is not None and not 0 < self.seconds < math.inf:
            raise InputError(f"seconds must be > 0 and finite, got {self.seconds}")


def execute_stream(
    plan: Plan,
    model: LoadedModel | None = None,
    *,
    length: StreamLength | None = None,
    in_flight: int | None = None,
    latency_limit: float = math.inf,
    report: Report = no_report,
    deadline: Deadline = NEVER,
) -> StreamResult:
    """Stream different samples through a plan, check all their outputs, and measure its rate
    beside simpler ways.

    Args:
        plan: from `place` or `read_plan`.
        model: the plan's, loaded by its runtime; None loads it.
        length: None is the usual one.
        in_flight: samples under way at most in the plan; None takes as many as pay.
        latency_limit: seconds that 95 % of a contender's samples may take.
        report: told what is being done.
        deadline: nothing new starts after it.

    Raises:
        InputError: the plan cannot be streamed.
        StalePlanError: the model or the devices have changed.
        InfeasibleError: so many samples do not fit into a device's memory.
        RuntimeFailure: a sample failed; the message names it and its segment.
        OutOfTime: the deadline passed before all contenders had run.
    """
    length = length or StreamLength()
    model = streamable(plan, model)
    check_devices(plan.problem, plan.runtime)
    ways = stream_ways(plan, model, in_flight=in_flight or plan.in_flight)
    inputs = different_samples(model, length.samples)
    with ExitStack() as stack:
        servers: dict[str, SampleServer] = {}
        for name in ways.names:
            deadline.require(f"'{name}' was compiled")
            servers[name] = stream_server(plan, model, ways, name, stack)
        report(0.1, "comparing the outputs of every sample")
        given = inputs if length.seconds is None else _until(inputs, length.seconds)
        compare = _Comparing(model, plan)
        count, worst, error = compare.worst(servers[_first(plan, servers)], given)
        for name in [one for one in ways.names if one != _first(plan, servers)]:
            deadline.require(f"outputs of '{name}' were compared")
            off = compare.worst(servers[name], inputs[:_CHECKED])[2]
            if name == PLAN:
                worst, error = (worst, error) if error >= off else (0, off)
            elif off > compare.tolerance:
                del servers[name]
                ways = ways.without(name, compare.reason(off))
        measuring = _Measuring(servers, inputs, length.rounds, report, deadline)
        found = measuring.more({})
        unjudged = StreamResult(
            count,
            ways.played[PLAN].in_flight,
            worst,
            error,
            compare.tolerance,
            ways.played[PLAN],
            found,
            judge({name: [1.0] for name in found}, []),
            ways.predicted,
            ways.left_out,
            latency_limit,
        )
        result = judged(unjudged, ways)
        for _ in range(1, _MOST_ROUNDS):
            if not _is_close(result, ways) or deadline.is_over:
                break
            result = judged(replace(result, rounds=measuring.more(result.rounds)), ways)
    return replace(result, memory=stream_memory(plan, model, result.in_flight))


def _first(plan: Plan, servers: Mapping[str, SampleServer]) -> str:
    """The way whose outputs are all compared: the one that the plan is to be run."""
    return kept_way(plan) if kept_way(plan) in servers else PLAN


class _Comparing:
    """Outputs beside those of the library's own unsplit run, as they come."""

    def __init__(self, model: LoadedModel, plan: Plan) -> None:
        devices = plan.problem.cluster.devices
        self._check = OutputCheck(model, devices)
        self.tolerance = self._check.tolerance
        self._known: dict[int, list[HostArray]] = {}

    def reason(self, error: float) -> str:
        """Why a way with such outputs is not comparable."""
        return (
            f"its outputs differ from the unsplit model's (relative error {error:.2g}, tolerance "
            f"{self.tolerance:.2g})"
        )

    def worst(self, server: SampleServer, samples: Iterable[Sample]) -> tuple[int, int, float]:
        """How many samples passed, the worst of them, and its relative error.

        Raises:
            RuntimeFailure: a sample failed; the message names it.
        """
        passed: list[Sample] = []

        def noted() -> Iterator[Sample]:
            for sample in samples:
                passed.append(sample)
                yield sample

        count, worst, largest = 0, 0, 0.0
        for count, answer in enumerate(server.outcomes(noted()), start=1):
            if isinstance(answer, RuntimeFailure):
                raise RuntimeFailure(f"sample {count - 1}: {answer}") from answer
            error = sample_error(self._check, passed[count - 1], answer.outputs, self._known)
            if error > largest or math.isnan(error):
                worst, largest = count - 1, math.inf if math.isnan(error) else error
        return count, worst, largest


def _now() -> float:
    return time.monotonic()


def _until(samples: Sequence[Sample], seconds: float) -> Iterator[Sample]:
    """The samples again and again, until so many seconds have passed since the first."""
    end = _now() + seconds
    while True:
        for sample in samples:
            if _now() >= end:
                return
            yield sample


class _Measuring:
    """Rounds of all contenders in turn, each as long as their time allows."""

    def __init__(
        self,
        servers: Mapping[str, SampleServer],
        inputs: Sequence[Sample],
        rounds: int,
        report: Report,
        deadline: Deadline,
    ) -> None:
        self._ways: dict[str, Streaming] = {name: _run_many(one) for name, one in servers.items()}
        self._bursts = {name: one.burst for name, one in servers.items()}
        self._rounds, self._report = rounds, report
        self._skipped = min(max(self._bursts.values()), (len(inputs) - 2) // 3)
        took = 0.0
        for name, way in self._ways.items():
            deadline.require(f"'{name}' had run")
            start = time.perf_counter()
            way(inputs[: self._skipped + 2])
            took += (time.perf_counter() - start) / (self._skipped + 2)
        affordable = int(_MEASURING_SECONDS / max(rounds * took, 1e-9))
        least = 3 * self._skipped + 2
        length = min(len(inputs), max(least, min(affordable, max(least, len(inputs) // rounds))))
        self._inputs = inputs[:length]

    def more(self, before: Mapping[str, Sequence[StreamRound]]) -> dict[str, list[StreamRound]]:
        """What was measured before, and as many rounds again."""
        found = measure_streams(
            self._ways,
            self._inputs,
            rounds=self._rounds,
            skipped=self._skipped,
            bursts=self._bursts,
            progress=lambda done: self._report(0.3 + 0.7 * done, "measuring streams"),
        )
        return {name: [*before.get(name, ()), *row] for name, row in found.items()}


def _run_many(server: SampleServer) -> Streaming:
    def run(samples: Sequence[Sample]) -> list[Execution]:
        found: list[Execution] = []
        for answer in server.outcomes(samples):
            if isinstance(answer, RuntimeFailure):
                raise answer
            found.append(answer)
        return found

    return run


def judged(result: StreamResult, ways: StreamWays, most_loss: float = MOST_LOSS) -> StreamResult:
    """The result with a verdict over the contenders that keep the latency limit; over all where
    none does.

    Only what was measured decides. A simpler way goes first where its rounds could be as fast as
    the fastest way's, but never one whose median is longer by more than `most_loss`.
    """
    return replace(result, verdict=_verdict(result, ways, most_loss))


def _is_close(result: StreamResult, ways: StreamWays) -> bool:
    """True where the simplest way that could be as fast is not near the fastest by its median."""
    of_scatter = _verdict(result, ways, math.inf).recommendation
    return of_scatter != result.verdict.recommendation


def _verdict(result: StreamResult, ways: StreamWays, most_loss: float) -> Verdict:
    periods = {name: [one.period for one in row] for name, row in result.rounds.items()}
    kept = {name: row for name, row in periods.items() if result.keeps_limit(name)}
    simpler = [name for name in ways.names if name in kept and name != PLAN]
    splits = (COPIES, CORES, EVEN_SPLIT, MODE)
    whole = judge(periods, [name for name in ways.names if name != PLAN], splits=splits)
    if not kept:
        text = "no contender keeps the latency limit; let fewer samples in, or raise the limit"
        return replace(whole, recommendation=PLAN, split=False, text=text)
    if PLAN in kept:
        found = judge(kept, simpler, splits=splits, most_loss=most_loss)
        return replace(found, contenders=whole.contenders)
    fastest = min(simpler, key=lambda name: whole.contenders[name].median)
    text = f"run '{fastest}': the plan does not keep the latency limit, and this is the fastest"
    return replace(whole, recommendation=fastest, split=False, text=text)

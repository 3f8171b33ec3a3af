"""What streams cost on this machine beside their units, fitted to segments of a few of them.

In a full pipeline every device works all the time: memory is shared by all of them, and each hand-
over competes with the others for the interpreter. So segments are timed while samples follow each
other, and their seconds are explained as `segment_fit` says. A device that has the next segment
ready does not begin it at once, either: the median of these gaps is part of what a segment costs.

The streams are those of placements that wander and of placements that keep all devices busy, and
one copy of the model on every device at once, which tells contention best. Seconds of a stream are
divided by those of the unsplit model between its rounds, so that a machine that has become slower
since it was profiled does not count as an overhead. Medians count: what others do to a core for
part of a second is no cost of the stream.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np

from placewright.core.arrays import BoolArray, FloatArray
from placewright.core.deadline import NEVER, Deadline
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.execution.placements import whole_model_runner
from placewright.execution.requests import Execution
from placewright.execution.runner import ConcurrentRunner
from placewright.execution.runtime import LoadedModel, OpSegment
from placewright.profiling.calibration import without_limits
from placewright.profiling.drawn_placements import drawn_placement
from placewright.profiling.measure import Ahead
from placewright.profiling.segment_fit import (
    SegmentRow,
    fitted_cluster,
    in_use_of_domain,
    segment_rows,
)
from placewright.profiling.streams import different_samples, stream_parts, stream_runner
from placewright.simulation.model import Simulator

PLACEMENTS = 8
LEAST_PLACEMENTS = 4  # a fit to fewer would promise more than it knows
_SECONDS = 5.0  # that the rounds of one placement should take
_LEAST_ROUNDS, _MOST_ROUNDS = 2, 6
_MOST_IN_FLIGHT = 6  # more of them tell nothing new about segments
_COPIED = 6  # samples of each copy in a round


@dataclass(frozen=True, eq=False)
class StreamFit:
    """A problem with fitted overheads.

    Attributes:
        problem: with the fit; the one that was given, where nothing was fitted.
        streams: that were measured.
        is_complete: False where the deadline left some out.
    """

    problem: Problem
    streams: int
    is_complete: bool


def has_stream_overheads(problem: Problem) -> bool:
    """True where streams of several measured devices follow each other."""
    return (
        problem.n_devices > 1
        and problem.objective == "throughput"
        and not (problem.cluster.replicas > 1).any()
    )


def stream_calibration(
    problem: Problem,
    model: LoadedModel,
    rng: np.random.Generator,
    *,
    progress: Callable[[float], None] = lambda part: None,
    deadline: Deadline = NEVER,
) -> StreamFit:
    """Measure a few streams and fit what they cost.

    Args:
        problem: as it was profiled, of single devices; what its cluster says of overheads is
            replaced.
        model: as its runtime has read it.
        rng: draws the placements.
        progress: called with the finished part, 0 to 1.
        deadline: no stream starts after it. With fewer than four nothing is fitted.
    """
    bare = problem.cluster.without_overheads
    plain = replace(problem, cluster=without_limits(bare))
    whole: BoolArray = np.asarray(np.isfinite(plain.costs.seconds).all(axis=0))
    drawn = [Placement.of(drawn_placement(plain, rng, at)) for at in range(PLACEMENTS)]
    simulator = Simulator(plain)
    wanted = [one for one in drawn if simulator.violation(one) is None]
    rows: list[SegmentRow] = []
    gaps: list[float] = []
    done = 0
    with _Reference(plain, model, whole) as reference:
        if whole.all() and not deadline.is_over:
            rows += _copies(plain, model, reference)
        for placement in wanted:
            if deadline.is_over:
                break
            more, gap = _stream(plain, model, placement, reference)
            rows += more
            gaps += gap
            done += 1
            progress(done / len(wanted))
    if done < min(LEAST_PLACEMENTS, len(wanted)) or not rows:
        return StreamFit(problem, done, is_complete=done == len(wanted))
    return StreamFit(fitted_problem(problem, rows, gaps), done, is_complete=done == len(wanted))


def stream_calibration_seconds(ahead: Ahead) -> float:
    """What `stream_calibration` takes, roughly, with as many samples in flight as it measures.

    Args:
        ahead: of the model's measurement.
    """
    samples = (3 * _MOST_IN_FLIGHT + 3) * ahead.request_seconds
    each = _rounds(samples) * samples + ahead.compile_seconds
    return (PLACEMENTS + 1) * each


def fitted_problem(problem: Problem, rows: Sequence[SegmentRow], gaps: Sequence[float]) -> Problem:
    """The problem with what explains segments, and gaps between them as part of each segment."""
    gap = statistics.median(gaps) if gaps else 0.0
    found = fitted_cluster(problem.cluster.without_overheads, list(rows), [])
    devices = tuple(
        replace(one, dispatch_seconds=one.dispatch_seconds + gap) for one in found.devices
    )
    return replace(problem, cluster=replace(found, devices=devices))


class _Reference:
    """The unsplit model on the first device that takes all of it; nothing where none does."""

    def __init__(self, problem: Problem, model: LoadedModel, whole: BoolArray) -> None:
        self._stack = ExitStack()
        self._runner: ConcurrentRunner | None = None
        self._samples = different_samples(model, 2)
        costs = problem.costs.seconds
        self.seconds = float(np.where(np.isfinite(costs), costs, 0.0).sum(axis=0).max())
        if whole.any():
            device = int(np.argmax(whole))
            self.seconds = float(problem.costs.seconds[:, device].sum())
            runner = whole_model_runner(model, problem.cluster.devices[device])
            self._runner = self._stack.enter_context(runner)
            self._runner.run_many(self._samples)

    def __enter__(self) -> _Reference:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self) -> list[float]:
        """Seconds of a few samples."""
        if self._runner is None:
            return [1.0]
        return [_computed(one) for one in self._runner.run_many(self._samples)]

    def scale(self, seconds: Sequence[float]) -> float:
        """What the costs say of the reference, over what was measured."""
        return 1.0 if self._runner is None else self.seconds / statistics.median(seconds)


def _computed(answer: Execution) -> float:
    return sum(end - start for start, end in answer.spans)


def _copies(problem: Problem, model: LoadedModel, reference: _Reference) -> list[SegmentRow]:
    """The whole model on every device at once: a row for each device."""
    devices = problem.cluster.devices
    used = list(range(len(devices)))
    samples = different_samples(model, _COPIED)
    found: list[list[float]] = [[] for _ in devices]
    beside: list[float] = []
    with ExitStack() as stack, ThreadPoolExecutor(len(devices)) as pool:
        runners = [stack.enter_context(whole_model_runner(model, one)) for one in devices]
        for runner in runners:
            runner.run_many(samples[:1])
        for _ in range(_rounds(reference.seconds * (_COPIED + 2))):
            for at, answers in enumerate(pool.map(lambda one: one.run_many(samples), runners)):
                found[at] += [_computed(one) for one in answers[1:-1]]
            beside += reference.run()
    scale, number = reference.scale(beside), in_use_of_domain(problem.cluster, used)
    counts = np.array([1.0, 0.0, 0.0, 0.0, 0.0])  # one segment, and nothing is cut
    return [
        SegmentRow(
            at,
            number[at],
            float(problem.costs.seconds[:, at].sum()),
            counts,
            statistics.median(found[at]) * scale,
        )
        for at in used
    ]


def _stream(
    problem: Problem, model: LoadedModel, placement: Placement, reference: _Reference
) -> tuple[list[SegmentRow], list[float]]:
    """Rows of a placement's stream, and gaps between segments of a device."""
    parts = stream_parts(problem, placement)
    best = Simulator(problem).stream(placement, samples=20).in_flight
    in_flight = min(best, _MOST_IN_FLIGHT)
    count = 3 * in_flight + 1
    samples = different_samples(model, count)
    spans: list[FloatArray] = []
    gaps: list[float] = []
    beside: list[float] = []
    with stream_runner(problem, placement, model, in_flight=in_flight) as runner:
        runner.run_many(samples[: in_flight + 1])
        for _ in range(_rounds(reference.seconds * (count + 2))):
            answers = runner.run_many(samples)
            spans += [np.array(one.spans) for one in answers[in_flight : count - in_flight]]
            gaps += gaps_between(problem, parts, answers)
            beside += reference.run()
    scale = reference.scale(beside)
    rows = segment_rows(problem, parts, placement.device_of, np.array(spans) * scale)
    return rows, [gap * scale for gap in gaps]


def _rounds(seconds: float) -> int:
    return int(np.clip(_SECONDS / max(seconds, 1e-9), _LEAST_ROUNDS, _MOST_ROUNDS))


def gaps_between(
    problem: Problem, segments: Sequence[OpSegment], answers: Sequence[Execution]
) -> list[float]:
    """Seconds from the end of a segment to the begin of the next one of its device, wherever that
    one had all its inputs by then.

    Args:
        problem: whose graph the segments are of.
        segments: of one sample.
        answers: of a stream.
    """
    home = {op: index for index, segment in enumerate(segments) for op in segment.ops}
    needs = []
    for segment in segments:
        producers = problem.graph.tensor_producers[list(segment.inputs)].tolist()
        needs.append(sorted({home[op] for op in producers if op >= 0}))
    found: list[float] = []
    for device in dict.fromkeys(segment.device for segment in segments):
        here = [at for at, segment in enumerate(segments) if segment.device == device]
        rows = []
        for one in answers:
            for at in here:
                ready = max([0.0, *(one.spans[other][1] for other in needs[at])])
                begin, end = one.spans[at]
                rows.append((one.start + begin, one.start + end, one.start + ready))
        rows.sort()
        found += [
            begin - ended
            for (_, ended, _), (begin, _, ready) in itertools.pairwise(rows)
            if ready <= ended
        ]
    return found

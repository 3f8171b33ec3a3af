"""Calibration of streams: costs beside their units, fitted to segments of a few streams.

In a full pipeline every device works all the time: all share memory, and transfers compete for the
interpreter. So segments are timed while samples follow each other, and `segment_fit` explains their
seconds. A device does not start a segment that is ready at once. The median of these gaps is part
of the dispatch overhead.

The streams are those of `evidence.drawn_placement`, and one copy of the model on every device at
once, which shows contention best. Seconds of a stream are divided by those of the unsplit model
between its rounds, so that a machine that has become slower since it was profiled causes no
overhead.
Medians count, because short disturbances by other programs are no cost of the stream.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np

from placewright.core.arrays import BoolArray, FloatArray
from placewright.core.cluster import Device
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.core.processors import first_on_processors
from placewright.errors import InfeasibleError
from placewright.execution.members import Members
from placewright.execution.output_check import OutputCheck
from placewright.execution.placements import CopyPerDevice, whole_model_runner
from placewright.execution.requests import Execution
from placewright.execution.runner import ConcurrentRunner
from placewright.execution.runtime import HostArray, LoadedModel, OpSegment, segments_of_units
from placewright.profiling.calibration import without_limits
from placewright.profiling.evidence import drawn_placement
from placewright.profiling.hardware import NEVER, Deadline
from placewright.profiling.measure import Ahead
from placewright.profiling.segment_fit import (
    SegmentRow,
    fitted_cluster,
    in_use_of_domain,
    segment_rows,
)
from placewright.simulation.model import Simulator
from placewright.simulation.segments import stream_segments

PLACEMENTS = 8
LEAST_PLACEMENTS = 4  # a fit to fewer is too uncertain
_SECONDS = 5.0  # wanted for the rounds of one placement
_LEAST_ROUNDS, _MOST_ROUNDS = 2, 6
_MOST_IN_FLIGHT = 6  # more show nothing new about segments
_COPIED_SAMPLES = 6  # of each copy in a round


@dataclass(frozen=True, eq=False)
class StreamFit:
    """A problem with fitted overheads."""

    problem: Problem  # with the fit, or the argument itself if nothing was fitted
    streams: int  # number of measured streams
    # False if the deadline left streams out, or too few fit into the memory of accelerators
    is_complete: bool


def has_stream_overheads(problem: Problem) -> bool:
    """True if streams run on several measured devices."""
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
    """Measure a few streams and fit their costs.

    Args:
        problem: as it was profiled, of single devices; overheads of its cluster are replaced.
        progress: called with the finished part, 0 to 1.
        deadline: no stream starts after it. Nothing is fitted to fewer than four.
    """
    bare = problem.cluster.without_overheads
    plain = replace(problem, cluster=without_limits(bare))
    whole: BoolArray = np.asarray(np.isfinite(plain.costs.seconds).all(axis=0))
    drawn = [Placement.of(drawn_placement(plain, rng, at)) for at in range(PLACEMENTS)]
    simulator = Simulator(plain)
    wanted = [placement for placement in drawn if _fits(simulator, placement)]
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
    if done < LEAST_PLACEMENTS:
        return StreamFit(problem, done, is_complete=False)
    return StreamFit(fitted_problem(problem, rows, gaps), done, is_complete=done == len(wanted))


def _fits(simulator: Simulator, placement: Placement) -> bool:
    """True if a stream of a placement keeps the limits on memory."""
    if simulator.violation(placement) is not None:
        return False
    try:
        simulator.stream(placement, samples=2)
    except InfeasibleError:
        return False
    return True


def stream_calibration_seconds(ahead: Ahead) -> float:
    """Estimate the seconds of `stream_calibration`.

    Args:
        ahead: plan of the model's measurement.
    """
    samples = (3 * _MOST_IN_FLIGHT + 3) * ahead.request_seconds
    of_stream = _rounds(samples) * samples + ahead.compile_seconds
    return (PLACEMENTS + 1) * of_stream


def fitted_problem(problem: Problem, rows: Sequence[SegmentRow], gaps: Sequence[float]) -> Problem:
    """Fit overheads to rows; the median gap between segments is added to the dispatch overhead."""
    gap = statistics.median(gaps) if gaps else 0.0
    cluster = fitted_cluster(problem.cluster.without_overheads, list(rows), [])
    devices = tuple(
        replace(device, dispatch_seconds=device.dispatch_seconds + gap)
        for device in cluster.devices
    )
    return replace(problem, cluster=replace(cluster, devices=devices))


class _Reference:
    """The unsplit model on the first device that can run it; nothing if there is none."""

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
        return [_segment_seconds(answer) for answer in self._runner.run_many(self._samples)]

    def scale(self, seconds: Sequence[float]) -> float:
        """Seconds of the reference by the cost table, over the measured ones."""
        return 1.0 if self._runner is None else self.seconds / statistics.median(seconds)


def _segment_seconds(answer: Execution) -> float:
    return sum(end - start for start, end in answer.spans)


def _copies(problem: Problem, model: LoadedModel, reference: _Reference) -> list[SegmentRow]:
    """Measure the whole model on every device at once; return a row for each device.

    Of the modes of a processor the first takes part.
    """
    used = sorted(set(first_on_processors(problem.cluster.devices)))
    devices = [problem.cluster.devices[at] for at in used]
    samples = different_samples(model, _COPIED_SAMPLES)
    seconds: list[list[float]] = [[] for _ in devices]
    beside: list[float] = []
    with ExitStack() as stack, ThreadPoolExecutor(len(devices)) as pool:
        runners = [stack.enter_context(whole_model_runner(model, device)) for device in devices]
        for runner in runners:
            runner.run_many(samples[:1])
        for _ in range(_rounds(reference.seconds * (_COPIED_SAMPLES + 2))):
            for at, answers in enumerate(
                pool.map(lambda runner: runner.run_many(samples), runners)
            ):
                seconds[at] += [_segment_seconds(answer) for answer in answers[1:-1]]
            beside += reference.run()
    scale, number = reference.scale(beside), in_use_of_domain(problem.cluster, used)
    counts = np.array([1.0, 0.0, 0.0, 0.0, 0.0])  # one segment, and nothing is cut
    return [
        SegmentRow(
            at,
            number[at],
            float(problem.costs.seconds[:, at].sum()),
            counts,
            statistics.median(measured) * scale,
        )
        for at, measured in zip(used, seconds, strict=True)
    ]


def _stream(
    problem: Problem, model: LoadedModel, placement: Placement, reference: _Reference
) -> tuple[list[SegmentRow], list[float]]:
    """Measure a placement's stream; return its rows and the gaps between segments of a device."""
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
            spans += [np.array(x.spans) for x in answers[in_flight : count - in_flight]]
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
    """Seconds between segments of a processor, if the next segment had all its inputs.

    Modes of one processor compute one after the other. Inputs arrive when the bandwidth of their
    link has copied them.
    """
    processor_of = first_on_processors(problem.cluster.devices)
    home = {op: index for index, segment in enumerate(segments) for op in segment.ops}
    per_byte, sizes = problem.cluster.link_seconds_per_byte, problem.graph.tensor_bytes
    needs = []
    for segment in segments:
        producers = problem.graph.tensor_producers[list(segment.inputs)].tolist()
        copied: dict[int, float] = {}  # segment -> seconds that its tensors take to this device
        for tensor, op in zip(segment.inputs, producers, strict=True):
            if op >= 0:
                rate = float(per_byte[segments[home[op]].device, segment.device])
                seconds = rate * float(sizes[tensor]) if rate else 0.0
                copied[home[op]] = copied.get(home[op], 0.0) + seconds
        needs.append(copied)
    gaps: list[float] = []
    for processor in dict.fromkeys(processor_of[segment.device] for segment in segments):
        here = [at for at, one in enumerate(segments) if processor_of[one.device] == processor]
        rows = []
        for answer in answers:
            for at in here:
                arrivals = [answer.spans[other][1] + s for other, s in needs[at].items()]
                ready = max([0.0, *arrivals])
                begin, end = answer.spans[at]
                rows.append((answer.start + begin, answer.start + end, answer.start + ready))
        rows.sort()
        gaps += [
            begin - ended
            for (_, ended, _), (begin, _, ready) in itertools.pairwise(rows)
            if ready <= ended
        ]
    return gaps


Sample = Sequence[HostArray]
Streaming = Callable[[Sequence[Sample]], list[Execution]]

_DISTINCT = 200  # samples with different inputs; longer streams repeat them


@dataclass(frozen=True, eq=False)
class StreamRound:
    """A stream of a contender."""

    period: float  # seconds per sample, without filling and draining
    latencies: FloatArray  # seconds of each sample from its entry to its end, shape (n_samples,)


def stream_parts(problem: Problem, placement: Placement) -> tuple[OpSegment, ...]:
    """Segments that a runtime executes for a stream: exactly those that the simulator plays."""
    segments = stream_segments(problem, placement.device_of)
    return segments_of_units(problem, [(s.device, s.units) for s in segments])


def stream_runner(
    problem: Problem, placement: Placement, model: LoadedModel, *, in_flight: int
) -> ConcurrentRunner:
    """Make a runner of a placement for streams. Close it, or use it as a context manager."""
    parts = stream_parts(problem, placement)
    return ConcurrentRunner(model, parts, problem.cluster.devices, in_flight=in_flight)


def different_samples(model: LoadedModel, count: int) -> list[list[HostArray]]:
    """Random inputs of `count` samples, which repeat after `_DISTINCT` samples."""
    distinct = [
        list(model.random_inputs(np.random.default_rng(seed)))
        for seed in range(min(count, _DISTINCT))
    ]
    return [distinct[at % len(distinct)] for at in range(count)]


def copy_per_device(
    model: LoadedModel, devices: Sequence[Device], *, in_flight: int | None = None
) -> CopyPerDevice:
    """The unsplit model on every device at once. Close it, or use it as a context manager."""
    with ExitStack() as opened:
        runners = [
            opened.enter_context(whole_model_runner(model, device))
            for device in Members.of(devices).devices
        ]
        copies = CopyPerDevice(runners, in_flight=in_flight)
        opened.pop_all()
    return copies


def measure_streams(
    contenders: Mapping[str, Streaming],
    samples: Sequence[Sample],
    *,
    rounds: int,
    skipped: int,
    bursts: Mapping[str, int] | None = None,
    progress: Callable[[float], None] | None = None,
    least: int = 0,
    deadline: Deadline = NEVER,
) -> dict[str, list[StreamRound]]:
    """Run streams of all contenders in each round; the order in a round rotates.

    Args:
        contenders: name -> a function that runs samples and answers in order; has run before.
        samples: of one stream, at least 2 * `skipped` + 2.
        rounds: streams of each contender.
        skipped: samples at the start and at the end that fill and drain.
        bursts: name -> samples after which a contender's pattern repeats, mostly those in flight;
            see `period_of`. It is 1 for other contenders.
        progress: called with the finished part, 0 to 1.
        least: rounds that are enough if the deadline passes.
        deadline: no stream starts after it.

    Raises:
        OutOfTime: the deadline passed before the least rounds.
    """
    names = list(contenders)
    streams: dict[str, list[StreamRound]] = {name: [] for name in names}
    for number in range(rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            if deadline.is_over and number >= least:  # the finished rounds are enough
                return {key: row[:number] for key, row in streams.items()}
            deadline.require(f"{least} rounds of streams were measured")
            streams[name].append(
                _round(contenders[name](samples), skipped, (bursts or {}).get(name, 1))
            )
        if progress is not None:
            progress((number + 1) / rounds)
    return streams


def _round(answers: Sequence[Execution], skipped: int, burst: int) -> StreamRound:
    ends = np.array([answer.start + answer.seconds for answer in answers])
    latencies = np.array([answer.seconds for answer in answers])
    return StreamRound(period_of(ends, skipped, burst), latencies)


def period_of(ends: FloatArray, skipped: int, burst: int) -> float:
    """Seconds per sample between filling and draining.

    Samples that share devices finish in bursts: two right after each other, then none for as long
    as both took. So the period is measured from one burst to another: over a multiple of `burst`
    samples, if there are so many.

    Args:
        ends: when each sample was done, seconds, in any order, shape (n_samples,).
        skipped: samples at the start and at the end that do not count.
        burst: >= 1.
    """
    ends = np.sort(ends)
    first, count = skipped, len(ends) - 1 - 2 * skipped
    count = count // burst * burst or count
    return float(ends[first + count] - ends[first]) / count


def sample_error(
    check: OutputCheck,
    sample: Sample,
    outputs: Sequence[HostArray],
    known: dict[int, list[HostArray]],
) -> float:
    """Error of a sample's outputs against the library's own unsplit run.

    Args:
        sample: values of all inputs.
        known: outputs of that run, by the identity of samples, which repeat; filled in.

    Returns:
        The relative error of the worst output. If the check allows that output another error than
        its own tolerance, the error is scaled to this tolerance.
    """
    if id(sample) not in known:
        known[id(sample)] = list(check.plain(sample))
    judged = check.judged(sample, outputs, known[id(sample)])
    return check.tolerance * max((output.excess for output in judged), default=0.0)

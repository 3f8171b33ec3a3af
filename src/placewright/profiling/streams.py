"""Streams of samples on the hardware: runners of contenders, and their periods and latencies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from placewright.core.arrays import FloatArray
from placewright.core.cluster import Device
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.execution.members import Members
from placewright.execution.output_check import OutputCheck
from placewright.execution.placements import CopyPerDevice, whole_model_runner
from placewright.execution.requests import Execution
from placewright.execution.runner import ConcurrentRunner
from placewright.execution.runtime import (
    HostArray,
    LoadedModel,
    OpSegment,
    segments_of_units,
)
from placewright.simulation.segments import stream_segments

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
    runners = [whole_model_runner(model, device) for device in Members.of(devices).devices]
    return CopyPerDevice(runners, in_flight=in_flight)


def measure_streams(
    contenders: Mapping[str, Streaming],
    samples: Sequence[Sample],
    *,
    rounds: int,
    skipped: int,
    bursts: Mapping[str, int] | None = None,
    progress: Callable[[float], None] | None = None,
) -> dict[str, list[StreamRound]]:
    """Run streams of all contenders in each round; the order in a round rotates.

    Args:
        contenders: name -> a function that runs samples and answers in order; has run before.
        samples: of one stream, more than 2 * `skipped`.
        rounds: streams of each contender.
        skipped: samples at the start and at the end that fill and drain.
        bursts: name -> samples after which a contender's pattern repeats, mostly those in flight;
            see `period_of`. It is 1 for other contenders.
        progress: called with the finished part, 0 to 1.
    """
    names = list(contenders)
    streams: dict[str, list[StreamRound]] = {name: [] for name in names}
    for number in range(rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
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

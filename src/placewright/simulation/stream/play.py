"""Simulation of a stream: fill, steady period, drain, memory peaks, latencies."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from placewright.core.arrays import FloatArray, IntArray
from placewright.core.problem import Problem
from placewright.errors import InfeasibleError, InputError
from placewright.simulation.layout import ProblemArrays, broken_limit, resident_bytes
from placewright.simulation.segments import Segment
from placewright.simulation.stream.kernel import play
from placewright.simulation.stream.memory import stream_peaks
from placewright.simulation.stream.tasks import SampleTasks, sample_tasks

_NEAR = 1.01  # a period so near to the shortest one is as good
_LARGEST = 50_000_000  # begins of tasks that are kept, 400 MB
_LONGEST_PATTERN = 64  # samples after which a pattern of begins may repeat
_SAME = 1e-9  # of the time that has passed


@dataclass(frozen=True)
class Steady:
    """The steady period of a stream."""

    period: float  # seconds per sample
    # samples after which everything repeats; 0 if no pattern was found, so that `period` is an
    # average over the later half
    pattern: int
    first: int  # the first sample of the pattern, or of the average


@dataclass(frozen=True, eq=False)
class Stream:
    """A simulated stream of samples."""

    in_flight: int  # samples that were under way at most
    # entry, finish: when each sample entered and was done, seconds, shape (n_samples,)
    entry: FloatArray
    finish: FloatArray
    begin: FloatArray  # when each task of each sample began, seconds, shape (n_samples, n_tasks)
    tasks: SampleTasks  # of one sample
    steady: Steady  # the pattern in which samples follow each other
    memory_peaks: FloatArray  # bytes, shape (n_devices,); of a group, on its fullest member

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Segments of each sample, in an order in which they can run."""
        return self.tasks.segments

    @property
    def latencies(self) -> FloatArray:
        """Seconds from entry to end of each sample, shape (n_samples,)."""
        return np.asarray(self.finish - self.entry)

    @property
    def fill(self) -> float:
        """Seconds until the first sample is done."""
        return float(self.finish[0])

    @property
    def drain(self) -> float:
        """Seconds from the last entry to the end."""
        return float(self.finish.max() - self.entry[-1])

    @property
    def rate(self) -> float:
        """Samples per second of the steady period."""
        return 1.0 / self.steady.period if self.steady.period > 0 else float("inf")


def play_stream(
    problem: Problem,
    arrays: ProblemArrays,
    device_of: IntArray,
    *,
    samples: int = 200,
    in_flight: int | None = None,
) -> Stream:
    """Play `samples` samples through a placement.

    Args:
        problem: the problem to place; see `why_no_stream`.
        arrays: the same, laid out.
        device_of: a legal placement, shape (n_units,).
        samples: >= 1.
        in_flight: samples under way at most, >= 1; None takes as many as keep all devices busy and
            fit into their memory.

    Raises:
        InputError: a number is below 1, or samples x tasks are more than memory can hold.
        InfeasibleError: one sample does not fit into a device, or takes more segments than it may
            run; the message says by how much.
    """
    if samples < 1:
        raise InputError(f"samples must be >= 1, got {samples}")
    if in_flight is not None and in_flight < 1:
        raise InputError(f"in-flight must be >= 1, got {in_flight}")
    tasks = sample_tasks(problem, arrays, device_of)
    _check_segments(problem, tasks)
    n_tasks = len(tasks.tables.seconds)
    if samples * n_tasks > _LARGEST:
        most = _LARGEST // n_tasks
        raise InputError(f"{samples} samples of {n_tasks} tasks are too many; play {most} at most")
    player = _Player(problem, arrays, device_of, tasks)
    if in_flight is not None:
        stream = player.play(samples, in_flight)
        player.check(stream)
        return stream
    return player.play(samples, player.best_in_flight())


def _check_segments(problem: Problem, tasks: SampleTasks) -> None:
    counts = np.bincount(
        [segment.device for segment in tasks.segments], minlength=problem.n_devices
    )
    for device, count in zip(problem.cluster.devices, counts.tolist(), strict=True):
        if device.max_segments is not None and count > device.max_segments:
            raise InfeasibleError(
                f"a stream needs {count} segments on device '{device.name}', which may run "
                f"{device.max_segments}; move ops away, or raise `segments` in the cluster file"
            )


@dataclass(frozen=True, eq=False)
class _Player:
    problem: Problem
    arrays: ProblemArrays
    device_of: IntArray
    tasks: SampleTasks

    def play(self, samples: int, in_flight: int) -> Stream:
        begin = np.zeros((samples, len(self.tasks.tables.seconds)))
        entry = np.zeros(samples)
        play(self.tasks.tables, samples, in_flight, entry, begin)
        finish = (begin + self.tasks.tables.seconds).max(axis=1)
        peaks = stream_peaks(
            self.problem,
            self.tasks,
            self.device_of,
            resident_bytes(self.arrays, self.device_of),
            entry,
            begin,
        )
        steady = _steady_of(begin, finish, in_flight)
        if steady.pattern == 0:  # no average of a part may promise more than servers can do
            steady = replace(steady, period=max(steady.period, self.most_work))
        return Stream(in_flight, entry, finish, begin, self.tasks, steady, peaks)

    @cached_property
    def most_work(self) -> float:
        """Seconds of the busiest server or processor for each sample: no period is shorter."""
        tables = self.tasks.tables
        work = np.bincount(
            tables.first_server, tables.seconds / tables.n_members, minlength=tables.n_servers
        )
        of_devices = work[np.cumsum(self.problem.cluster.replicas) - self.problem.cluster.replicas]
        shared = self.problem.cluster.shared_processors.values()
        return float(max([work.max(initial=0.0), *(of_devices[list(one)].sum() for one in shared)]))

    def check(self, stream: Stream) -> None:
        at = broken_limit(self.arrays, stream.memory_peaks)
        if at < 0:
            return
        cluster = self.problem.cluster
        limits, names = cluster.memory_limits, (*cluster.device_names, *cluster.shared_pools)
        taken = [*stream.memory_peaks.tolist(), *cluster.pooled(stream.memory_peaks).tolist()]
        where = f"'{names[at]}'" if at < cluster.n_devices else f"the devices of pool '{names[at]}'"
        raise InfeasibleError(
            f"a stream with {stream.in_flight} samples in flight takes {taken[at]:.0f} bytes on "
            f"{where}, which has {limits[at]:.0f}; let fewer samples in or give it more memory"
        )

    def best_in_flight(self) -> int:
        """The fewest samples in flight whose period is within one percent of the shortest."""
        best = self.play(2, 1)
        self.check(best)
        periods = [float(best.latencies[0])]
        _, at = np.unique(self.tasks.tables.first_server, return_index=True)
        enough = 2 * int(self.tasks.tables.n_members[at].sum()) + 2
        for in_flight in range(2, enough + 1):
            stream = self.play(6 * in_flight + 8, in_flight)
            if broken_limit(self.arrays, stream.memory_peaks) >= 0:
                break
            periods.append(stream.steady.period)
        return 1 + next(at for at, one in enumerate(periods) if one <= _NEAR * min(periods))


def _steady_of(begin: FloatArray, finish: FloatArray, in_flight: int) -> Steady:
    """Find the pattern in which samples follow each other.

    Where all tasks of `in_flight` samples in a row begin as much later as those of the samples
    `pattern` before them, the state of all servers has come back, and a stream without end would go
    on like this for ever. Each server then does the work of `pattern` samples in that time, so that
    the period is never below the largest load.

    Args:
        begin: when each task begins, shape (n_samples, n_tasks).
        finish: when each sample is done, shape (n_samples,).
        in_flight: samples that may be under way.
    """
    n_samples = len(finish)
    stop = n_samples - min(in_flight, n_samples - 1)  # the last ones have the devices to themselves
    for pattern in range(1, min(_LONGEST_PATTERN, stop // 2) + 1):
        first = stop - in_flight - pattern
        if first < 0:
            break
        later, earlier = begin[first + pattern : stop], begin[first : stop - pattern]
        shift = later[-1, 0] - earlier[-1, 0]
        if np.all(np.abs(later - earlier - shift) <= _SAME * max(shift, float(finish[stop - 1]))):
            return Steady(float(shift) / pattern, pattern, first)
    half = stop // 2
    last = max(stop - 1, half + 1) if n_samples > 1 else 0
    if last <= half:
        return Steady(float(finish[-1]), 0, 0)
    done = np.sort(finish)
    return Steady(float(done[last] - done[half]) / (last - half), 0, half)

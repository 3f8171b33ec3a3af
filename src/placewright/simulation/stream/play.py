"""Simulation of a stream: fill, steady period, drain, latencies."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from placewright.core.arrays import FloatArray, IntArray
from placewright.core.problem import Problem
from placewright.errors import InfeasibleError, InputError
from placewright.simulation.compiled import compiled
from placewright.simulation.layout import ProblemArrays, broken_limit, resident_bytes
from placewright.simulation.segments import Segment
from placewright.simulation.stream.peaks import TensorCopies, most_sample_bytes
from placewright.simulation.stream.tasks import (
    SampleTasks,
    TaskTables,
    sample_tasks,
)

_NEAR = 1.01  # a period so near to the shortest one is as good
_LARGEST = 50_000_000  # times that are kept, of tasks and tensors, 400 MB
_LONGEST_PATTERN = 64  # samples after which begins may repeat, or as many as a group has members
_SAME = 1e-9  # of the time that has passed


@dataclass(frozen=True)
class Steady:
    """The steady period of a stream."""

    period: float  # seconds per sample
    # samples after which everything repeats; 0 if no pattern was found, so that `period` is an
    # average over the later half
    pattern: int


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
        InputError: a number is below 1, or the times of all samples are more than memory can hold.
        InfeasibleError: one sample does not fit into a device, or takes more segments than it may
            run; the message says by how much.
    """
    if samples < 1:
        raise InputError(f"samples must be >= 1, got {samples}")
    if in_flight is not None and in_flight < 1:
        raise InputError(f"in-flight must be >= 1, got {in_flight}")
    tasks = sample_tasks(problem, arrays, device_of)
    _check_segments(problem, tasks)
    player = _Player(problem, arrays, device_of, tasks)
    if samples * player.width > _LARGEST:
        n_tasks, n_tensors = len(tasks.tables.seconds), len(arrays.tensor_bytes)
        raise InputError(
            f"{samples} samples of {n_tasks} tasks and {n_tensors} tensors are too many; play "
            f"{_LARGEST // player.width} at most"
        )
    if in_flight is not None:
        stream = player.play(samples, min(in_flight, samples))
        player.check(stream)
        return stream
    in_flight = player.best_in_flight()  # of a steady stream, however few samples are played
    stream = player.play(samples, in_flight)
    # A device may fall behind by a little with each sample, so that copies pile up late.
    while in_flight > 1 and broken_limit(arrays, stream.memory_peaks) >= 0:
        in_flight -= 1
        stream = player.play(samples, in_flight)
    player.check(stream)
    return stream


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

    @property
    def width(self) -> int:
        """Times kept of each sample at most: begin and end of each task and copy of a tensor."""
        places = np.diff(self.arrays.consumer_ptr) + 1 + self.arrays.is_output
        n_copies = int(np.minimum(places, self.problem.n_devices).sum())
        return 2 * len(self.tasks.tables.seconds) + 2 * n_copies

    def play(self, samples: int, in_flight: int) -> Stream:
        entry, begin, finish = self._times(samples, in_flight)
        peaks = self._peaks(entry, begin)
        steady = self._steady(begin, finish, in_flight)
        return Stream(in_flight, entry, finish, begin, self.tasks, steady, peaks)

    @cached_property
    def copies(self) -> TensorCopies:
        return TensorCopies(self.problem, self.tasks, self.device_of)

    def _peaks(self, entry: FloatArray, begin: FloatArray) -> FloatArray:
        return self.copies.peaks(resident_bytes(self.arrays, self.device_of), entry, begin)

    def _times(self, samples: int, in_flight: int) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Entries of all samples, begins of their tasks, and when each sample is done."""
        begin = np.zeros((samples, len(self.tasks.tables.seconds)))
        entry = np.zeros(samples)
        play(self.tasks.tables, samples, in_flight, entry, begin)
        return entry, begin, (begin + self.tasks.tables.seconds).max(axis=1)

    def _steady(self, begin: FloatArray, finish: FloatArray, in_flight: int) -> Steady:
        """The pattern, if need be of a longer stream than the one that was asked for."""
        longest = max(_LONGEST_PATTERN, int(self.tasks.tables.n_members.max(initial=1)))
        steady = _steady_of(begin, finish, in_flight, longest)
        longer = _settled_samples(in_flight) if in_flight > 1 else 0  # one after another is exact
        if steady.pattern == 0 and len(finish) < longer and longer * self.width <= _LARGEST:
            _, begin, finish = self._times(longer, in_flight)
            steady = _steady_of(begin, finish, in_flight, longest)
        if steady.pattern == 0:  # no average of a part may promise more than servers can do
            steady = replace(steady, period=max(steady.period, self.most_work))
        return steady

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
        cluster = self.problem.cluster
        for name, taken, limit in cluster.exceeded_limits(stream.memory_peaks):
            is_device = name in cluster.device_names
            where = f"'{name}'" if is_device else f"the devices of pool '{name}'"
            raise InfeasibleError(
                f"a stream with {stream.in_flight} samples in flight takes {taken:.0f} bytes on "
                f"{where}, which has {limit:.0f}; let fewer samples in or give it more memory"
            )

    def best_in_flight(self) -> int:
        """The fewest samples in flight whose period is within one percent of the shortest."""
        resident = resident_bytes(self.arrays, self.device_of)
        of_sample = most_sample_bytes(self.problem, self.device_of)
        periods = [float(self._times(2, 1)[2][0])]
        if broken_limit(self.arrays, resident + 2 * of_sample) >= 0:
            self.check(self.play(2, 1))
        _, at = np.unique(self.tasks.tables.first_server, return_index=True)
        enough = 2 * int(self.tasks.tables.n_members[at].sum()) + 2
        for in_flight in range(2, enough + 1):
            samples = _settled_samples(in_flight)
            if samples * self.width > _LARGEST:
                break
            entry, begin, finish = self._times(samples, in_flight)
            # At one instant as many samples may end as begin, or all of them if they take no time.
            peaks = resident + (2 * in_flight if periods[0] > 0 else samples) * of_sample
            if broken_limit(self.arrays, peaks) >= 0:
                peaks = self._peaks(entry, begin)
            if broken_limit(self.arrays, peaks) >= 0:
                break
            periods.append(self._steady(begin, finish, in_flight).period)
        return 1 + next(at for at, one in enumerate(periods) if one <= _NEAR * min(periods))


def _settled_samples(in_flight: int) -> int:
    """Samples of a stream in which a pattern of as many as are in flight repeats."""
    return 6 * in_flight + 8


def _steady_of(begin: FloatArray, finish: FloatArray, in_flight: int, longest: int) -> Steady:
    """Find the pattern in which samples follow each other.

    Where all tasks of `in_flight` samples in a row begin as much later as those of the samples
    `pattern` before them, the state of all servers has come back, and a stream without end would go
    on like this for ever. Each server then does the work of `pattern` samples in that time, so that
    the period is never below the largest load.

    Args:
        begin: when each task begins, shape (n_samples, n_tasks).
        finish: when each sample is done, shape (n_samples,).
        in_flight: samples that may be under way.
        longest: pattern that is looked for.
    """
    n_samples = len(finish)
    stop = n_samples - min(in_flight, n_samples - 1)  # the last ones have the devices to themselves
    for pattern in range(1, min(longest, stop // 2) + 1):
        first = stop - in_flight - pattern
        if first < 0:
            break
        later, earlier = begin[first + pattern : stop], begin[first : stop - pattern]
        shift = later[-1, 0] - earlier[-1, 0]
        if np.all(np.abs(later - earlier - shift) <= _SAME * max(shift, float(finish[stop - 1]))):
            return Steady(float(shift) / pattern, pattern)
    half = stop // 2
    last = max(stop - 1, half + 1) if n_samples > 1 else 0
    if last <= half:
        return Steady(float(finish[-1]), 0)
    done = np.sort(finish)
    return Steady(float(done[last] - done[half]) / (last - half), 0)


@compiled
def play(
    tables: TaskTables, n_samples: int, in_flight: int, entry: FloatArray, begin: FloatArray
) -> None:
    """Simulate a stream: write when samples enter and when their tasks begin.

    A sample enters when fewer than `in_flight` are under way. All that ends at one instant is
    settled before anything begins. An idle server begins the ready task of the oldest sample, of
    one sample the first task. Of servers that never work at once, that with the oldest such task
    begins. Nothing is interrupted.

    Args:
        n_samples: >= 1.
        in_flight: >= 1.
        entry: (n_samples,) written.
        begin: (n_samples, n_tasks) written.
    """
    n_tasks = len(tables.seconds)
    slots = min(in_flight, n_samples)
    needed = np.empty((slots, n_tasks), np.int64)
    left = np.empty(slots, np.int64)
    slot_of = np.full(n_samples, -1, np.int64)
    waiting, size, first = _heaps(tables, slots)
    running = np.full(tables.n_servers, -1, np.int64)
    until = np.full(tables.n_servers, np.inf)
    entered = 0
    for slot in range(slots):
        _enter(tables, entered, slot, 0.0, entry, slot_of, needed, left)
        _offer_first(tables, entered, waiting, size, first)
        entered += 1
    now = 0.0
    while True:
        server = _next(tables, -1, running, waiting, size, first)
        while server >= 0:
            key = _pop(waiting, first[server], size, server)
            running[server] = key
            begin[key // n_tasks, key % n_tasks] = now
            until[server] = now + tables.seconds[key % n_tasks]
            server = _next(tables, server, running, waiting, size, first)
        now = until.min()
        if np.isinf(now):
            return
        for server in range(tables.n_servers):
            if until[server] != now:
                continue
            sample, task = running[server] // n_tasks, running[server] % n_tasks
            running[server] = -1
            until[server] = np.inf
            slot = slot_of[sample]
            for at in range(tables.next_ptr[task], tables.next_ptr[task + 1]):
                follower = tables.next_tasks[at]
                needed[slot, follower] -= 1
                if needed[slot, follower] == 0:
                    _push(tables, sample, follower, waiting, size, first)
            left[slot] -= 1
            if left[slot] == 0 and entered < n_samples:
                _enter(tables, entered, slot, now, entry, slot_of, needed, left)
                _offer_first(tables, entered, waiting, size, first)
                entered += 1


@compiled
def _next(
    tables: TaskTables,
    last: int,
    running: IntArray,
    waiting: IntArray,
    size: IntArray,
    first: IntArray,
) -> int:
    """The server that begins a task after server `last` did, -1 if none can.

    Those that work beside all others come first, in turn.
    """
    n_rivals = len(tables.rivals)
    is_over = last >= 0 and n_rivals > 0 and (tables.rivals == last).any()
    for server in range(tables.n_servers if is_over else last + 1, tables.n_servers):
        if running[server] >= 0 or size[server] == 0:
            continue
        if n_rivals == 0 or not (tables.rivals == server).any():
            return server
    found, oldest = -1, -1
    for at in range(n_rivals):
        server = tables.rivals[at]
        if running[server] >= 0 or size[server] == 0:
            continue
        is_free = True
        for other in range(n_rivals):
            if tables.excludes[at, other] and running[tables.rivals[other]] >= 0:
                is_free = False
        key = waiting[first[server]]
        if is_free and (found < 0 or key < oldest):
            found, oldest = server, key
    return found


@compiled
def _enter(
    tables: TaskTables,
    sample: int,
    slot: int,
    now: float,
    entry: FloatArray,
    slot_of: IntArray,
    needed: IntArray,
    left: IntArray,
) -> None:
    entry[sample] = now
    slot_of[sample] = slot
    needed[slot] = tables.n_needed
    left[slot] = len(tables.seconds)


@compiled
def _offer_first(
    tables: TaskTables, sample: int, waiting: IntArray, size: IntArray, first: IntArray
) -> None:
    for task in range(len(tables.seconds)):
        if tables.n_needed[task] == 0:
            _push(tables, sample, task, waiting, size, first)


@compiled
def _heaps(tables: TaskTables, slots: int) -> tuple[IntArray, IntArray, IntArray]:
    """A heap for each server: keys (sample, task) as one number, sizes, where each heap begins."""
    room = np.zeros(tables.n_servers + 1, np.int64)
    for task in range(len(tables.seconds)):
        for member in range(tables.n_members[task]):
            room[tables.first_server[task] + member + 1] += slots
    for server in range(tables.n_servers):
        room[server + 1] += room[server]
    return np.empty(room[-1], np.int64), np.zeros(tables.n_servers, np.int64), room


@compiled
def _push(
    tables: TaskTables,
    sample: int,
    task: int,
    waiting: IntArray,
    size: IntArray,
    first: IntArray,
) -> None:
    server = tables.first_server[task] + sample % tables.n_members[task]
    base, at = first[server], size[server]
    size[server] += 1
    key = sample * len(tables.seconds) + task
    while at > 0:
        parent = (at - 1) // 2
        if waiting[base + parent] <= key:
            break
        waiting[base + at] = waiting[base + parent]
        at = parent
    waiting[base + at] = key


@compiled
def _pop(waiting: IntArray, base: int, size: IntArray, server: int) -> int:
    """Take the smallest key off a heap."""
    smallest = waiting[base]
    size[server] -= 1
    last, stop, at = waiting[base + size[server]], size[server], 0
    while True:
        child = 2 * at + 1
        if child >= stop:
            break
        if child + 1 < stop and waiting[base + child + 1] < waiting[base + child]:
            child += 1
        if waiting[base + child] >= last:
            break
        waiting[base + at] = waiting[base + child]
        at = child
    waiting[base + at] = last
    return int(smallest)

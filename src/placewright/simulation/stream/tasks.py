"""The tasks of one sample on devices, transfer engines and channels, as a graph.

A segment is one task of its device: it receives, computes and sends, as max-load adds these up.
Where a device overlaps transfers with compute, receiving and sending are tasks of its transfer
engine. A hop over a named channel is a task of that channel, which has a load of its own. Devices
that share a processor are servers that never work at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from placewright.core.arrays import BoolArray, FloatArray, IntArray
from placewright.core.execution_models import splits_phases
from placewright.core.problem import Problem
from placewright.errors import InfeasibleError, InputError
from placewright.simulation.compiled import read_only
from placewright.simulation.layout import (
    DIRECT,
    NO_ROUTE,
    ProblemArrays,
    link_seconds,
    named_channels,
)
from placewright.simulation.segments import Segment, stream_segments

NO_TASK = -1


class TaskTables(NamedTuple):
    """Tasks of one sample as the kernel reads them, in an order in which they can execute."""

    seconds: FloatArray  # (n_tasks,)
    first_server: IntArray  # (n_tasks,)
    n_members: IntArray  # (n_tasks,) sample n is served by first_server + n mod n_members
    n_needed: IntArray  # (n_tasks,) tasks of the same sample that must have ended
    next_ptr: IntArray  # (n_tasks + 1,)
    next_tasks: IntArray  # tasks that need each task
    n_servers: int
    rivals: IntArray  # (n_rivals,) servers of devices that share processors
    excludes: BoolArray  # (n_rivals, n_rivals): never work at once


@dataclass(frozen=True, eq=False)
class SegmentTasks:
    """Tasks and times of one segment."""

    compute: int  # its task; on a device that does not overlap it receives and sends, too
    # receive, send: tasks of the transfer engine, `NO_TASK` where there is none
    receive: int
    send: int
    begins: float  # seconds from the start of `compute` until its first unit begins
    # seconds from the start of `compute` until each unit ends, shape (n_units,)
    unit_ends: FloatArray


@dataclass(frozen=True, eq=False)
class SampleTasks:
    """All tasks of one sample."""

    tables: TaskTables  # for the kernel
    segments: tuple[Segment, ...]  # of the placement, in an order in which they can run
    of_segment: tuple[SegmentTasks, ...]  # tasks of each segment
    # (tensor, destination) -> tasks of its hops over named channels, in turn
    hops: dict[tuple[int, int], list[int]]
    entry: int  # task in which a host that is a device sends graph inputs, or `NO_TASK`
    exit: int  # task in which it receives graph outputs, or `NO_TASK`


def why_no_stream(problem: Problem) -> str | None:
    """The reason why a problem has no stream of samples; None if it has."""
    if splits_phases(problem.execution_model):
        return "a value of split phases has no stream: forward and backward take turns"
    return None


def sample_tasks(problem: Problem, arrays: ProblemArrays, device_of: IntArray) -> SampleTasks:
    """Make the tasks of a sample.

    Args:
        problem: of any execution model that says what transfers cost.
        arrays: the same, laid out.
        device_of: a legal placement, shape (n_units,).

    Raises:
        InputError: the problem has no stream (see `why_no_stream`).
        InfeasibleError: a tensor has no way to a reader; the message names it.
    """
    reason = why_no_stream(problem)
    if reason is not None:
        raise InputError(reason)
    return _Builder(problem, arrays, device_of).build()


class _Builder:
    def __init__(self, problem: Problem, arrays: ProblemArrays, device_of: IntArray) -> None:
        self.problem, self.arrays, self.device_of = problem, arrays, device_of
        self.cluster, self.used = problem.cluster, np.unique(device_of)
        self.pays = np.array([device.pays_transfers for device in self.cluster.devices])
        self.overlaps = np.array([device.overlaps_transfers for device in self.cluster.devices])
        replicas = self.cluster.replicas
        starts = np.concatenate([[0], np.cumsum(np.concatenate([replicas, replicas]))])
        self.device_server = starts[: problem.n_devices]
        self.engine_server = starts[problem.n_devices : 2 * problem.n_devices]
        self.channel_server = int(starts[-1])
        self.is_named = named_channels(problem)
        self.seconds: list[float] = []
        self.servers: list[int] = []
        self.members: list[int] = []
        self.edges: list[tuple[int, int]] = []
        self.hops: dict[tuple[int, int], list[int]] = {}

    def build(self) -> SampleTasks:
        segments = stream_segments(self.problem, self.device_of)
        segment_of = np.full(self.problem.n_units, -1, dtype=np.int64)
        for index, segment in enumerate(segments):
            segment_of[list(segment.units)] = index
        sent, received = self._transfers(segments, segment_of)
        host = self.arrays.host
        entry = self._host_task(sent.pop(NO_TASK, 0.0))
        sending: dict[int, int] = {NO_TASK: entry}  # segment -> the task that its tensors wait for
        for tensor in np.flatnonzero(self.arrays.producer < 0).tolist():
            self._add_hops(tensor, host, entry)
        made: list[SegmentTasks] = []
        before: dict[int, int] = {}
        for index, segment in enumerate(segments):
            tasks = self._segment(index, segment, segment_of, sent, received)
            made.append(tasks)
            self._connect(segment, tasks, segment_of, sending)
            if segment.device in before:
                self._need(before[segment.device], tasks.compute)
            before[segment.device] = tasks.compute
            sending[index] = tasks.compute if tasks.send == NO_TASK else tasks.send
            for tensor in segment.outputs:
                self._add_hops(tensor, segment.device, sending[index])
        leave = self._exit(segments, received.get(len(segments), 0.0), sending)
        return SampleTasks(self._tables(), segments, tuple(made), self.hops, entry, leave)

    def _transfers(
        self, segments: tuple[Segment, ...], segment_of: IntArray
    ) -> tuple[dict[int, float], dict[int, float]]:
        """Seconds that each segment sends (`NO_TASK`: the host) and receives (last: the host)."""
        sent: dict[int, float] = {}
        received: dict[int, float] = {}
        for tensor in range(len(self.arrays.producer)):
            source = self._source(tensor)
            longest = 0.0
            for target in self._targets(tensor):
                first, last = self._hop_seconds(tensor, source, target)
                longest = max(longest, first)
                if target < self.problem.n_devices and self.pays[target]:
                    reader = self._first_reader(tensor, target, segment_of, len(segments))
                    received[reader] = received.get(reader, 0.0) + last
            if longest > 0 and source < self.problem.n_devices and self.pays[source]:
                producer = int(self.arrays.producer[tensor])
                index = NO_TASK if producer < 0 else int(segment_of[producer])
                sent[index] = sent.get(index, 0.0) + longest
        return sent, received

    def _first_reader(self, tensor: int, target: int, segment_of: IntArray, at_host: int) -> int:
        """The first segment of a device that reads a tensor; `at_host` for a graph output alone."""
        readers = self.problem.unit_graph.tensor_consumers.row(tensor)
        here = readers[self.device_of[readers] == target]
        return int(segment_of[here].min()) if len(here) else at_host

    def _segment(
        self,
        index: int,
        segment: Segment,
        segment_of: IntArray,
        sent: dict[int, float],
        received: dict[int, float],
    ) -> SegmentTasks:
        device = segment.device
        comes, goes = received.get(index, 0.0), sent.get(index, 0.0)
        units = list(segment.units)
        exchange = self.problem.exchange_seconds[units, device].sum()
        goes += float(exchange) * int(self.cluster.replicas[device])
        inner = self._unit_seconds(segment, segment_of)
        ends = np.cumsum(inner)
        if not self.overlaps[device]:
            task = self._add(comes + float(ends[-1]) + goes, self.device_server[device], device)
            return SegmentTasks(task, NO_TASK, NO_TASK, comes, comes + ends)
        receive = self._add(comes, self.engine_server[device], device) if comes > 0 else NO_TASK
        task = self._add(float(ends[-1]), self.device_server[device], device)
        self._need(receive, task)
        send = self._add(goes, self.engine_server[device], device) if goes > 0 else NO_TASK
        self._need(task, send)
        return SegmentTasks(task, receive, send, 0.0, ends)

    def _unit_seconds(self, segment: Segment, segment_of: IntArray) -> FloatArray:
        """Seconds of each unit; costs of the segment fall on the first unit that causes them."""
        arrays, device = self.arrays, segment.device
        units = np.array(segment.units)
        streams = int(arrays.streams[device])
        seconds = arrays.seconds[units, device] * self._contention(device) / streams
        seconds[0] += arrays.dispatch[device]
        own = int(segment_of[units[0]])
        paid: set[int] = set()
        for at, unit in enumerate(segment.units):
            for tensor in self.problem.unit_graph.op_inputs.row(unit).tolist():
                producer = int(arrays.producer[tensor])
                if producer < 0 or segment_of[producer] == own or tensor in paid:
                    continue
                paid.add(tensor)
                size = arrays.tensor_bytes[tensor]
                seconds[at] += arrays.cut[device] + size * arrays.cut_per_byte[device]
                if arrays.has_layout[tensor]:
                    seconds[at] += arrays.layout[device] + size * arrays.layout_per_byte[device]
        return np.asarray(seconds)

    def _contention(self, device: int) -> float:
        domain = int(self.arrays.domain[device])
        if domain < 0:
            return 1.0
        here = self.used[self.arrays.domain[self.used] == domain]
        return float(self.arrays.factors[domain, int(self.cluster.replicas[here].sum())])

    def _connect(
        self,
        segment: Segment,
        tasks: SegmentTasks,
        segment_of: IntArray,
        sending: dict[int, int],
    ) -> None:
        """Let a segment wait for its inputs from other devices."""
        begin = tasks.compute if tasks.receive == NO_TASK else tasks.receive
        for tensor in segment.inputs:
            if self._source(tensor) == segment.device:
                continue
            producer = int(self.arrays.producer[tensor])
            self._need(sending[NO_TASK if producer < 0 else int(segment_of[producer])], begin)
            for hop in self.hops.get((tensor, segment.device), ())[-1:]:
                self._need(hop, begin)

    def _add_hops(self, tensor: int, source: int, after: int) -> None:
        """Add the tasks of named channels on a tensor's route to every destination."""
        for target in self._targets(tensor):
            middle = self._middle(source, target)
            ways = [(source, target)] if middle == target else [(source, middle), (middle, target)]
            last = after
            for way in ways:
                channel = int(self.arrays.channel[way])
                if not self.is_named[channel]:
                    continue
                seconds = link_seconds(self.arrays, tensor, *way)
                task = self._add(seconds, self.channel_server + channel, None)
                self._need(last, task)
                self.hops.setdefault((tensor, target), []).append(task)
                last = task

    def _host_task(self, seconds: float) -> int:
        if seconds <= 0:
            return NO_TASK
        return self._add(seconds, *self._transfer_server(self.arrays.host))

    def _exit(self, segments: tuple[Segment, ...], seconds: float, sending: dict[int, int]) -> int:
        task = self._host_task(seconds)
        if task == NO_TASK:
            return task
        host = self.arrays.host
        for index, segment in enumerate(segments):
            for tensor in segment.outputs:
                if host in self._targets(tensor):
                    self._need(sending[index], task)
                    for hop in self.hops.get((tensor, host), ())[-1:]:
                        self._need(hop, task)
        return task

    def _transfer_server(self, device: int) -> tuple[int, int]:
        servers = self.engine_server if self.overlaps[device] else self.device_server
        return int(servers[device]), device

    def _source(self, tensor: int) -> int:
        producer = int(self.arrays.producer[tensor])
        return int(self.device_of[producer]) if producer >= 0 else self.arrays.host

    def _targets(self, tensor: int) -> list[int]:
        """Endpoints that a tensor is sent to."""
        readers = self.problem.unit_graph.tensor_consumers.row(tensor)
        found = dict.fromkeys(self.device_of[readers].tolist())
        if self.arrays.is_output[tensor] and self.arrays.producer[tensor] >= 0:
            found[self.arrays.host] = None
        return [target for target in found if target != self._source(tensor)]

    def _middle(self, source: int, target: int) -> int:
        route = int(self.arrays.route[source, target])
        if route == NO_ROUTE:
            names = {at: name for name, at in self.cluster.endpoint_index.items()}
            raise InfeasibleError(
                f"there is no way from '{names[source]}' to '{names[target]}'; add a link"
            )
        return target if route == DIRECT else self.arrays.host

    def _hop_seconds(self, tensor: int, source: int, target: int) -> tuple[float, float]:
        middle = self._middle(source, target)
        first = link_seconds(self.arrays, tensor, source, middle)
        if middle == target:
            return first, first
        return first, link_seconds(self.arrays, tensor, middle, target)

    def _add(self, seconds: float, server: int, device: int | None) -> int:
        self.seconds.append(float(seconds))
        self.servers.append(int(server))
        self.members.append(1 if device is None else int(self.cluster.replicas[device]))
        return len(self.seconds) - 1

    def _need(self, before: int, after: int) -> None:
        if NO_TASK not in (before, after):
            self.edges.append((before, after))

    def _tables(self) -> TaskTables:
        n_tasks = len(self.seconds)
        rivals = np.flatnonzero(self.cluster.excludes.any(axis=1))
        edges = np.unique(np.array(self.edges, dtype=np.int64).reshape(-1, 2), axis=0)
        ptr = np.zeros(n_tasks + 1, dtype=np.int64)
        np.cumsum(np.bincount(edges[:, 0], minlength=n_tasks), out=ptr[1:])
        tables = TaskTables(
            seconds=np.array(self.seconds),
            first_server=np.array(self.servers, dtype=np.int64),
            n_members=np.array(self.members, dtype=np.int64),
            n_needed=np.bincount(edges[:, 1], minlength=n_tasks).astype(np.int64),
            next_ptr=ptr,
            next_tasks=edges[:, 1].copy(),
            n_servers=self.channel_server + self.arrays.n_channels,
            rivals=self.device_server[rivals],
            excludes=self.cluster.excludes[np.ix_(rivals, rivals)],
        )
        return read_only(tables)

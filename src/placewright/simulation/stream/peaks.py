"""Memory of a stream: how long each copy of a tensor is kept, and the most that is kept at once."""

from __future__ import annotations

import numpy as np

from placewright.core.arrays import FloatArray, IntArray
from placewright.core.problem import Problem
from placewright.simulation.stream.tasks import NO_TASK, SampleTasks

_Term = tuple[int, float]  # a column of the times of a sample, and seconds after it


def most_sample_bytes(problem: Problem, device_of: IntArray) -> FloatArray:
    """Bytes of all tensors of a sample that are ever on each device, shape (n_devices,).

    A sample takes no more there at any time.
    """
    graph, readers = problem.unit_graph, problem.unit_graph.tensor_consumers
    is_there = np.zeros((graph.n_tensors, problem.n_devices + 1), dtype=bool)
    made = graph.tensor_producers >= 0
    is_there[made, device_of[graph.tensor_producers[made]]] = True
    read = np.repeat(np.arange(graph.n_tensors), np.diff(readers.indptr))
    is_there[read, device_of[readers.indices]] = True
    is_there[~made | graph.tensor_is_output, problem.cluster.host_endpoint] = True
    return np.asarray(graph.tensor_bytes @ is_there[:, : problem.n_devices], dtype=np.float64)


class TensorCopies:
    """Copies of the tensors of a sample: where they are, how large, and the terms of their times.

    A tensor is kept where it is made from the begin of its unit, elsewhere from the begin of its
    way there, until its last reader there has ended and it has been sent on. Graph inputs are kept
    from their sample's entry where the host is a device, graph outputs until their sample is done.
    """

    def __init__(self, problem: Problem, tasks: SampleTasks, device_of: IntArray) -> None:
        self.graph, self.tasks, self.device_of = problem.unit_graph, tasks, device_of
        self.host, self.replicas = problem.cluster.host_endpoint, problem.cluster.replicas
        # Columns of the times of a sample: begins of its tasks, their ends, its entry and its end.
        self.n_tasks = len(tasks.tables.seconds)
        self.entry: _Term = (2 * self.n_tasks, 0.0)
        self.done: _Term = (2 * self.n_tasks + 1, 0.0)
        self.place: dict[int, tuple[int, int]] = {
            unit: (index, at)
            for index, segment in enumerate(tasks.segments)
            for at, unit in enumerate(segment.units)
        }
        # Of each copy on each device: its bytes; it begins at the first of its `starts` and ends at
        # the last of its `stops`.
        self.sizes: list[list[float]] = [[] for _ in range(problem.n_devices)]
        self.starts: list[list[list[_Term]]] = [[] for _ in range(problem.n_devices)]
        self.stops: list[list[list[_Term]]] = [[] for _ in range(problem.n_devices)]
        for tensor in np.flatnonzero(self.graph.tensor_bytes > 0).tolist():
            self._add_tensor(tensor)

    def peaks(self, resident: FloatArray, entry: FloatArray, begin: FloatArray) -> FloatArray:
        """Peak bytes of each device; of a group of devices, those of its fullest member.

        Tensors that end and begin at one instant do not count together.

        Args:
            resident: bytes that stay, shape (n_devices,).
            entry: when each sample enters, shape (n_samples,).
            begin: when each task begins, shape (n_samples, n_tasks).

        Returns:
            Shape (n_devices,).
        """
        end = begin + self.tasks.tables.seconds
        times = np.hstack([begin, end, entry[:, None], end.max(axis=1, keepdims=True)])
        peaks = resident.copy()
        for device, sizes in enumerate(self.sizes):
            for member in range(int(self.replicas[device]) if sizes else 0):
                mine = times[member :: int(self.replicas[device])]
                starts = _reduced(np.minimum, mine, self.starts[device])
                stops = _reduced(np.maximum, mine, self.stops[device])
                live = _peak(starts.ravel(), stops.ravel(), np.tile(sizes, len(mine)))
                peaks[device] = max(peaks[device], resident[device] + live)
        return peaks

    def _add(self, tensor: int, device: int, starts: list[_Term], stops: list[_Term]) -> None:
        if device < len(self.sizes):
            self.sizes[device].append(float(self.graph.tensor_bytes[tensor]))
            self.starts[device].append(starts)
            self.stops[device].append(stops)

    def _add_tensor(self, tensor: int) -> None:
        readers = self.graph.tensor_consumers.row(tensor).tolist()
        producer = int(self.graph.tensor_producers[tensor])
        is_output = bool(self.graph.tensor_is_output[tensor])
        targets = list(dict.fromkeys(int(self.device_of[reader]) for reader in readers))
        if is_output and self.host not in targets:
            targets.append(self.host)
        if producer < 0:
            source, start, sent = self.host, self.entry, self._sent_by_host()
            stops = [self.entry]
        else:
            source = int(self.device_of[producer])
            start, stop = self._unit(producer)
            stops, sent = [stop], self._sent(producer)
        others = [target for target in targets if target != source]
        if is_output:
            stops = [self.done]
        elif others:
            hops = [self.tasks.hops.get((tensor, target), ())[:1] for target in others]
            stops += [sent, *(self._end(hop) for first in hops for hop in first)]
        self._add(tensor, source, [start], [*stops, *self._reads(readers, source)])
        for target in others:
            self._add_arriving(tensor, readers, target)

    def _add_arriving(self, tensor: int, readers: list[int], target: int) -> None:
        """The copy at another device, from the begin of its last hop or of the receiving task."""
        here = [reader for reader in readers if self.device_of[reader] == target]
        start = self.done
        if here:
            first = min(self.place[reader][0] for reader in here)
            tasks = self.tasks.of_segment[first]
            start = (tasks.compute if tasks.receive == NO_TASK else tasks.receive, 0.0)
        elif self.tasks.exit != NO_TASK:
            start = (self.tasks.exit, 0.0)
        starts = [start, *((hop, 0.0) for hop in self.tasks.hops.get((tensor, target), ())[-1:])]
        stops = self._reads(readers, target)
        if self.graph.tensor_is_output[tensor] and target == self.host:
            stops.append(self.done)
        self._add(tensor, target, starts, stops)

    def _reads(self, readers: list[int], device: int) -> list[_Term]:
        """Ends of the readers on a device."""
        return [self._unit(reader)[1] for reader in readers if self.device_of[reader] == device]

    def _unit(self, unit: int) -> tuple[_Term, _Term]:
        """Start and end of a unit."""
        index, at = self.place[unit]
        tasks = self.tasks.of_segment[index]
        before = tasks.begins if at == 0 else float(tasks.unit_ends[at - 1])
        return (tasks.compute, before), (tasks.compute, float(tasks.unit_ends[at]))

    def _end(self, task: int) -> _Term:
        return self.n_tasks + task, 0.0

    def _sent(self, producer: int) -> _Term:
        tasks = self.tasks.of_segment[self.place[producer][0]]
        return self._end(tasks.compute if tasks.send == NO_TASK else tasks.send)

    def _sent_by_host(self) -> _Term:
        return self.entry if self.tasks.entry == NO_TASK else self._end(self.tasks.entry)


def _reduced(extreme: np.ufunc, times: FloatArray, terms: list[list[_Term]]) -> FloatArray:
    """The first or the last time of each copy, shape (n_samples, n_copies)."""
    columns = np.array([column for copy in terms for column, _ in copy])
    seconds = np.array([after for copy in terms for _, after in copy])
    first = np.cumsum([0, *(len(copy) for copy in terms[:-1])])
    return np.asarray(extreme.reduceat(times[:, columns] + seconds, first, axis=1))


def _peak(starts: FloatArray, stops: FloatArray, sizes: FloatArray) -> float:
    times = np.concatenate([stops, starts])
    changes = np.concatenate([-sizes, sizes])
    # What lasts no time still counts where it begins: it must not end before that.
    is_start = np.concatenate([np.zeros(len(stops)), np.ones(len(starts))])
    is_start[: len(stops)][stops == starts] = 2.0
    order = np.lexsort((is_start, times))
    return float(np.cumsum(changes[order]).max(initial=0.0))

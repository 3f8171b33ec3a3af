"""Peak bytes of each device in a stream: weights, and the tensors of its samples."""

from __future__ import annotations

import numpy as np

from placewright.core.arrays import FloatArray, IntArray
from placewright.core.problem import Problem
from placewright.simulation.stream.tasks import NO_TASK, SampleTasks

_Copies = tuple[list[int], list[FloatArray], list[FloatArray], list[float]]


def stream_peaks(
    problem: Problem,
    tasks: SampleTasks,
    device_of: IntArray,
    resident: FloatArray,
    entry: FloatArray,
    begin: FloatArray,
) -> FloatArray:
    """Peak bytes of each device; of a group of devices, those of its fullest member.

    A tensor is kept where it is made from the begin of its unit, elsewhere from the begin of its
    way there, until its last reader there has ended and it has been sent on. Graph inputs are kept
    from their sample's entry where the host is a device, graph outputs until their sample is done.
    Tensors that end and begin at one instant do not count together.

    Args:
        device_of: device of each unit, shape (n_units,).
        resident: bytes that stay, shape (n_devices,).
        entry: when each sample enters, shape (n_samples,).
        begin: when each task begins, shape (n_samples, n_tasks).

    Returns:
        Shape (n_devices,).
    """
    end = begin + tasks.tables.seconds
    copies = _Lifetimes(problem, tasks, device_of, entry, begin, end).copies()
    peaks = resident.copy()
    members = problem.cluster.replicas
    samples = np.arange(len(entry))
    for device in range(problem.n_devices):
        rows = [at for at, where in enumerate(copies[0]) if where == device]
        if not rows:
            continue
        for member in range(int(members[device])):
            mine = samples[samples % members[device] == member]
            starts = np.concatenate([copies[1][at][mine] for at in rows])
            stops = np.concatenate([copies[2][at][mine] for at in rows])
            sizes = np.repeat([copies[3][at] for at in rows], len(mine))
            peaks[device] = max(peaks[device], resident[device] + _peak(starts, stops, sizes))
    return peaks


def _peak(starts: FloatArray, stops: FloatArray, sizes: FloatArray) -> float:
    times = np.concatenate([stops, starts])
    changes = np.concatenate([-sizes, sizes])
    # What lasts no time still counts where it begins: it must not end before that.
    is_start = np.concatenate([np.zeros(len(stops)), np.ones(len(starts))])
    is_start[: len(stops)][stops == starts] = 2.0
    order = np.lexsort((is_start, times))
    return float(np.cumsum(changes[order]).max(initial=0.0))


class _Lifetimes:
    """Begin and end of each copy of each tensor, for all samples at once."""

    def __init__(
        self,
        problem: Problem,
        tasks: SampleTasks,
        device_of: IntArray,
        entry: FloatArray,
        begin: FloatArray,
        end: FloatArray,
    ) -> None:
        self.graph, self.device_of = problem.unit_graph, device_of
        self.n_devices, self.host = problem.n_devices, problem.cluster.host_endpoint
        self.tasks, self.entry, self.begin, self.end = tasks, entry, begin, end
        self.done = end.max(axis=1)
        self.place: dict[int, tuple[int, int]] = {
            unit: (index, at)
            for index, segment in enumerate(tasks.segments)
            for at, unit in enumerate(segment.units)
        }

    def copies(self) -> _Copies:
        """Devices, begins and ends (n_samples,) each, and bytes of all copies."""
        found: _Copies = ([], [], [], [])
        for tensor in range(self.graph.n_tensors):
            size = float(self.graph.tensor_bytes[tensor])
            for device, start, stop in self._of_tensor(tensor):
                if device < self.n_devices and size > 0:
                    found[0].append(device)
                    found[1].append(start)
                    found[2].append(stop)
                    found[3].append(size)
        return found

    def _of_tensor(self, tensor: int) -> list[tuple[int, FloatArray, FloatArray]]:
        readers = self.graph.tensor_consumers.row(tensor).tolist()
        producer = int(self.graph.tensor_producers[tensor])
        targets = list(dict.fromkeys(int(self.device_of[reader]) for reader in readers))
        if self.graph.tensor_is_output[tensor] and self.host not in targets:
            targets.append(self.host)
        if producer < 0:
            source, start, sent = self.host, self.entry, self._sent_by_host()
            stop = self.entry
        else:
            source = int(self.device_of[producer])
            start, stop = self._unit(producer)
            sent = self._sent(producer)
        goes_on = False
        for target in targets:
            if target != source:
                goes_on = True
                for hop in self.tasks.hops.get((tensor, target), ())[:1]:
                    stop = np.maximum(stop, self.end[:, hop])
        if goes_on:
            stop = np.maximum(stop, sent)
        if self.graph.tensor_is_output[tensor]:
            stop = self.done
        rows = [(source, start, self._read_until(readers, source, stop))]
        for target in targets:
            if target != source:
                rows.append(self._arriving(tensor, readers, target))
        return rows

    def _arriving(
        self, tensor: int, readers: list[int], target: int
    ) -> tuple[int, FloatArray, FloatArray]:
        """The copy at another device, from the begin of its last hop or of the receiving task."""
        here = [reader for reader in readers if self.device_of[reader] == target]
        if here:
            first = min(self.place[reader][0] for reader in here)
            tasks = self.tasks.of_segment[first]
            task = tasks.compute if tasks.receive == NO_TASK else tasks.receive
            start = self.begin[:, task]
        elif self.tasks.exit != NO_TASK:
            start = self.begin[:, self.tasks.exit]
        else:
            start = self.done
        hops = self.tasks.hops.get((tensor, target), ())
        if hops:
            start = np.minimum(start, self.begin[:, hops[-1]])
        stop = self.done if self.graph.tensor_is_output[tensor] and target == self.host else start
        return target, start, self._read_until(readers, target, stop)

    def _read_until(self, readers: list[int], device: int, stop: FloatArray) -> FloatArray:
        for reader in readers:
            if self.device_of[reader] == device:
                stop = np.maximum(stop, self._unit(reader)[1])
        return stop

    def _unit(self, unit: int) -> tuple[FloatArray, FloatArray]:
        """Start and end of a unit in each sample."""
        index, at = self.place[unit]
        tasks = self.tasks.of_segment[index]
        start = self.begin[:, tasks.compute]
        before = tasks.begins if at == 0 else float(tasks.unit_ends[at - 1])
        return start + before, start + float(tasks.unit_ends[at])

    def _sent(self, producer: int) -> FloatArray:
        tasks = self.tasks.of_segment[self.place[producer][0]]
        return np.asarray(self.end[:, tasks.compute if tasks.send == NO_TASK else tasks.send])

    def _sent_by_host(self) -> FloatArray:
        return self.entry if self.tasks.entry == NO_TASK else self.end[:, self.tasks.entry]

"""List schedulers in plain Python: the independent side that the kernels are held against.

Their schedule grows unit by unit: when could this unit start there, and is it legal?
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from placewright.core.arrays import FloatArray, IntArray
from placewright.core.problem import Problem
from placewright.placers.legal import ResidentMemory
from placewright.simulation.event.arrays import DIRECT, LOCAL, VIA_HOST, event_arrays


@dataclass
class _Stream:
    """Busy intervals of one stream in time order."""

    starts: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)

    def earliest(self, ready: float, seconds: float, *, insertion: bool) -> float:
        """First start >= ready where the unit fits: in an idle gap, or after the last one."""
        if not insertion or not self.ends:
            return max(ready, self.ends[-1] if self.ends else 0.0)
        before = 0.0
        for start, end in zip(self.starts, self.ends, strict=True):
            begin = max(ready, before)
            if begin + seconds <= start:
                return begin
            before = max(before, end)
        return max(ready, before)

    def add(self, start: float, end: float) -> None:
        """Keep an interval."""
        at = len(self.starts)
        while at > 0 and (self.starts[at - 1], self.ends[at - 1]) > (start, end):
            at -= 1
        self.starts.insert(at, start)
        self.ends.insert(at, end)


class ListSchedule:
    """Units with start times, as list schedulers see them: links never wait for each other.

    Args:
        problem: what is placed.
        limits: resident bytes that each device may keep, shape (n_devices,).
    """

    def __init__(self, problem: Problem, limits: FloatArray | None = None) -> None:
        self.problem = problem
        self.memory = ResidentMemory(problem, limits)
        self.device_of = np.full(problem.n_units, -1, dtype=np.int64)
        self.start = np.zeros(problem.n_units)
        self.end = np.zeros(problem.n_units)
        self._arrays = event_arrays(problem)
        self._group_of = problem.colocation.group_of
        self._allowed = problem.allowed_by_class
        self._device_of_class = np.full(problem.colocation.n_groups, -1, dtype=np.int64)
        self._streams = [[_Stream() for _ in range(d.streams)] for d in problem.cluster.devices]

    def candidates(self, unit: int) -> list[int]:
        """Devices that may run the unit now: class, pins, support, resident memory.

        Where memory leaves none, the allowed device with most room (the simulator then tells).
        """
        group = int(self._group_of[unit])
        if self._device_of_class[group] >= 0:
            return [int(self._device_of_class[group])]
        allowed = np.flatnonzero(self._allowed[group]).tolist()
        fitting = [device for device in allowed if self.memory.fits(group, device)]
        return fitting or [max(allowed, key=lambda device: (self.memory.free[device], -device))]

    def seconds(self, unit: int, device: int) -> float:
        """Seconds of the unit on the device."""
        return float(self.problem.costs.seconds[unit, device])

    def arrival(self, unit: int, device: int) -> float:
        """When all inputs of the unit are on the device."""
        graph, latest = self.problem.unit_graph, 0.0
        for tensor in graph.op_inputs.row(unit).tolist():
            producer = int(graph.tensor_producers[tensor])
            source = self._arrays.host if producer < 0 else int(self.device_of[producer])
            made = 0.0 if producer < 0 else float(self.end[producer])
            latest = max(latest, made + self.transfer(tensor, source, device))
        return latest

    def transfer(self, tensor: int, source: int, target: int) -> float:
        """Seconds of a tensor from one endpoint to another; inf without a route."""
        route = self._arrays.route[source, target]
        if route == LOCAL:
            return 0.0
        if route == DIRECT:
            return self._hop(tensor, source, target)
        if route == VIA_HOST:
            host = self._arrays.host
            return self._hop(tensor, source, host) + self._hop(tensor, host, target)
        return float("inf")

    def earliest_start(self, unit: int, device: int, *, insertion: bool) -> float:
        """When the unit could start on the device's best stream."""
        ready, seconds = self.arrival(unit, device), self.seconds(unit, device)
        return min(
            stream.earliest(ready, seconds, insertion=insertion) for stream in self._streams[device]
        )

    def free_at(self, device: int) -> float:
        """When the device's first stream has nothing more to do."""
        return min(stream.ends[-1] if stream.ends else 0.0 for stream in self._streams[device])

    def place(self, unit: int, device: int, *, insertion: bool) -> None:
        """Put the unit at its earliest start on the device."""
        group = int(self._group_of[unit])
        if self._device_of_class[group] < 0:
            self._device_of_class[group] = device
            self.memory.add(group, device)
        ready, seconds = self.arrival(unit, device), self.seconds(unit, device)
        starts = [s.earliest(ready, seconds, insertion=insertion) for s in self._streams[device]]
        best = int(np.argmin(starts))
        self._streams[device][best].add(starts[best], starts[best] + seconds)
        self.device_of[unit] = device
        self.start[unit], self.end[unit] = starts[best], starts[best] + seconds

    def order(self) -> IntArray:
        """All units by start time, producers before consumers, shape (n_units,)."""
        position = np.empty(self.problem.n_units, dtype=np.int64)
        position[self.problem.unit_graph.topological_order] = np.arange(self.problem.n_units)
        return np.asarray(np.lexsort((position, self.start)), dtype=np.int64)

    def _hop(self, tensor: int, source: int, target: int) -> float:
        arrays = self._arrays
        if len(arrays.own_transfer):
            return float(arrays.own_transfer[tensor])
        per_byte = arrays.seconds_per_byte[source, target]
        return float(arrays.latency[source, target] + arrays.tensor_bytes[tensor] * per_byte)


class ReadyUnits:
    """Units all of whose producers are placed."""

    def __init__(self, problem: Problem) -> None:
        self._graph = problem.unit_graph
        self._missing = np.diff(self._graph.predecessors.indptr).copy()
        self.units: dict[int, None] = dict.fromkeys(np.flatnonzero(self._missing == 0).tolist())

    def done(self, unit: int) -> list[int]:
        """Take a placed unit out; returns the units that became ready."""
        del self.units[unit]
        fresh = []
        for successor in self._graph.successors.row(unit).tolist():
            self._missing[successor] -= 1
            if self._missing[successor] == 0:
                self.units[successor] = None
                fresh.append(successor)
        return fresh

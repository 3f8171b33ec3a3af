"""Execution model `placeto`: the event simulator published with Placeto (Addanki et al. 2019).

One queue per device in the order of readiness; 5.7 microseconds follow every op that takes time;
one bus per *source* device; a transfer takes 25 microseconds and bytes / 7600 per microsecond and
serves all destinations at once; destinations never wait. The runtime is the time of the last event.
Memory is the bytes of outputs from the start of their op until the end of the last reader.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from itertools import accumulate
from typing import ClassVar

import numpy as np

from placewright.core.arrays import FloatArray, IntArray
from placewright.core.problem import Problem
from placewright.simulation.behaviours import BoundsByMethod, Explanation
from placewright.simulation.bounds.feasibility import Proofs, proof_of
from placewright.simulation.bounds.lower import balanced_load_bound, critical_path_bound
from placewright.simulation.layout import ProblemArrays, broken_limit
from placewright.simulation.legality import BAD_ORDER, FINE, NO_ORDER, TOO_LARGE, check

OP_OVERHEAD = 5.7e-6
TRANSFER_OVERHEAD = 25e-6
BYTES_PER_SECOND = 7600e6


class PlacetoModel:
    """Runtimes of placements of one problem."""

    bounds: ClassVar[BoundsByMethod] = {
        "critical path": critical_path_bound,
        "balanced load": balanced_load_bound,
    }
    has_timeline: ClassVar[bool] = False

    def __init__(self, problem: Problem, arrays: ProblemArrays) -> None:
        self._problem, self._arrays = problem, arrays

    def value(self, device_of: IntArray, order: IntArray) -> float:
        """Value of a placement, inf if it is infeasible."""
        return self.evaluate(device_of, order)[0]

    def values(self, devices_of: IntArray) -> FloatArray:
        """Values of placements without order, devices_of (n_placements, n_units)."""
        return np.array([self.evaluate(row, NO_ORDER)[0] for row in devices_of])

    def explain(self, device_of: IntArray, order: IntArray) -> Explanation:
        """An empty explanation: the published simulator returns a runtime only."""
        del device_of, order
        return Explanation()

    @staticmethod
    def why_nothing_fits(problem: Problem) -> str | None:
        """Proofs count support, pins and colocation only."""
        return proof_of(problem, Proofs(bytes_and_routes=False))

    @staticmethod
    def relaxation(problem: Problem) -> None:
        """None: this model has no relaxation."""

    def evaluate(self, device_of: IntArray, order: IntArray) -> tuple[float, int, int, FloatArray]:
        """Value (inf with a fault), fault, its place, and bytes of each device (n_devices,)."""
        arrays = self._arrays
        fault, at = check(arrays, device_of, order)
        if fault not in (FINE, BAD_ORDER):
            return math.inf, fault, at, np.zeros(len(arrays.memory))
        value, peaks = placeto_runtime(self._problem, arrays, device_of)
        over = broken_limit(arrays, peaks)
        if over >= 0:
            return math.inf, TOO_LARGE, over, peaks
        return value, FINE, -1, peaks


def placeto_runtime(
    problem: Problem, arrays: ProblemArrays, device_of: IntArray
) -> tuple[float, FloatArray]:
    """Seconds until the last event, and peak bytes of each device (n_devices,).

    Events of one instant are handled in the order (op end before transfer end, index), which the
    published code leaves to its queue.
    """
    run = _Run(problem, arrays, device_of.tolist())
    runtime = run.runtime()
    return runtime, run.peaks()


class _Run:
    """The simulation of one placement."""

    def __init__(self, problem: Problem, arrays: ProblemArrays, device_of: list[int]) -> None:
        graph = problem.unit_graph
        self.arrays, self.device_of = arrays, device_of
        self.readers = [
            graph.tensor_consumers.row(tensor).tolist() for tensor in range(graph.n_tensors)
        ]
        self.outputs = [graph.op_outputs.row(unit).tolist() for unit in range(graph.n_ops)]
        self.inputs = [graph.op_inputs.row(unit).tolist() for unit in range(graph.n_ops)]
        made = graph.tensor_producers >= 0
        self.missing = [int(made[row].sum()) for row in self.inputs]
        self.waiting = [len(row) for row in self.readers]
        self.queues: list[deque[int]] = [deque() for _ in range(problem.n_devices)]
        self.is_busy = [False] * problem.n_devices
        self.bus_free = [0.0] * problem.n_devices
        self.made: dict[int, float] = {}  # tensor -> start of its op
        self.read: dict[int, float] = {}  # tensor -> end of its last reader
        self.events: list[tuple[float, int, int]] = []

    def runtime(self) -> float:
        for unit, missing in enumerate(self.missing):
            if missing == 0:
                self.queue(unit, 0.0)
        last = 0.0
        while self.events:
            now, is_transfer, index = heapq.heappop(self.events)
            last = max(last, now)
            if is_transfer:
                self.deliver(index, now, here=False)
            else:
                self.finish(index, now)
        return last

    def peaks(self) -> FloatArray:
        """Peak bytes of each device, (n_devices,); at an instant bytes are freed first."""
        changes: list[list[tuple[float, float]]] = [[] for _ in self.queues]
        for tensor, start in self.made.items():
            end = self.read.get(tensor, math.inf)
            if start < end:
                size = float(self.arrays.tensor_bytes[tensor])
                home = self.device_of[int(self.arrays.producer[tensor])]
                changes[home] += [(start, size), (end, -size)]
        totals = (accumulate((size for _, size in sorted(row)), initial=0.0) for row in changes)
        return np.array([max(total) for total in totals])

    def queue(self, unit: int, now: float) -> None:
        """Queue a unit that became ready on its device, and begin it if the device is idle."""
        device = self.device_of[unit]
        self.queues[device].append(unit)
        if not self.is_busy[device]:
            self.begin_next(device, now)

    def begin_next(self, device: int, now: float) -> None:
        """Begin the first unit of a device's queue.

        Its end becomes an event only now: a unit that takes no time must not end before the unit
        that it has waited for.
        """
        self.is_busy[device] = bool(self.queues[device])
        if not self.is_busy[device]:
            return
        unit = self.queues[device].popleft()
        seconds = float(self.arrays.seconds[unit, device])
        for tensor in self.outputs[unit]:
            self.made[tensor] = now
        end = now + seconds
        heapq.heappush(self.events, (end + (OP_OVERHEAD if seconds > 0 else 0.0), 0, unit))

    def finish(self, unit: int, now: float) -> None:
        device = self.device_of[unit]
        for tensor in self.inputs[unit]:
            self.waiting[tensor] -= 1
            if self.waiting[tensor] == 0:
                self.read[tensor] = now
        for tensor in self.outputs[unit]:
            self.deliver(tensor, now, here=True)
            if any(self.device_of[reader] != device for reader in self.readers[tensor]):
                start = max(now, self.bus_free[device])
                size = float(self.arrays.tensor_bytes[tensor])
                self.bus_free[device] = start + size / BYTES_PER_SECOND + TRANSFER_OVERHEAD
                heapq.heappush(self.events, (self.bus_free[device], 1, tensor))
        self.begin_next(device, now)

    def deliver(self, tensor: int, now: float, *, here: bool) -> None:
        home = self.device_of[int(self.arrays.producer[tensor])]
        for reader in self.readers[tensor]:
            if (self.device_of[reader] == home) == here:
                self.missing[reader] -= 1
                if self.missing[reader] == 0:
                    self.queue(reader, now)

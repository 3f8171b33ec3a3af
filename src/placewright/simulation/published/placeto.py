"""Execution model `placeto`: the event simulator published with Placeto (Addanki et al. 2019).

A device runs ready units first in, first out. It is busy for 5.7 microseconds more after every unit
that takes time; readers on the device do not wait for them. One bus per *source* device carries a
tensor to all other devices at once. A transfer takes bytes / 7600 microseconds, and keeps the bus
busy for 25 more, which the readers do not wait for. The runtime is the time when the last device
and the last bus are free. If a unit reads several outputs of another, only the last one counts.

At one instant, arrivals come first, in the order of the unit that made them, then buses, then
devices. The published code sorts names there; here, units and devices have numbers.

A unit's outputs all count on its own device, and on no other. They count from the start of the
unit until 1 microsecond before the end of its last reader, with start and duration of that reader
cut to whole microseconds, and at the start of the unit in any case.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from typing import ClassVar

import numpy as np

from placewright.core.arrays import FloatArray, IntArray
from placewright.core.graph import ComputationGraph
from placewright.core.problem import Problem
from placewright.simulation.behaviours import Behaviour, BoundsByMethod, Explanation
from placewright.simulation.bounds.feasibility import Proofs, proof_of
from placewright.simulation.bounds.lower import balanced_load_bound, critical_path_bound
from placewright.simulation.layout import ProblemArrays, broken_limit
from placewright.simulation.legality import BAD_ORDER, FINE, TOO_LARGE, check

# In microseconds, as the published costs are.
OP_OVERHEAD = 5.7
TRANSFER_OVERHEAD = 25.0
BYTES_PER_MICROSECOND = 7600.0
ARRIVAL, BUS, DEVICE = range(3)  # order of events at one instant
# time, kind, unit (of an arrival) or device, units that the tensors of an arrival are for
Event = tuple[float, int, int, list[int]]


class PlacetoModel(Behaviour):
    """Runtimes of placements of one problem."""

    bounds: ClassVar[BoundsByMethod] = {
        "critical path": critical_path_bound,
        "balanced load": balanced_load_bound,
    }

    def __init__(self, problem: Problem, arrays: ProblemArrays) -> None:
        self._arrays = arrays
        self._micros = whole_where_close(arrays.seconds * 1e6)
        self._reads = _Reads(problem.unit_graph, arrays)

    def explain(self, device_of: IntArray, order: IntArray) -> Explanation:
        """The start of each unit of a feasible placement."""
        run, _ = self._run(device_of, order)
        assert run is not None
        return Explanation(starts=run.start / 1e6)

    @staticmethod
    def why_nothing_fits(problem: Problem) -> str | None:
        """A line that proves from support, pins and colocation that nothing fits, or None."""
        return proof_of(problem, Proofs(bytes_and_routes=False))

    def evaluate(self, device_of: IntArray, order: IntArray) -> tuple[float, int, int, FloatArray]:
        """Value (inf with a fault), fault, its place, and bytes of each device (n_devices,)."""
        return self._run(device_of, order)[1]

    def _run(
        self, device_of: IntArray, order: IntArray
    ) -> tuple[_Run | None, tuple[float, int, int, FloatArray]]:
        """The simulation, None for an illegal placement, and what `evaluate` returns."""
        arrays = self._arrays
        fault, at = check(arrays, device_of, order)
        if fault not in (FINE, BAD_ORDER):
            return None, (math.inf, fault, at, np.zeros(len(arrays.memory)))
        run = _Run(self._reads, self._micros, device_of)
        peaks = run.peaks()
        over = broken_limit(arrays, peaks)
        if over >= 0:
            return run, (math.inf, TOO_LARGE, over, peaks)
        return run, (run.runtime / 1e6, FINE, -1, peaks)


def whole_where_close(numbers: FloatArray) -> FloatArray:
    """The numbers; those that miss a whole number by no more than rounding become that number."""
    whole = np.rint(numbers)
    return np.where(np.isclose(numbers, whole, rtol=1e-14, atol=0.0), whole, numbers)


class _Reads:
    """The pairs of a unit and a reader, with one output for each pair: its last one."""

    def __init__(self, graph: ComputationGraph, arrays: ProblemArrays) -> None:
        # of each unit: reader -> tensor, readers in ascending order
        self.readers: list[dict[int, int]] = []
        for unit in range(graph.n_ops):
            last = {
                reader: tensor
                for tensor in graph.op_outputs.row(unit).tolist()
                for reader in graph.tensor_consumers.row(tensor).tolist()
            }
            self.readers.append(dict(sorted(last.items())))
        self.missing = [len(graph.predecessors.row(unit)) for unit in range(graph.n_ops)]
        self.on_bus = (arrays.tensor_bytes / BYTES_PER_MICROSECOND).tolist()  # microseconds
        made = arrays.producer >= 0
        self.made_bytes = np.bincount(  # of all outputs of each unit
            arrays.producer[made], arrays.tensor_bytes[made], minlength=graph.n_ops
        )
        self.makers = graph.successors.row_of_each()  # of each pair
        self.pair_readers = graph.successors.indices


class _Run:
    """The simulation of one placement, in microseconds."""

    def __init__(self, reads: _Reads, micros: FloatArray, device_of: IntArray) -> None:
        n_units, n_devices = micros.shape
        self.reads, self.devices = reads, device_of
        self.micros = micros[np.arange(n_units), device_of]  # of each unit
        self.device_of, self.seconds_of = device_of.tolist(), self.micros.tolist()
        self.missing = list(reads.missing)
        self.queues: list[deque[int]] = [deque() for _ in range(n_devices)]
        self.is_busy = [False] * n_devices
        self.bus_free = [0.0] * n_devices
        self.events: list[Event] = []
        self.begun = [0.0] * n_units
        self.runtime = self.simulated()
        self.start = np.array(self.begun)

    def simulated(self) -> float:
        """The time when all is done."""
        for unit, missing in enumerate(self.missing):
            if missing == 0:
                self.queue(unit, 0.0)
        now = 0.0
        while self.events:
            now, kind, device, readers = heapq.heappop(self.events)
            if kind == DEVICE:
                self.begin_next(device, now)
            for reader in readers:
                self.missing[reader] -= 1
                if self.missing[reader] == 0:
                    self.queue(reader, now)
        return max(now, *self.bus_free)

    def queue(self, unit: int, now: float) -> None:
        """Queue a ready unit on its device, and let the device look if it is idle."""
        device = self.device_of[unit]
        self.queues[device].append(unit)
        if not self.is_busy[device]:
            self.is_busy[device] = True
            heapq.heappush(self.events, (now, DEVICE, device, []))

    def begin_next(self, device: int, now: float) -> None:
        """Begin the first unit of a device's queue, and plan its end and its transfers."""
        if not self.queues[device]:
            self.is_busy[device] = False
            return
        unit = self.queues[device].popleft()
        duration = self.seconds_of[unit]
        end = now + duration
        self.begun[unit] = now
        heapq.heappush(
            self.events, (end + (OP_OVERHEAD if duration > 0 else 0.0), DEVICE, device, [])
        )
        here: list[int] = []
        sent: dict[int, list[int]] = {}  # tensor -> readers elsewhere, by the first of them
        for reader, tensor in self.reads.readers[unit].items():
            if self.device_of[reader] == device:
                here.append(reader)
            else:
                sent.setdefault(tensor, []).append(reader)
        if here:
            heapq.heappush(self.events, (end, ARRIVAL, unit, here))
        for tensor, readers in sent.items():
            self.send(tensor, unit, end, readers)

    def send(self, tensor: int, unit: int, made: float, readers: list[int]) -> None:
        """Plan a transfer. One that takes no time arrives after all else that arrives then."""
        device = self.device_of[unit]
        start = max(made, self.bus_free[device])
        end = start + self.reads.on_bus[tensor]
        self.bus_free[device] = end + TRANSFER_OVERHEAD
        event = (end, ARRIVAL, unit, readers) if end > start else (end, BUS, device, readers)
        heapq.heappush(self.events, event)

    def peaks(self) -> FloatArray:
        """Peak bytes of each device, (n_devices,); at an instant bytes are freed last."""
        reads, start = self.reads, self.start
        freed = start.copy()
        ends = np.floor(start) + np.floor(self.micros) - 1.0
        np.maximum.at(freed, reads.makers, ends[reads.pair_readers])
        size = reads.made_bytes
        at, change = np.concatenate([start, freed]), np.concatenate([size, -size])
        order = np.lexsort((change < 0, at))
        is_on = np.tile(self.devices, 2)[order, None] == np.arange(len(self.queues))
        totals = np.cumsum(np.where(is_on, change[order, None], 0.0), axis=0)
        return np.asarray(totals.max(axis=0, initial=0.0))

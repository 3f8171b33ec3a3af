"""Earliest task first, with or without favourite children: the engine of m-ETF and m-SCT."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from placewright.core.arrays import FloatArray
from placewright.core.problem import Problem
from placewright.placers.legal import Proposal
from placewright.placers.list_scheduling.schedule import ListSchedule, ReadyUnits
from placewright.simulation.ranks import mean_upward_ranks


def schedule_earliest_first(
    problem: Problem, limits: FloatArray, favourite: Mapping[int, int] | None = None
) -> Proposal:
    """Place the ready unit that can start earliest until all units are placed.

    A unit's device is the one where it finishes first, which on equal devices is where it starts
    first. With favourites a device that has just run a unit is *awake* until the unit's favourite
    child could start elsewhere: until then it takes only that child, or a unit that is urgent
    (whose inputs could have been on every device by then).

    Args:
        problem: what is placed.
        limits: resident bytes of each device, shape (n_devices,).
        favourite: unit -> its favourite child.
    """
    return _EarliestFirst(problem, limits, favourite or {}).run()


class _EarliestFirst:
    def __init__(self, problem: Problem, limits: FloatArray, favourite: Mapping[int, int]) -> None:
        self.problem = problem
        self.schedule = ListSchedule(problem, limits)
        self.ready = ReadyUnits(problem)
        self.rank = mean_upward_ranks(problem)
        self.favourite = favourite
        self.last = np.full(problem.n_devices, -1, dtype=np.int64)
        self.arrival = np.full((problem.n_units, problem.n_devices), np.inf)
        for unit in self.ready.units:
            self._note_arrivals(unit)

    def run(self) -> Proposal:
        while self.ready.units:
            unit, device = self._next_pair()
            self.schedule.place(unit, device, insertion=False)
            self.last[device] = unit
            for fresh in self.ready.done(unit):
                self._note_arrivals(fresh)
        return self.schedule.device_of, self.schedule.order()

    def _note_arrivals(self, unit: int) -> None:
        for device in range(self.problem.n_devices):
            if self.problem.allowed[unit, device]:
                self.arrival[unit, device] = self.schedule.arrival(unit, device)

    def _next_pair(self) -> tuple[int, int]:
        free = [self.schedule.free_at(device) for device in range(self.problem.n_devices)]
        best: tuple[tuple[float, float, int], int] | None = None
        for unit in self.ready.units:
            starts = {
                device: self._start(unit, device, free[device])
                for device in self.schedule.candidates(unit)
            }
            device = min(starts, key=lambda d: (starts[d] + self.schedule.seconds(unit, d), d))
            key = (starts[device], -float(self.rank[unit]), unit)
            if best is None or key < best[0]:
                best = (key, device)
        assert best is not None
        return best[0][2], best[1]

    def _start(self, unit: int, device: int, free: float) -> float:
        """Earliest start; later where the device waits for the favourite child of its last unit."""
        start = max(free, float(self.arrival[unit, device]))
        last = int(self.last[device])
        child = self.favourite.get(last, -1)
        if child < 0 or child == unit or self.schedule.device_of[child] >= 0:
            return start
        allowed = np.flatnonzero(self.problem.allowed[unit])
        if self.arrival[unit, allowed].max() <= start:
            return start  # urgent
        return max(start, self._awake_until(last, child, device))

    def _awake_until(self, last: int, child: int, device: int) -> float:
        graph = self.problem.unit_graph
        shared = [
            tensor
            for tensor in graph.op_outputs.row(last).tolist()
            if child in graph.tensor_consumers.row(tensor)
        ]
        others = [d for d in range(self.problem.n_devices) if d != device]
        seconds = [self.schedule.transfer(t, device, other) for t in shared for other in others]
        finite = [value for value in seconds if np.isfinite(value)]
        return float(self.schedule.end[last]) + max(finite, default=0.0)

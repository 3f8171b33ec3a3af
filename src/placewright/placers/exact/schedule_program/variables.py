"""Variables of the constraint program: who runs what, when it starts, when it ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from placewright.core.problem import Problem
from placewright.placers.exact.schedule_program.ticks import Ticks
from placewright.simulation.event.arrays import EventArrays, event_arrays


@dataclass(frozen=True)
class ChannelUse:
    """One tensor on one channel.

    Attributes:
        queued: ticks at which it may leave at the soonest.
        start: ticks at which it leaves.
        size: ticks that it takes.
        is_sent: literal, true where it takes place.
        producer: unit that makes the tensor; -1 of a graph input.
        tensor: that is sent.
        target: endpoint that it is sent to, maybe through the host.
        is_passed_on: it was queued when it arrived at the host, not when it was made.
    """

    queued: Any
    start: Any
    size: int
    is_sent: Any
    producer: int
    tensor: int
    target: int
    is_passed_on: bool


class Variables:
    """Variables of one problem, each class of units on one device that all of it may use.

    Attributes:
        model: an ``ortools.sat.python.cp_model.CpModel``.
        x: literal of each colocation class on each device that may run it.
        start, end: of each unit, in ticks.
        makespan: what is minimised, in ticks.
        channels: transfers on each channel that makes them wait.
    """

    def __init__(self, problem: Problem, ticks: Ticks, horizon: int) -> None:
        from ortools.sat.python import cp_model

        self.problem = problem
        self.arrays: EventArrays = event_arrays(problem)
        self.ticks = ticks
        self.horizon = horizon
        self.model: Any = cp_model.CpModel()
        self.group_of = problem.colocation.group_of
        self.channels: dict[int, list[ChannelUse]] = {}
        self.x = self._assigned()
        self.start = [self.time() for _ in range(problem.n_units)]
        self.end = [self.time() for _ in range(problem.n_units)]
        self.makespan = self.time()

    def time(self) -> Any:
        """A new point in time."""
        return self.model.new_int_var(0, self.horizon, "")

    def literal(self) -> Any:
        """A new true or false."""
        return self.model.new_bool_var("")

    def on(self, unit: int, device: int) -> Any | None:
        """The literal of a unit on a device; None where it may not run there."""
        return self.x[int(self.group_of[unit])].get(device)

    def _assigned(self) -> list[dict[int, Any]]:
        x: list[dict[int, Any]] = []
        for allowed in self.problem.allowed_by_class:
            row = {int(device): self.literal() for device in np.flatnonzero(allowed)}
            self.model.add_exactly_one(row.values())
            x.append(row)
        return x

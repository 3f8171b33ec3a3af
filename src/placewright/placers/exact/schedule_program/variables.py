"""Variables of the constraint program: device, start and end of each unit, in ticks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from placewright.core.problem import Problem
from placewright.simulation.layout import ProblemArrays, problem_arrays

_ROUNDING = 1e-12  # relative error of a product of two doubles, with a margin


@dataclass(frozen=True)
class ChannelUse:
    """The transfer of one tensor on one channel."""

    queued: Any  # ticks at which it may leave at the soonest
    start: Any  # ticks at which it leaves
    size: int  # ticks that it takes
    is_sent: Any  # literal, true where it takes place
    producer: int  # unit that makes the tensor; -1 of a graph input
    tensor: int  # that is sent
    target: int  # endpoint that it is sent to, maybe through the host
    is_passed_on: bool  # it was queued when it arrived at the host, not when it was made


class Variables:
    """The variables of one problem, with a literal for each class on each device it may use.

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
        self.arrays: ProblemArrays = problem_arrays(problem)
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
        """Create a point in time."""
        return self.model.new_int_var(0, self.horizon, "")

    def literal(self) -> Any:
        """Create a Boolean variable."""
        return self.model.new_bool_var("")

    def on(self, unit: int, device: int) -> Any | None:
        """The literal of a unit on a device; None if it may not run there."""
        return self.x[int(self.group_of[unit])].get(device)

    def _assigned(self) -> list[dict[int, Any]]:
        x: list[dict[int, Any]] = []
        for allowed in self.problem.allowed_by_class:
            row = {int(device): self.literal() for device in np.flatnonzero(allowed)}
            self.model.add_exactly_one(row.values())
            x.append(row)
        return x


@dataclass(frozen=True)
class Ticks:
    """The unit of time: seconds become integers, rounded down so that bounds stay bounds."""

    seconds: float  # of one tick, > 0

    def down(self, seconds: float) -> int:
        """Largest number of whole ticks within a duration."""
        return max(0, math.floor(seconds / self.seconds * (1.0 - _ROUNDING)))

    def up(self, seconds: float) -> int:
        """Smallest number of whole ticks that a duration fits into."""
        return math.ceil(seconds / self.seconds * (1.0 + _ROUNDING))

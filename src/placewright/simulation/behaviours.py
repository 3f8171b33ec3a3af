"""The interface of execution models, and the list of the classes that implement them.

The parameters of an execution model are in `core.execution_models`. Its class here compiles a
problem, values and explains placements, lists the bounds that hold, and proves that nothing fits.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol, cast

import numpy as np

from placewright.core.arrays import FloatArray, IntArray
from placewright.core.execution_models import (
    Event,
    ExecutionModel,
    MaxLoad,
    Placeto,
    Sequential,
    Subgraph,
    SubgraphIP,
)
from placewright.core.problem import Problem
from placewright.simulation.layout import ProblemArrays
from placewright.simulation.legality import NO_ORDER
from placewright.simulation.timeline import Timeline

Outcome = tuple[float, int, int, FloatArray]
BoundsByMethod = Mapping[str, Callable[[Problem], float]]

# Class of each execution model, under `simulation`: "module:Class", imported when it is needed.
BEHAVIOURS: Mapping[type[ExecutionModel], str] = {
    Event: "event.model:EventModel",
    MaxLoad: "max_load:Loads",
    Subgraph: "published.subgraph:Latency",
    SubgraphIP: "published.subgraph:Latency",
    Placeto: "published.placeto:PlacetoModel",
    Sequential: "sequential:Sums",
}


@dataclass(frozen=True)
class Explanation:
    """The parts of a placement's value; None for parts that the execution model does not have."""

    timeline: Timeline | None = None  # start and end of all units and transfers
    # seconds of each device, then of each channel, shape (n_phases, n)
    loads: FloatArray | None = None
    # seconds of each device, which add up to the value, shape (n_devices,)
    sums: FloatArray | None = None
    starts: FloatArray | None = None  # of units, in seconds, without a timeline; shape (n_units,)
    # why the value is infinite although devices, order and memory are legal
    broken: str | None = None


class Relaxation(Protocol):
    """A linear relaxation of a problem; see `bounds.relaxation`."""

    upper: list[float]  # upper bound of each column, the value first

    def x(self, unit: int, device: int) -> int:
        """Column of a unit's colocation class on a device."""
        ...

    def solved(self, seconds: float) -> float:
        """A safe lower bound from the solver's dual solution; 0 if it was not solved in time."""
        ...


class Behaviour(Protocol):
    """Base of execution models compiled for one problem; threads may share an instance.

    By default it has no timeline and no relaxation, and values placements one after the other.
    """

    # method -> function of a problem that returns a lower bound in seconds
    bounds: ClassVar[BoundsByMethod]
    has_timeline: ClassVar[bool] = False  # whether `explain` returns a timeline

    def __init__(self, problem: Problem, arrays: ProblemArrays) -> None:
        """Compile a problem."""
        ...

    def value(self, device_of: IntArray, order: IntArray) -> float:
        """Value of a placement, inf if it is infeasible; device_of and order (n_units,)."""
        return self.evaluate(device_of, order)[0]

    def values(self, devices_of: IntArray) -> FloatArray:
        """Values of placements without order, devices_of (n_placements, n_units)."""
        return np.array([self.value(row, NO_ORDER) for row in devices_of])

    def evaluate(self, device_of: IntArray, order: IntArray) -> Outcome:
        """Value, fault (a code of `legality`), its place, and bytes of each device (n_devices,)."""
        ...

    def explain(self, device_of: IntArray, order: IntArray) -> Explanation:
        """The parts of a placement's value, or the reason why it is infinite without a fault."""
        ...

    @staticmethod
    def why_nothing_fits(problem: Problem) -> str | None:
        """One line that proves that no placement exists, or None if no proof was found."""
        ...

    @staticmethod
    def relaxation(problem: Problem) -> Relaxation | None:
        """The linear relaxation of a problem; None if the execution model has none."""
        del problem
        return None


def behaviour_of(problem: Problem) -> type[Behaviour]:
    """The class of the problem's execution model."""
    module, _, name = BEHAVIOURS[type(problem.execution_model)].partition(":")
    behaviour = getattr(importlib.import_module(f"placewright.simulation.{module}"), name)
    return cast("type[Behaviour]", behaviour)

"""How each execution model behaves: one file or folder each, registered here once.

The parameters of a model are in `core.execution_models`. All behaviours have the same methods: they
compile a problem, value its placements, explain one, name the general bounds that hold, and prove
that nothing fits.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, ClassVar, Protocol, cast

from placewright.core.arrays import FloatArray, IntArray
from placewright.core.execution_models import (
    Event,
    ExecutionModel,
    MaxLoad,
    Placeto,
    Subgraph,
    SubgraphIP,
)
from placewright.core.problem import Problem
from placewright.simulation.event.arrays import EventArrays
from placewright.simulation.explanation import Explanation

if TYPE_CHECKING:
    from placewright.simulation.relaxed_program import Relaxation

Outcome = tuple[float, int, int, FloatArray]
BoundsByMethod = Mapping[str, Callable[[Problem], float]]

# Where the behaviour of each model stands, under `simulation`: "module:Class".
BEHAVIOURS: Mapping[type[ExecutionModel], str] = {
    Event: "event.model:EventModel",
    MaxLoad: "max_load:Loads",
    Subgraph: "subgraph:Latency",
    SubgraphIP: "subgraph:Latency",
    Placeto: "placeto:PlacetoModel",
}


class Behaviour(Protocol):
    """An execution model compiled for one problem; threads may share it.

    Attributes:
        bounds: method -> quick bound of a problem, in seconds, which no value is below.
        has_timeline: `explain` gives one.
    """

    bounds: ClassVar[BoundsByMethod]
    has_timeline: ClassVar[bool]

    def __init__(self, problem: Problem, arrays: EventArrays) -> None:
        """Compile a problem."""
        ...

    def value(self, device_of: IntArray, order: IntArray) -> float:
        """Value of a placement, inf where it is infeasible; device_of and order (n_units,)."""
        ...

    def values(self, devices_of: IntArray) -> FloatArray:
        """Values of placements without order, devices_of (n_placements, n_units)."""
        ...

    def evaluate(self, device_of: IntArray, order: IntArray) -> Outcome:
        """Value, fault (see `legality`), where it is, and bytes of each device (n_devices,)."""
        ...

    def explain(self, device_of: IntArray, order: IntArray) -> Explanation:
        """What the value of a placement consists of, or why it has none without a fault."""
        ...

    @staticmethod
    def why_nothing_fits(problem: Problem) -> str | None:
        """One line that proves that no placement exists, or None where no proof is found."""
        ...

    @staticmethod
    def relaxation(problem: Problem) -> Relaxation | None:
        """The linear relaxation of a problem, without rows; None where there is none."""
        ...


def behaviour_of(problem: Problem) -> type[Behaviour]:
    """How the problem's execution model behaves."""
    module, _, name = BEHAVIOURS[type(problem.execution_model)].partition(":")
    found = getattr(importlib.import_module(f"placewright.simulation.{module}"), name)
    return cast("type[Behaviour]", found)

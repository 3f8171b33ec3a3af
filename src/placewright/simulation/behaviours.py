"""How each execution model behaves: one file or folder each, registered here once.

The parameters of a model are in `core.execution_models`. Its `Applied` values placements of one
problem; a `Behaviour` says where it stands, and which general bounds and proofs hold under it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, cast

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

Outcome = tuple[float, int, int, FloatArray]


class Applied(Protocol):
    """An execution model compiled for one problem; threads may share it."""

    def value(self, device_of: IntArray, order: IntArray) -> float:
        """Value of a placement, inf where it is infeasible; device_of and order (n_units,)."""
        ...

    def values(self, devices_of: IntArray) -> FloatArray:
        """Values of placements without order, devices_of (n_placements, n_units)."""
        ...

    def evaluate(self, device_of: IntArray, order: IntArray) -> Outcome:
        """Value, fault (see `legality`), where it is, and bytes of each device (n_devices,)."""
        ...


@dataclass(frozen=True)
class Behaviour:
    """What is known of an execution model.

    Attributes:
        applied: ``"module:Class"`` under `simulation`: (problem, arrays) -> `Applied`.
        has_critical_path: no value is below the longest path of least seconds.
        has_balanced_load: nor below all work over all streams.
        has_links: tensors need a route, so that missing ones prove that nothing fits.
        counts_weights: bytes that units keep prove that nothing fits.
        counts_working_sets: so do the inputs and outputs of a unit that takes time.
    """

    applied: str
    has_critical_path: bool = True
    has_balanced_load: bool = True
    has_links: bool = False
    counts_weights: bool = True
    counts_working_sets: bool = False


BEHAVIOURS: Mapping[type[ExecutionModel], Behaviour] = {
    Event: Behaviour("event.model:EventModel", has_links=True, counts_working_sets=True),
    MaxLoad: Behaviour("max_load:Loads", has_critical_path=False, has_links=True),
    Subgraph: Behaviour("subgraph:Latency", has_balanced_load=False),
    SubgraphIP: Behaviour("subgraph:Latency", has_balanced_load=False),
    Placeto: Behaviour("placeto:PlacetoModel", counts_weights=False),
}


def behaviour_of(problem: Problem) -> Behaviour:
    """How the problem's execution model behaves."""
    return BEHAVIOURS[type(problem.execution_model)]


def applied_to(problem: Problem, arrays: EventArrays) -> Applied:
    """The problem's execution model, compiled for the problem."""
    module, _, name = behaviour_of(problem).applied.partition(":")
    found = getattr(importlib.import_module(f"placewright.simulation.{module}"), name)
    return cast("Callable[[Problem, EventArrays], Applied]", found)(problem, arrays)

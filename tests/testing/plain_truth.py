"""The least value over all placements under the models that know no order, by plain references."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from simulation.published_oracles import MaxLoadReference, PlacetoReference, SubgraphReference
from testing.event_truth import least_makespan, legal_placements
from testing.sequential_truth import plain_sum

from placewright.core.execution_models import (
    Event,
    MaxLoad,
    Placeto,
    Sequential,
    Subgraph,
    SubgraphIP,
)
from placewright.core.placement import Placement
from placewright.core.problem import Problem

_REFERENCES: dict[type, Callable[[Problem, Placement], object]] = {
    MaxLoad: MaxLoadReference,
    Subgraph: SubgraphReference,
    SubgraphIP: SubgraphReference,
    Placeto: PlacetoReference,
}


def plain_value(problem: Problem, device_of: np.ndarray) -> float:
    """Of one placement."""
    if isinstance(problem.execution_model, Sequential):
        return plain_sum(problem, device_of.tolist())
    reference = _REFERENCES[type(problem.execution_model)]
    return float(reference(problem, Placement.of(device_of)).value())  # type: ignore[attr-defined]


def least_value(problem: Problem) -> float:
    """Over all placements and, under `event`, all orders; inf where there is none."""
    if isinstance(problem.execution_model, Event):
        return least_makespan(problem)
    rows = legal_placements(problem)
    return min((plain_value(problem, row) for row in rows), default=math.inf)

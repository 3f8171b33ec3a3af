"""Values of placements and the least one of a problem, by plain references.

The formulas of energy and price are written from docs/reference/simulation.md, apart from
`core.charges`. For one placement every amount grows with the seconds, so that its best order is its
fastest.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from simulation.published_oracles import MaxLoadReference, PlacetoReference, SubgraphReference
from testing.event_truth import least_makespan, least_of_each, legal_placements
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


def seconds_of(problem: Problem, device_of: np.ndarray) -> float:
    """The least seconds of one placement over all orders; inf without any."""
    return seconds_of_each(problem, device_of[None, :])[0]


def seconds_of_each(problem: Problem, rows: np.ndarray) -> list[float]:
    """The least seconds of each placement, rows (n, n_units)."""
    if isinstance(problem.execution_model, Event):
        return least_of_each(problem, rows)
    return [plain_value(problem, row) for row in rows]


def amount(problem: Problem, quantity: str, device_of: np.ndarray, seconds: float) -> float:
    """A quantity of one placement that takes so many seconds."""
    if quantity not in ("energy", "price") or math.isinf(seconds):
        return seconds
    devices, total = problem.cluster.devices, 0.0
    if quantity == "price":
        for at in sorted(set(device_of.tolist())):
            total += devices[at].price_per_hour / 3600.0 * devices[at].replicas * seconds
        return total
    for unit, at in enumerate(device_of.tolist()):
        watts = (devices[at].busy_watts - devices[at].idle_watts) / devices[at].streams
        own = watts * problem.costs.seconds[unit, at]
        total += own if problem.op_joules is None else problem.op_joules[unit, at]
    for device in devices:
        total += device.idle_watts * device.replicas * seconds
    return total


def charged_value(problem: Problem, device_of: np.ndarray, seconds: float) -> float:
    """The value of one placement that takes so many seconds; inf above a limit."""
    for quantity, most in problem.limits.items():
        if amount(problem, quantity, device_of, seconds) > most * (1.0 + 1e-9):
            return math.inf
    return amount(problem, problem.objective, device_of, seconds)


def least_value(problem: Problem) -> float:
    """Over all placements and, under `event`, all orders; inf where there is none."""
    if isinstance(problem.execution_model, Event) and not is_charged(problem):
        return least_makespan(problem)
    rows = legal_placements(problem)
    timed = zip(rows, seconds_of_each(problem, rows), strict=True)
    return min((charged_value(problem, *one) for one in timed), default=math.inf)


def is_charged(problem: Problem) -> bool:
    """True if energy, price or a limit decides about values."""
    return bool(problem.limits) or problem.objective in ("energy", "price")

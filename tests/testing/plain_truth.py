"""Values of placements and the least one of a problem, by plain references.

The formulas of energy and price are written from docs/reference/simulation.md, apart from
`core.charges`. For one placement every amount grows with the seconds, so that its best order is its
fastest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from simulation.published_oracles import MaxLoadReference, PlacetoReference, SubgraphReference
from testing.event_truth import least_makespan, least_of_each, legal_placements
from testing.sequential_truth import plain_sum

from placewright.core.cluster import Device
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
        prices = of_processors(devices, [d.price_per_hour / 3600.0 * d.replicas for d in devices])
        for processor in sorted({name for at in device_of.tolist() for name in names(devices[at])}):
            total += prices[processor] * seconds
        return total
    watts = of_processors(devices, [device.idle_watts for device in devices])
    for unit, at in enumerate(device_of.tolist()):
        idle = sum(watts[processor] for processor in names(devices[at]))
        own = (
            (devices[at].busy_watts - idle) / devices[at].streams * problem.costs.seconds[unit, at]
        )
        total += own if problem.op_joules is None else problem.op_joules[unit, at]
    for processor, idle in watts.items():
        count = max(device.replicas for device in devices if processor in names(device))
        total += idle * count * seconds
    return total


def names(device: Device) -> tuple[str, ...]:
    """Of its processors."""
    return device.processors or (device.name,)


def of_processors(devices: Sequence[Device], amounts: Sequence[float]) -> dict[str, float]:
    """Idle power or price of each processor, from that of devices.

    That of the dearest device that has it alone. Processors that no device has alone share what
    their device has more than the others, alike; the largest share of several devices counts.
    """
    alone = {names(device)[0] for device in devices if len(names(device)) == 1}
    found = {}
    for processor in {name for device in devices for name in names(device)}:
        found[processor] = max(
            (a for d, a in zip(devices, amounts, strict=True) if names(d) == (processor,)),
            default=0.0,
        )
    for processor in set(found) - alone:
        for device, amount in zip(devices, amounts, strict=True):
            if processor in names(device):
                rest = amount - sum(found[name] for name in names(device) if name in alone)
                count = len(set(names(device)) - alone)
                found[processor] = max(found[processor], rest / count)
    return found


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

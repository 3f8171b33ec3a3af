"""What else could be run: each device alone, what the search found, what was measured beside it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from placewright.core.contender_names import PLAN, SEARCHED, contender_of
from placewright.core.placement import Placement
from placewright.core.plan import Plan
from placewright.simulation.model import Simulator


@dataclass(frozen=True)
class Alternative:
    """One way to run the model.

    Attributes:
        name: of `core.contender_names`.
        predicted: in the problem's time unit; None where nothing predicts it, inf where it is
            infeasible.
        measured: median seconds; None where it was not measured.
        note: why it is infeasible, else empty.
        is_device: one device runs everything.
    """

    name: str
    predicted: float | None
    measured: float | None = None
    note: str = ""
    is_device: bool = False


def alternatives_of(plan: Plan, simulator: Simulator) -> tuple[Alternative, ...]:
    """The plan first, then what the search found, then every device alone, then the measured."""
    measured = dict(plan.measured.baselines) if plan.measured else {}
    rows = [Alternative(PLAN, plan.value, plan.measured.median if plan.measured else None)]
    if plan.searched is not None:
        rows.append(Alternative(SEARCHED, plan.searched.value, measured.pop(SEARCHED, None)))
    for device, name in enumerate(map(contender_of, plan.problem.cluster.device_names)):
        rows.append(_alone(simulator, device, name, measured.pop(name, None)))
    rows += [Alternative(name, None, seconds) for name, seconds in measured.items()]
    return tuple(rows)


def _alone(simulator: Simulator, device: int, name: str, measured: float | None) -> Alternative:
    placement = Placement.on_one_device(simulator.problem.n_units, device)
    value = simulator.value(placement)
    violation = simulator.violation(placement) if math.isinf(value) else None
    note = "" if violation is None else violation.message
    return Alternative(name, value, measured, note, is_device=True)


def best_alone(alternatives: tuple[Alternative, ...]) -> Alternative | None:
    """The device that runs everything soonest by prediction; None where none can."""
    alone = [row for row in alternatives if row.is_device and _is_finite(row.predicted)]
    return min(alone, key=lambda row: row.predicted or 0.0, default=None)


def devices_in_use(plan: Plan) -> list[str]:
    """Names of devices with at least one unit."""
    used = np.unique(plan.placement.device_of).tolist()
    return [plan.problem.cluster.device_names[device] for device in used]


def _is_finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)

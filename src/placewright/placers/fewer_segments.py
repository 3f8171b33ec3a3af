"""Placements that need fewer segments: for methods that do not count what a device may run."""

from __future__ import annotations

import math

import numpy as np

from placewright.core.arrays import IntArray
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.simulation.segments import Segment, segments_of

_ROUNDS = 16


def with_fewer_segments(
    problem: Problem, device_of: IntArray, order: IntArray | None = None
) -> tuple[IntArray, IntArray]:
    """Move segments off devices that would run too many.

    Each round cuts the placement into segments. A device with k segments too many gives k away:
    those whose units take the fewest additional seconds on their best other device. Colocation
    classes stay whole, and no class returns to a device that it left.

    Args:
        problem: of execution model `event`.
        device_of: device of each unit, shape (n_units,).
        order: topological order of all units; None takes the one of the graph.

    Returns:
        Devices, shape (n_units,), and the order whose segments were counted. Devices may still have
        too many segments if pins or support hold their units.
    """
    device_of = np.array(device_of, dtype=np.int64)
    order = problem.unit_graph.topological_order if order is None else order
    may_run = np.array(problem.allowed_by_class)  # (n_classes, n_devices)
    for _ in range(_ROUNDS):
        segments = segments_of(problem, Placement.of(device_of, order), order)
        moved = False
        for device, spec in enumerate(problem.cluster.devices):
            mine = [segment for segment in segments if segment.device == device]
            excess = len(mine) - (spec.max_segments or len(mine))
            moves = [_cheapest_move(problem, segment, may_run) for segment in mine]
            cheapest = sorted((cost, at, target) for at, (cost, target) in enumerate(moves))
            for cost, at, target in cheapest[: max(0, excess)]:
                if math.isinf(cost):
                    break
                classes = np.unique(problem.colocation.group_of[list(mine[at].units)])
                device_of[np.isin(problem.colocation.group_of, classes)] = target
                may_run[classes, device] = False
                moved = True
        if not moved:
            break
    return device_of, order


def _cheapest_move(problem: Problem, segment: Segment, may_run: np.ndarray) -> tuple[float, int]:
    """Additional seconds of a segment's units on their best other device, and that device."""
    units = list(segment.units)
    classes = np.unique(problem.colocation.group_of[units])
    seconds = problem.costs.seconds[units].sum(axis=0)
    seconds = np.where(may_run[classes].all(axis=0), seconds, np.inf)
    seconds[segment.device] = np.inf
    best = int(seconds.argmin())
    here = float(problem.costs.seconds[units, segment.device].sum())
    return float(seconds[best]) - here, best

"""Placements to measure: random walks over the graph, and placements that keep all devices busy."""

from __future__ import annotations

import numpy as np

from placewright.core.arrays import IntArray
from placewright.core.problem import Problem

# Of successive placements: how rarely they change the device, or leave the earliest finish.
_STICKINESS = (0.97, 0.9, 0.8, 0.6)
_DEVIATIONS = (0.0, 0.1, 0.2, 0.4)


def drawn_placement(problem: Problem, rng: np.random.Generator, number: int) -> IntArray:
    """Draw the placement number `number` of a calibration, shape (n_units,)."""
    turn = number // 2
    if number % 2:
        deviation = _DEVIATIONS[turn % len(_DEVIATIONS)]
        return earliest_finish_placement(problem, rng, deviation)
    return wandering_placement(problem, rng, _STICKINESS[turn % len(_STICKINESS)])


def wandering_placement(problem: Problem, rng: np.random.Generator, stickiness: float) -> IntArray:
    """Draw a placement in which units tend to stay with their inputs, shape (n_units,).

    Args:
        problem: whose units go only to devices that are allowed.
        stickiness: probability to follow one of the predecessors, 0 to 1.
    """
    graph, allowed = problem.unit_graph, problem.allowed
    device_of = np.zeros(problem.n_units, dtype=np.int64)
    chosen = np.full(problem.colocation.n_groups, -1, dtype=np.int64)
    for unit in graph.topological_order.tolist():
        group = int(problem.colocation.group_of[unit])
        makers = graph.predecessors.row(unit)
        device = int(rng.choice(np.flatnonzero(problem.allowed_by_class[group])))
        if len(makers) and rng.random() < stickiness:
            followed = int(device_of[rng.choice(makers)])
            device = followed if allowed[unit, followed] else device
        if chosen[group] < 0:
            chosen[group] = device
        device_of[unit] = chosen[group]
    return device_of


def earliest_finish_placement(
    problem: Problem, rng: np.random.Generator, deviation: float
) -> IntArray:
    """Draw a placement that keeps all devices busy, shape (n_units,).

    Units in topological order go to the device that would finish them first, without transfers.

    Args:
        problem: whose units go only to devices that are allowed.
        deviation: probability of a random device instead, 0 to 1.
    """
    graph, seconds = problem.unit_graph, problem.costs.seconds
    device_of = np.zeros(problem.n_units, dtype=np.int64)
    chosen = np.full(problem.colocation.n_groups, -1, dtype=np.int64)
    end, free = np.zeros(problem.n_units), np.zeros(problem.n_devices)
    for unit in graph.topological_order.tolist():
        group = int(problem.colocation.group_of[unit])
        ready = float(end[graph.predecessors.row(unit)].max(initial=0.0))
        if chosen[group] < 0:
            allowed = np.flatnonzero(problem.allowed_by_class[group])
            finish = np.maximum(free[allowed], ready) + seconds[unit, allowed]
            chosen[group] = allowed[np.argmin(finish)]
            if rng.random() < deviation:
                chosen[group] = rng.choice(allowed)
        device = device_of[unit] = chosen[group]
        end[unit] = free[device] = max(float(free[device]), ready) + seconds[unit, device]
    return device_of

"""Orders next to an order: one unit earlier or later, producers still first."""

from __future__ import annotations

import numpy as np

from placewright.core.arrays import FloatArray, IntArray
from placewright.core.problem import Problem
from placewright.placers.list_scheduling.ranks import ready_by_rank


def order_by_priority(problem: Problem, priority: FloatArray) -> IntArray:
    """The topological order that always takes the ready unit of highest priority.

    Args:
        problem: what is placed.
        priority: shape (n_units,).
    """
    return ready_by_rank(problem, np.asarray(priority, dtype=np.float64))


def shifted(problem: Problem, order: IntArray, rng: np.random.Generator) -> IntArray:
    """Move one random unit to a random place between its last producer and first consumer."""
    graph = problem.unit_graph
    position = np.empty(len(order), dtype=np.int64)
    position[order] = np.arange(len(order))
    unit = int(rng.integers(len(order)))
    before, after = graph.predecessors.row(unit), graph.successors.row(unit)
    low = int(position[before].max(initial=-1)) + 1
    high = int(position[after].min(initial=len(order))) - 1
    rest = np.delete(order, position[unit])
    return np.insert(rest, int(rng.integers(low, high + 1)), unit)

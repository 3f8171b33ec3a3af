"""Articulation units: every other unit is an ancestor or a descendant.

Nothing after such a unit starts before it ends, in any placement and order, so that a schedule is a
sequence of parts: what lies between two articulation units runs between their ends.
"""

from __future__ import annotations

import numpy as np

from placewright.core.arrays import Csr, IntArray
from placewright.core.problem import Problem
from placewright.simulation.compiled import compiled


def articulation_units(problem: Problem) -> IntArray:
    """Units that every other unit is an ancestor or a descendant of, in topological order.

    Proof of the test: take ready units out one by one. Where `a` is the only ready one, each unit
    that is left has an ancestor that is ready, so that all are descendants of `a`. Backwards the
    same with ancestors. Where both hold and the two numbers add up to all other units, each other
    unit is one of them. And where each other unit is one of them, `a` is the only ready one once
    its ancestors are taken out, both ways.

    Returns:
        Shape (n_articulation_units,).
    """
    graph = problem.unit_graph
    after = _left_when_alone(graph.successors, graph.predecessors)
    before = _left_when_alone(graph.predecessors, graph.successors)
    is_one = (after >= 0) & (before >= 0) & (after + before == problem.n_units - 1)
    order = graph.topological_order
    return np.asarray(order[is_one[order]], dtype=np.int64)


def _left_when_alone(successors: Csr, predecessors: Csr) -> IntArray:
    waiting = np.diff(predecessors.indptr)
    return np.asarray(_count_left(successors.indptr, successors.indices, waiting))


@compiled
def _count_left(indptr: IntArray, successors: IntArray, waiting: IntArray) -> IntArray:
    """How many units are left after each that was the only ready one; -1 for the others."""
    n_units = len(waiting)
    left, ready = np.full(n_units, -1, np.int64), np.empty(n_units, np.int64)
    done = n_ready = 0
    for unit in range(n_units):
        if waiting[unit] == 0:
            ready[n_ready] = unit
            n_ready += 1
    while done < n_ready:
        unit = ready[done]
        done += 1
        if done == n_ready:
            left[unit] = n_units - done
        for at in range(indptr[unit], indptr[unit + 1]):
            other = successors[at]
            waiting[other] -= 1
            if waiting[other] == 0:
                ready[n_ready] = other
                n_ready += 1
    return left

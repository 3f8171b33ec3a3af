"""The best value of a small problem, by trying every placement in every order."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np

from placewright.core.arrays import IntArray
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.errors import InputError
from placewright.simulation.model import Simulator

_MOST_UNITS = 8


def brute_force(problem: Problem) -> float:
    """Least value over placements and, under `event`, topological orders; inf when none is legal.

    Raises:
        InputError: the problem has more than eight units.
    """
    if problem.n_units > _MOST_UNITS:
        raise InputError(
            f"brute force takes at most {_MOST_UNITS} units, got {problem.n_units}; coarsen first"
        )
    simulator = Simulator(problem)
    is_event = problem.execution_model == "event"
    orders = list(topological_orders(problem)) if is_event else []
    best = math.inf
    for device_of in legal_placements(problem):
        best = min(best, simulator.value(Placement.of(device_of)))
        for order in orders:
            best = min(best, simulator.value(Placement.of(device_of, order)))
    return best


def legal_placements(problem: Problem) -> Iterator[IntArray]:
    """All placements that keep support, pins and colocation."""
    choices = [np.flatnonzero(row).tolist() for row in problem.allowed_by_class]
    for chosen in itertools.product(*choices):
        yield problem.colocation.expand(chosen)


def topological_orders(problem: Problem) -> Iterator[IntArray]:
    """All topological orders of the units."""
    graph = problem.unit_graph
    missing = np.diff(graph.predecessors.indptr).copy()

    def extend(prefix: list[int]) -> Iterator[IntArray]:
        if len(prefix) == problem.n_units:
            yield np.array(prefix, dtype=np.int64)
            return
        for unit in range(problem.n_units):
            if missing[unit] == 0 and unit not in prefix:
                after = graph.successors.row(unit)
                missing[after] -= 1
                yield from extend([*prefix, unit])
                missing[after] += 1

    yield from extend([])

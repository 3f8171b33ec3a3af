"""A first incumbent, for which no kernel but the simulator's is compiled."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from placewright.core.arrays import IntArray
from placewright.core.problem import Problem
from placewright.placers.baselines.even_split import contiguous_split
from placewright.simulation.evaluator import Evaluator


def evaluate_first(problem: Problem, evaluator: Evaluator) -> None:
    """Value even splits and single devices until one fits, if there is no incumbent yet."""
    if evaluator.best is not None:
        return
    for wish in _wishes(problem):
        if evaluator.is_spent or math.isfinite(evaluator.evaluate(_supported(problem, wish))):
            return


def _wishes(problem: Problem) -> Iterator[IntArray]:
    """Yield the fastest device, splits by speed and by memory, then every other device."""
    seconds = np.where(problem.allowed, problem.costs.seconds, 0.0)
    total = seconds.sum(axis=0) + 1e300 * (~problem.allowed).sum(axis=0)
    fastest_first = np.argsort(total, kind="stable").tolist()
    yield np.full(problem.n_units, fastest_first[0], dtype=np.int64)
    yield contiguous_split(problem, "speed")
    yield contiguous_split(problem, "memory")
    for device in fastest_first[1:]:
        yield np.full(problem.n_units, device, dtype=np.int64)


def _supported(problem: Problem, wish: IntArray) -> IntArray:
    """Give each class its first unit's wish, or its first device if the wish is not allowed."""
    classes, allowed = problem.colocation, problem.allowed_by_class
    first = np.empty(classes.n_groups, dtype=np.int64)
    first[classes.group_of[::-1]] = np.arange(problem.n_units)[::-1]
    device_of_class = wish[first]
    may_stay = allowed[np.arange(classes.n_groups), device_of_class]
    device_of_class = np.where(may_stay, device_of_class, np.argmax(allowed, axis=1))
    return np.asarray(device_of_class[classes.group_of], dtype=np.int64)

"""The placements that use one device as far as constraints allow: a fair start for every search."""

from __future__ import annotations

import numpy as np

from placewright.core.arrays import IntArray
from placewright.core.problem import Problem
from placewright.simulation.evaluator import Evaluator


def homogeneous_placements(problem: Problem) -> IntArray:
    """One placement per device, shape (n_devices, n_units).

    A colocation class that the device may not hold goes to the first device that may.
    """
    allowed = problem.allowed_by_class
    fallback = allowed.argmax(axis=1)  # (classes,)
    chosen = np.where(allowed, np.arange(problem.n_devices), fallback[:, None]).T
    placements: IntArray = chosen[:, problem.colocation.group_of]
    return placements


def evaluate_homogeneous(problem: Problem, evaluator: Evaluator) -> None:
    """Evaluate them; they are queries like any other, and no policy learns from them.

    Raises:
        BudgetSpent: no query is left.
    """
    evaluator.evaluate_many(homogeneous_placements(problem))

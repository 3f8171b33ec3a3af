"""Ending a search: budget used up, or interrupted by the user, the incumbent is the answer."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.errors import BudgetSpent
from placewright.simulation.evaluator import Evaluator

P = TypeVar("P")
Place = Callable[[P, Problem, Evaluator, np.random.Generator], Solution]


def anytime(place: Place[P]) -> Place[P]:
    """Decorate a `place` method: `BudgetSpent` and Ctrl-C return the evaluator's incumbent."""

    @functools.wraps(place)
    def guarded(
        self: P, problem: Problem, evaluator: Evaluator, rng: np.random.Generator
    ) -> Solution:
        try:
            return place(self, problem, evaluator, rng)
        except BudgetSpent:
            return evaluator.solution()
        except KeyboardInterrupt:
            return evaluator.solution(message="interrupted")

    return guarded

"""Around every search: nothing is sought where nothing can be, and the incumbent is never lost."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from placewright.core.problem import Problem
from placewright.core.solution import Solution, Stop
from placewright.errors import BudgetSpent
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.feasibility import prove_infeasible

P = TypeVar("P")
FOUND_NOTHING = "no placement that keeps every constraint was found, which proves nothing"
Place = Callable[[P, Problem, Evaluator, np.random.Generator], Solution]


def anytime(place: Place[P]) -> Place[P]:
    """Decorate a `place` method.

    Where no placement can exist, the solution is `infeasible` with the proof and the method is not
    called. `BudgetSpent` and Ctrl-C return the evaluator's incumbent.
    """

    @functools.wraps(place)
    def guarded(
        self: P, problem: Problem, evaluator: Evaluator, rng: np.random.Generator
    ) -> Solution:
        if proof := prove_infeasible(problem):
            return evaluator.solution("infeasible", proof)
        try:
            return place(self, problem, evaluator, rng)
        except BudgetSpent:
            return evaluator.solution()
        except KeyboardInterrupt:
            return evaluator.solution(message="interrupted", stop=Stop.INTERRUPTED)

    return guarded


def pass_interrupt_on(found: Solution) -> Solution:
    """After a method within another one, or one of several runs: Ctrl-C ends the whole, too.

    Returns:
        The solution, where the method was not interrupted.

    Raises:
        KeyboardInterrupt: it was, so that what it found is no result of its budget.
    """
    if found.stop is Stop.INTERRUPTED:
        raise KeyboardInterrupt
    return found


def found_none(what: str) -> str:
    """The message of an exact method whose solver ended without a solution.

    It goes with the status `unknown`: nobody can check the solver's word as they can check the
    proofs that `infeasible` rests on.
    """
    return f"the solver says that no {what} exists, but there is no short proof of it"

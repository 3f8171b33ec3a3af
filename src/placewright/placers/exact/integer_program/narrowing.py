"""A value between what is proven and what is known, by asking for placements up to a limit.

Each question is one constraint program with a constant limit (see `limited`): the answer is a
better placement, a proof that the bound is at least the limit, or nothing within the question's
time. Then a lower limit is asked, which is easier to prove; when what can be had in so much time is
had, questions may take twice as long.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from placewright.core.arrays import FloatArray, IntArray
from placewright.placers.exact.integer_program.limited import LimitedProgram
from placewright.placers.exact.integer_program.program import IntegerProgram
from placewright.simulation.evaluator import Evaluator

_TICKS = 1e8  # that the first known value is divided into
_JUST_BELOW = 1.0 - 1e-6
_NEAR = 0.1  # what is proven and what is known: then a limit just below is asked first
_WORTH = 0.01  # of the bound: less than so much more is not worth a question
_FIRST_SHARE = 0.05  # of all the time, for the first question


class Narrowing:
    """Questions about one problem.

    Args:
        program: whose objective no placement undercuts (see `limited` for what it may hold).
        decode: device of each unit in a solution's columns.
        most: no solution is worth more, in seconds, >= 0.
        evaluator: values what is found; bounds are offered to it.
        solver: makes a solver that may take a share of the time that the caller has.

    Attributes:
        is_infeasible: proven that the program has no solution at all.
    """

    def __init__(
        self,
        program: IntegerProgram,
        decode: Callable[[FloatArray], IntArray],
        most: float,
        evaluator: Evaluator,
        solver: Callable[[float], Any],
    ) -> None:
        self._decode, self._evaluator, self._solver = decode, evaluator, solver
        self._most = min(most, evaluator.best_value)
        ticks = _TICKS / self._most if self._most > 0 else 1.0
        self._program = LimitedProgram(program, ticks)
        self.is_infeasible = False

    def run(self) -> None:
        """Ask until bound and value meet, nothing fits, or the budget ends."""
        evaluator, share, reach = self._evaluator, _FIRST_SHARE, math.inf
        used, repeats = 0.0, math.isinf(evaluator.remaining_seconds)
        while not (evaluator.is_spent or evaluator.is_closed or self.is_infeasible):
            low = evaluator.lower_bound
            high = min(evaluator.best_value * _JUST_BELOW, self._most)
            # Where nothing takes time and nothing is known, 0 is the limit to ask for.
            is_met = low >= high and math.isfinite(evaluator.best_value)
            if is_met or (repeats and used >= 1.0):
                return
            if min(reach, high) - low < _WORTH * low and reach < math.inf:
                share, reach = 2.0 * share, math.inf
            is_near = high - low <= _NEAR * high
            limit = high if reach == math.inf and is_near else 0.5 * (low + min(reach, high))
            used += share
            if not self._asked(limit, share):
                reach = limit
            elif evaluator.best_value <= limit:
                reach = math.inf

    def _asked(self, limit: float, share: float) -> bool:
        """One question; True when it was answered."""
        evaluator = self._evaluator

        def is_over() -> bool:
            return evaluator.is_spent or evaluator.best_value <= limit

        answer = self._program.ask(limit, self._solver(share), is_over)
        if answer.is_infeasible:
            self.is_infeasible = math.isinf(evaluator.best_value) and limit >= self._most
            if not self.is_infeasible:
                evaluator.offer_bound(limit, "constraint program")
            return True
        if answer.columns is None or evaluator.is_spent:
            return False
        before = evaluator.best_value
        evaluator.evaluate(self._decode(answer.columns))
        return evaluator.best_value < before

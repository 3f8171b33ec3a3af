"""Narrow the gap between bound and incumbent by searching for placements below a limit.

Each search is an integer program with a constant limit on its objective, which CP-SAT solves
(OR-tools, L. Perron, F. Didier). It ends with a better placement, with a proof that the bound is at
least the limit, or without a result when its time is over. The next search has a lower limit,
which is easier to prove. Searches may take twice as long once no shorter ones are left.

With a constant limit, the rows that bound the objective are knapsacks: a constraint solver sees
which columns cannot be 1 together, whereas the linear relaxation mixes halves of them.

CP-SAT works on integers. Coefficients are rounded so that no solution is lost: a proof of
infeasibility stays valid, and a solution may exceed the limit by the rounding. One more tick in
each row outweighs the rounding of products.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from placewright.core.arrays import FloatArray, IntArray
from placewright.placers.exact.integer_program.program import IntegerProgram
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.interruptible import interruptible

_TICKS = 1e8  # per value of the incumbent
_COARSE = 0.5  # of the value that ticks are made for: below it they are made anew
# 200 ticks, since the rounding of a row reaches a tick for each of its columns. A bound just below
# the incumbent proves it (`evaluator.CLOSED`).
_JUST_BELOW = 1.0 - 2e-6
_NEAR = 0.1  # gap below which the first limit is just below the incumbent
_WORTH = 0.01  # least improvement of the bound, relative, that is worth a search
_FIRST_SHARE = 0.05  # of all the time, for the first search
_LARGEST = 2.0**40  # sum of coefficients of 0 and 1 in a row
_MOST = 2.0**52  # largest sum of integers that is exact in a double and allowed by CP-SAT


class Narrowing:
    """Searches below a series of limits; each search may improve the bound or the incumbent.

    Args:
        program: no placement undercuts its objective, and no time of a best solution exceeds that
            solution's value (see `LimitedProgram` for its form).
        decode: device of each unit in a solution's columns.
        most: upper bound on the value of every solution, in seconds, >= 0.
        solver: makes a solver that may use a share of the caller's time.

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
        self._source = program
        self._in_ticks_of(min(most, evaluator.best_value))
        self.is_infeasible = False

    def _in_ticks_of(self, most: float) -> None:
        """Round the program anew; `most` as of the constructor."""
        self._most = most
        self._program = LimitedProgram(self._source, _TICKS / most if most > 0 else 1.0, most)

    def run(self) -> None:
        """Search until bound and value meet, nothing fits, or the budget ends."""
        evaluator, share, reach = self._evaluator, _FIRST_SHARE, math.inf
        used, repeats = 0.0, math.isinf(evaluator.remaining_seconds)
        while not (evaluator.is_spent or evaluator.is_closed or self.is_infeasible):
            low = evaluator.lower_bound
            high = min(evaluator.best_value * _JUST_BELOW, self._most)
            # If nothing takes time and there is no incumbent, the limit is 0.
            is_met = low >= high and math.isfinite(evaluator.best_value)
            if is_met or (repeats and used >= 1.0):
                return
            if min(reach, high) - low < _WORTH * low and reach < math.inf:
                share, reach = 2.0 * share, math.inf
            is_near = high - low <= _NEAR * high
            limit = high if reach == math.inf and is_near else 0.5 * (low + min(reach, high))
            used += share
            if evaluator.best_value < _COARSE * self._most:
                self._in_ticks_of(evaluator.best_value)
            if not self._improved_below(limit, share):
                reach = limit
            elif evaluator.best_value <= limit:
                reach = math.inf

    def _improved_below(self, limit: float, share: float) -> bool:
        """Search below one limit; True if bound or incumbent improved."""
        evaluator = self._evaluator

        def is_over() -> bool:
            return evaluator.is_spent or evaluator.best_value <= limit

        found = self._program.search_below(limit, self._solver(share), is_over)
        if found.is_infeasible:
            self.is_infeasible = math.isinf(evaluator.best_value) and limit >= self._most
            if not self.is_infeasible:
                evaluator.offer_bound(limit, "constraint program")
            return True
        if found.columns is None or evaluator.is_spent:
            return False
        before = evaluator.best_value
        evaluator.evaluate(self._decode(found.columns))
        return evaluator.best_value < before


@dataclass(frozen=True, eq=False)
class LimitAnswer:
    """Result of a search below a limit."""

    columns: FloatArray | None  # a solution, shape (n_columns,); None without one
    is_infeasible: bool  # proven that there is none up to the limit


class LimitedProgram:
    """A program whose objective has a limit instead of being minimised.

    Columns with a finite upper bound must be 0 or 1 in some best solution. The others are times:
    they stand with coefficient 1 or -1 in rows that have only a lower bound, and with coefficients
    > 0 in rows that have only an upper one. The objective is a sum of times, each with cost 1.

    Args:
        ticks: whole numbers per unit of time, > 0.
        most: upper bound on the times of some best solution, and on all limits.
    """

    def __init__(self, program: IntegerProgram, ticks: float, most: float) -> None:
        from ortools.sat.python import cp_model

        self._ticks = ticks
        self._free = ~np.isfinite(program.upper)
        longest = math.floor(min(most * ticks + 1.0, _MOST))
        # of each column in whole numbers, shape (n_columns,)
        self._largest = np.where(self._free, float(longest), 1.0)
        self._summed = np.flatnonzero(program.cost)
        assert (program.cost[self._summed] == 1.0).all()
        assert self._free[self._summed].all()
        self._model = cp_model.CpModel()
        self._columns: list[Any] = [
            self._model.new_int_var(0, int(largest), "") for largest in self._largest.tolist()
        ]
        rows = program.rows
        for row in range(len(rows.low)):
            at = slice(rows.starts[row], rows.starts[row + 1])
            columns = np.array(rows.columns[at], dtype=np.int64)
            self._add(columns, np.array(rows.values[at]), rows.low[row], rows.high[row])

    def search_below(self, limit: float, solver: Any, is_over: Callable[[], bool]) -> LimitAnswer:
        """Look for a solution whose objective is at most `limit`.

        Args:
            limit: >= 0.
            solver: a `CpSolver` with its limits and seed.
            is_over: asked ten times a second whether to end soon.
        """
        from ortools.sat.python import cp_model

        model = self._model.clone()
        total = math.floor(min(limit * self._ticks + 1.0, _MOST))
        indices = [self._columns[column].index for column in self._summed.tolist()]
        model.add(sum(model.get_int_var_from_proto_index(index) for index in indices) <= total)
        solver.parameters.catch_sigint_signal = False  # the interpreter handles Ctrl-C
        status = interruptible(
            lambda: solver.solve(model), stop=solver.stop_search, is_over=is_over
        )
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return LimitAnswer(None, status == cp_model.INFEASIBLE)
        columns = np.array([solver.value(column) for column in self._columns], dtype=np.float64)
        columns[self._free] /= self._ticks
        return LimitAnswer(columns, False)

    def _add(self, columns: IntArray, values: FloatArray, low: float, high: float) -> None:
        """Add a row: unchanged if it counts whole columns, else loosened, in ticks."""
        ends = [end for end in (low, high) if math.isfinite(end)]
        whole = bool((np.abs(values) == 1.0).all()) and all(end.is_integer() for end in ends)
        if whole and not self._free[columns].any():
            self._bounded(columns, values, low, high)
            return
        if math.isfinite(low):
            scale = self._scale(columns, values)
            loose, low = self._loosened(columns, values, scale), low * scale - 1.0
            # A coefficient of this size forbids its column; larger ones might exceed all integers.
            most = float(np.maximum(loose, 0.0) @ self._largest[columns])
            enough = math.ceil(max(0.0, most - low + 2.0))
            self._bounded(columns, np.maximum(loose, -enough), low, math.inf)
        if math.isfinite(high):
            free = self._free[columns]
            assert (values[free] > 0.0).all()
            values = np.where(free, values / self._ticks, values)
            if np.maximum(values, 0.0) @ self._largest[columns] <= high:
                return  # every solution keeps it, and its scale might exceed all integers
            reach = float(np.abs(values) @ self._largest[columns])
            scale = (_MOST if free.any() else _LARGEST) / reach
            self._bounded(columns, np.floor(values * scale), -math.inf, high * scale + 1.0)

    def _scale(self, columns: IntArray, values: FloatArray) -> float:
        """Ticks if the row bounds times, else a scale of its own."""
        if self._free[columns].any():
            return self._ticks
        return float(_LARGEST / max(np.abs(values).sum(), 1e-300))

    def _loosened(self, columns: IntArray, values: FloatArray, scale: float) -> FloatArray:
        """Coefficients of a row `>= low`, rounded up, except those of times."""
        free = self._free[columns]
        assert (np.abs(values[free]) == 1.0).all()
        return np.where(free, values, np.ceil(values * scale))

    def _bounded(self, columns: IntArray, values: FloatArray, low: float, high: float) -> None:
        terms = [
            self._columns[column] * int(value)
            for column, value in zip(columns.tolist(), values.tolist(), strict=True)
            if value != 0.0
        ]
        if math.isfinite(low):
            self._model.add(sum(terms) >= math.floor(low))
        if math.isfinite(high):
            self._model.add(sum(terms) <= math.ceil(high))

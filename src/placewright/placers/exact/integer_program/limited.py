"""Whether an integer program has a solution up to a limit, asked of CP-SAT.

With the limit a constant, the rows that the objective bounds are knapsacks: a solver of constraints
sees which columns cannot be 1 together, where the linear relaxation mixes halves of them. OR-tools'
CP-SAT (L. Perron, F. Didier) answers.

The solver counts in whole numbers. Coefficients are rounded so that no solution is lost: what it
proves to be infeasible is so; what it finds may be above the limit by what was rounded. A tick more
in each row outweighs the rounding of products.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from placewright.core.arrays import FloatArray, IntArray
from placewright.placers.exact.integer_program.program import IntegerProgram
from placewright.simulation.interruptible import interruptible

_MOST = 2.0**52  # a sum of whole numbers up to here is exact, and CP-SAT takes it


@dataclass(frozen=True, eq=False)
class LimitAnswer:
    """What the solver said.

    Attributes:
        columns: a solution, shape (n_columns,); None without one.
        is_infeasible: proven that there is none up to the limit.
    """

    columns: FloatArray | None
    is_infeasible: bool


class LimitedProgram:
    """A program whose objective is given a limit instead of being minimised.

    Columns with a finite upper bound must be 0 or 1 in some best solution. The others are times:
    they stand with coefficient 1 or -1 in rows that have only a lower bound. The objective is a sum
    of times, each with cost 1, that never stand with -1.

    Args:
        program: see above.
        ticks: whole numbers per unit of time, > 0.
    """

    def __init__(self, program: IntegerProgram, ticks: float) -> None:
        from ortools.sat.python import cp_model

        self._ticks = ticks
        self._free = ~np.isfinite(program.upper)
        self._summed = np.flatnonzero(program.cost)
        assert (program.cost[self._summed] == 1.0).all()
        assert self._free[self._summed].all()
        self._model = cp_model.CpModel()
        most = int(_MOST)
        self._columns: list[Any] = [
            self._model.new_int_var(0, most, "") if free else self._model.new_bool_var("")
            for free in self._free.tolist()
        ]
        rows = program.rows
        for row in range(len(rows.low)):
            at = slice(rows.starts[row], rows.starts[row + 1])
            columns = np.array(rows.columns[at], dtype=np.int64)
            self._add(columns, np.array(rows.values[at]), rows.low[row], rows.high[row])

    def ask(self, limit: float, solver: Any, is_over: Callable[[], bool]) -> LimitAnswer:
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
        found = np.array([solver.value(column) for column in self._columns], dtype=np.float64)
        found[self._free] /= self._ticks
        return LimitAnswer(found, False)

    def _add(self, columns: IntArray, values: FloatArray, low: float, high: float) -> None:
        """A row: as it is where it counts whole columns, else in ticks, loosened."""
        whole = bool((np.abs(values) == 1.0).all())
        if whole and not self._free[columns].any():
            self._bounded(columns, values, low, high)
            return
        if math.isfinite(low):
            scale = self._scale(columns, values)
            loose = self._loosened(columns, values, scale)
            self._bounded(columns, loose, low * scale - 1.0, math.inf)
        if math.isfinite(high):
            assert not self._free[columns].any()
            scale = self._scale(columns, values)
            loose = -self._loosened(columns, -values, scale)
            self._bounded(columns, loose, -math.inf, high * scale + 1.0)

    def _scale(self, columns: IntArray, values: FloatArray) -> float:
        """Ticks where the row bounds times; others get a scale of their own."""
        if self._free[columns].any():
            return self._ticks
        return float(2.0**40 / max(np.abs(values).sum(), 1e-300))

    def _loosened(self, columns: IntArray, values: FloatArray, scale: float) -> FloatArray:
        """Coefficients of a row `>= low`, rounded up; those of times are kept."""
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

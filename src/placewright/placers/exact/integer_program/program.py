"""A mixed-integer program as rows and columns, and its solution with HiGHS."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from placewright.core.arrays import BoolArray, FloatArray
from placewright.errors import MissingExtraError
from placewright.simulation.interruptible import interruptible

_NOTHING = 1e-11  # of the largest cost: a bound below it is the solver's rounding of 0


@dataclass
class Rows:
    """Constraints low <= sum of coefficient * column <= high, collected one at a time."""

    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    starts: list[int] = field(default_factory=lambda: [0])
    columns: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def add(self, low: float, high: float, columns: list[int], values: list[float]) -> None:
        """Add one constraint; a column that is named twice counts with the sum of its values.

        HiGHS refuses the whole matrix for one row that names a column twice, and then never ends.
        """
        if len(set(columns)) < len(columns):
            merged: dict[int, float] = {}
            for column, value in zip(columns, values, strict=True):
                merged[column] = merged.get(column, 0.0) + value
            columns, values = list(merged), list(merged.values())
        self.low.append(low)
        self.high.append(high)
        self.columns += columns
        self.values += values
        self.starts.append(len(self.columns))


@dataclass(frozen=True, eq=False)
class IntegerProgram:
    """Minimise cost . columns under `rows` with columns in [0, upper]."""

    rows: Rows  # the constraints
    upper: FloatArray  # upper bound of each column, shape (n_columns,); inf is none
    is_integer: BoolArray  # integrality of each column, shape (n_columns,)
    cost: FloatArray  # objective coefficients, shape (n_columns,)

    @property
    def n_columns(self) -> int:
        """Number of columns."""
        return len(self.upper)


@dataclass(frozen=True, eq=False)
class MipResult:
    """The result of a run of the solver."""

    columns: FloatArray | None  # best solution, None without one
    lower_bound: float  # proven; -inf without one
    is_infeasible: bool  # proven to have no solution
    is_out_of_time: bool = False  # the limit in seconds ended it


def solve(
    program: IntegerProgram,
    *,
    start: FloatArray | None = None,
    seconds: float = math.inf,
    max_nodes: int | None = None,
    presolve: bool = True,
    is_over: Callable[[], bool] = lambda: False,
) -> MipResult:
    """Solve a program within limits.

    Args:
        start: a solution to begin with; integer columns suffice (others nan), None for none.
        seconds: wall-clock limit; inf is none.
        max_nodes: limit of branch-and-bound nodes where there is none of seconds: on one thread, so
            that runs repeat.
        presolve: False skips it. HiGHS reads the clock only between rounds of presolve.
        is_over: asked ten times a second whether to end soon, as where another limit is met.

    Raises:
        MissingExtraError: highspy is not installed.
    """
    try:
        import highspy
    except ImportError:
        raise MissingExtraError("highspy", "all", "an integer program") from None
    # All solvers of a process share threads: HiGHS refuses another count without this.
    highspy.Highs.resetGlobalScheduler(True)
    solver = _silent_solver(highspy)
    repeats = max_nodes is not None and math.isinf(seconds)
    solver.setOptionValue("threads", 1 if repeats else 2)
    solver.setOptionValue("random_seed", 0)
    solver.setOptionValue("mip_rel_gap", 1e-6)
    if math.isfinite(seconds):
        solver.setOptionValue("time_limit", max(0.1, seconds))
    if repeats:
        solver.setOptionValue("mip_max_nodes", max_nodes)
    if not presolve:
        solver.setOptionValue("presolve", "off")
    solver.passModel(_model(highspy, program))
    if start is not None:
        known = np.flatnonzero(np.isfinite(start)).astype(np.int32)
        solver.setSolution(len(known), known, start[known])
    solver.HandleUserInterrupt = True  # else `cancelSolve` has no effect
    interruptible(solver.run, stop=solver.cancelSolve, is_over=is_over)
    return _result(highspy, solver, program.cost)


def _silent_solver(highspy: Any) -> Any:
    """A new solver that prints nothing; HiGHS 1.16 prints its version when callbacks begin."""

    class Silent(highspy.Highs):  # type: ignore[misc]
        def enableCallbacks(self) -> None:
            self.silent()
            super().enableCallbacks()

    solver = Silent()
    solver.silent()
    return solver


def _model(highspy: Any, program: IntegerProgram) -> Any:
    model, rows = highspy.HighsLp(), program.rows
    model.num_col_, model.num_row_ = program.n_columns, len(rows.low)
    model.col_cost_ = program.cost
    model.col_lower_, model.col_upper_ = np.zeros(program.n_columns), program.upper
    model.row_lower_, model.row_upper_ = np.array(rows.low), np.array(rows.high)
    model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    model.a_matrix_.start_ = np.array(rows.starts, dtype=np.int32)
    model.a_matrix_.index_ = np.array(rows.columns, dtype=np.int32)
    model.a_matrix_.value_ = np.array(rows.values)
    kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
    model.integrality_ = [kinds[int(flag)] for flag in program.is_integer]
    return model


def _result(highspy: Any, solver: Any, cost: FloatArray) -> MipResult:
    info = solver.getInfo()
    bound = float(info.mip_dual_bound)
    if abs(bound) < _NOTHING * np.abs(cost).max(initial=0.0):
        bound = 0.0
    status = solver.getModelStatus()
    infeasible = status == highspy.HighsModelStatus.kInfeasible
    is_feasible = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    columns = np.array(solver.getSolution().col_value) if is_feasible else None
    ended = highspy.HighsModelStatus
    out_of_time = status in (ended.kTimeLimit, ended.kInterrupt, ended.kHighsInterrupt)
    return MipResult(columns, bound, infeasible, out_of_time)

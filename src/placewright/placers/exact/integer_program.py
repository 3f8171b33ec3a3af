"""A mixed-integer program as rows and columns, and its solution with HiGHS.

Narrow the gap between bound and incumbent by searching for placements below a limit.

Each search is an integer program with a constant limit on its objective, which CP-SAT solves
(OR-tools, L. Perron, F. Didier). It ends with a better placement, with a proof that the bound is at
least the limit, or without a result when its time is over. The next search has a lower limit,
which is easier to prove. Searches may take twice as long once no shorter ones are left.

With a constant limit, the rows that bound the objective are knapsacks: a constraint solver sees
which columns cannot be 1 together, whereas the linear relaxation mixes halves of them.

CP-SAT works on integers. Coefficients are rounded so that no solution is lost: a proof of
infeasibility stays valid, and a solution may exceed the limit by the rounding. One more tick in
each row outweighs the rounding of products; rows with sums of many digits take more.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from placewright.core.arrays import BoolArray, Csr, FloatArray, IntArray
from placewright.errors import optional_library
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.interruptible import interruptible

_NOTHING = 1e-11  # of the largest cost: a bound below it is the solver's rounding of 0
# HiGHS leaves out what could undercut its incumbent by less than 1e-6, and then gives the
# incumbent's value as the bound.
_CUT_OFF = 2e-6


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

    def add_reach(self, reach: tuple[int, int], placed: tuple[int, int]) -> None:
        """Add the rows of an edge (v, w) for a contiguous part: z[w] <= z[v] and x[w] - x[v] + 1.

        Args:
            reach: columns z of v and w: the part can be reached from the node.
            placed: columns x of v and w: the node is in the part; -1 if it cannot be.
        """
        (before, after), (here, there) = reach, placed
        self.add(0.0, math.inf, [before, after], [1.0, -1.0])
        terms = [(column, value) for column, value in ((here, 1.0), (there, -1.0)) if column >= 0]
        columns, values = [column for column, _ in terms], [value for _, value in terms]
        self.add(-math.inf, 1.0, [after, *columns], [1.0, *values])


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


class ProgramBuilder:
    """Columns and rows of a program, collected one after the other."""

    def __init__(self) -> None:
        self.rows = Rows()
        self.upper: list[float] = []
        self.cost: list[float] = []
        self.is_integer: list[bool] = []

    def column(self, upper: float, cost: float = 0.0, *, is_integer: bool = False) -> int:
        """Add one column in [0, upper]."""
        self.upper.append(upper)
        self.cost.append(cost)
        self.is_integer.append(is_integer)
        return len(self.upper) - 1

    def columns(self, wanted: BoolArray, *, is_integer: bool = False) -> IntArray:
        """Add a column in [0, 1] for each True; -1 stands elsewhere."""
        numbers = np.full(wanted.shape, -1, dtype=np.int64)
        first = len(self.upper)
        for _ in range(int(np.count_nonzero(wanted))):
            self.column(1.0, is_integer=is_integer)
        numbers[wanted] = np.arange(first, len(self.upper))
        return numbers

    def any_of(self, columns: list[int]) -> int:
        """The column that is at least each of some, which may be the only one."""
        if len(columns) == 1:
            return columns[0]
        largest = self.column(1.0)
        for column in columns:
            self.rows.add(0.0, math.inf, [largest, column], [1.0, -1.0])
        return largest

    def kept(
        self, users: Csr, sizes: FloatArray, placed: IntArray
    ) -> tuple[list[int], list[float]]:
        """Columns and bytes of all weights that one device may keep, each once.

        Args:
            users: items that keep each weight.
            sizes: bytes of each weight.
            placed: column of each item on the device, -1 if it may not be there.
        """
        columns: list[int] = []
        values: list[float] = []
        for weight, size in enumerate(sizes.tolist()):
            keepers = placed[users.row(weight)]
            if (keepers >= 0).any():
                columns.append(self.any_of(keepers[keepers >= 0].tolist()))
                values.append(size)
        return columns, values

    def program(self) -> IntegerProgram:
        """The program of all columns and rows."""
        is_integer = np.array(self.is_integer, dtype=np.bool_)
        return IntegerProgram(self.rows, np.array(self.upper), is_integer, np.array(self.cost))


def scale_for(bound: float, incumbent: float, largest: float) -> float:
    """A factor on seconds that makes values of a program about 1000: its tolerances are absolute.

    Args:
        bound: a lower bound, >= 0.
        incumbent: value of a known solution; inf without one.
        largest: the largest finite entry of the program, for programs without both.
    """
    size = max(bound, incumbent / 1000.0 if math.isfinite(incumbent) else 0.0) or largest
    return 1000.0 / size if size > 0 else 1.0


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
    highspy = optional_library("highspy", "all", "an integer program")
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
    if solver.passModel(_model(highspy, program)) == highspy.HighsStatus.kError:
        return MipResult(None, -math.inf, False)  # a coefficient is too large
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
    bound -= _CUT_OFF
    if np.all(cost >= 0.0):  # and columns are
        bound = max(bound, 0.0)
    status = solver.getModelStatus()
    infeasible = status == highspy.HighsModelStatus.kInfeasible
    is_feasible = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    columns = np.array(solver.getSolution().col_value) if is_feasible else None
    ended = highspy.HighsModelStatus
    out_of_time = status in (ended.kTimeLimit, ended.kInterrupt, ended.kHighsInterrupt)
    return MipResult(columns, bound, infeasible, out_of_time)


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
_MOST_SUM = 2.0**61  # largest sum of integers that CP-SAT takes, with room for its own


Decode = Callable[[FloatArray], IntArray]  # the device of each unit in a solution's columns


class Narrowing:
    """Searches below a series of limits; each search may improve the bound or the incumbent.

    Args:
        made: the program for an upper bound on the values of interest, and how its solutions are
            read. No placement undercuts its objective, and no time of a best solution exceeds that
            solution's value (see `LimitedProgram` for its form).
        most: upper bound on the value of every solution, in seconds, >= 0.
        solver: makes a solver that may use a share of the caller's time.

    Attributes:
        is_infeasible: proven that the program has no solution at all.
    """

    def __init__(
        self,
        made: Callable[[float], tuple[IntegerProgram, Decode]],
        most: float,
        evaluator: Evaluator,
        solver: Callable[[float], Any],
    ) -> None:
        self._made, self._evaluator, self._solver = made, evaluator, solver
        self._in_ticks_of(min(most, evaluator.best_value))
        self.is_infeasible = False

    def _in_ticks_of(self, most: float) -> None:
        """Round the program anew; `most` as of the constructor."""
        self._most = most
        program, self._decode = self._made(most)
        self._program = LimitedProgram(program, _TICKS / most if most > 0 else 1.0, most)

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
            low -= math.floor(len(columns) * 2.0**-52 * (most + abs(low)))
            enough = math.ceil(max(0.0, most - low + 2.0))
            below = np.minimum(np.maximum(-loose, 0.0), enough) @ self._largest[columns]
            if most + max(enough, float(below)) > _MOST_SUM:
                return  # the solver refuses such sums; without the row, a proof stays valid
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

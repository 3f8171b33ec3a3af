"""Evaluation of placements within a budget: counts queries and keeps the incumbent."""

from __future__ import annotations

import copy
import functools
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from placewright.core.arrays import BoolArray, FloatArray, IntArray, frozen_floats
from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster, Device
from placewright.core.costs import CostTable
from placewright.core.execution_models import ExecutionModel, Subgraph, SubgraphIP
from placewright.core.placement import A_PLACEMENT, Placement, integers
from placewright.core.problem import Problem
from placewright.core.solution import Budget, HistoryPoint, Solution, Status, Stop, UpdatePoint
from placewright.errors import BudgetSpent, InputError
from placewright.simulation.legality import Shortage
from placewright.simulation.model import Simulator

CLOSED = 3e-6  # relative gap at which a value counts as proven: solvers round
# Placements, and units of them, that are simulated between two looks at the clock, at least.
_BETWEEN_LOOKS, _UNITS_BETWEEN_LOOKS = 64, 20_000
Measure = Callable[[Placement], float]


@dataclass
class _Known:
    """State that the evaluators of one search share; its `lock` is held while it changes."""

    best: Placement | None = None
    best_value: float = math.inf
    broken: Placement | None = None  # the last one that breaks a constraint, until one keeps all
    lower_bound: float = 0.0
    bound_method: str = ""
    bounded_by: set[str] = field(default_factory=set)
    evaluations: int = 0
    history: list[HistoryPoint] = field(default_factory=list)
    untimed: float = 0.0  # seconds that do not count
    untimed_core: float = 0.0  # processor seconds that do not count
    core_elsewhere: float = 0.0  # processor seconds of other processes
    is_stopped: bool = False
    lock: threading.RLock = field(default_factory=threading.RLock)


class Evaluator:
    """Values placements of one problem within one budget.

    Every query counts, intermediate ones included. The incumbent is the best placement ever
    evaluated. Placers let `BudgetSpent` end their search (see `placers.bases`).

    >>> evaluator = pw.Evaluator(pw.read_problem("problem.json"), pw.Budget(evaluations=2))
    >>> evaluator.evaluate([0, 0, 0, 0])
    6.0
    >>> evaluator.evaluate([0, 0, 1, 0])
    4.0
    >>> evaluator.solution().value
    4.0

    Args:
        problem: the problem to place.
        budget: the run ends when one of its limits is met.
        measure: seconds of a placement on real hardware; None simulates. Placements that the
            simulator finds infeasible are never measured.
        clock: seconds, monotonic.
        core_clock: processor seconds of this process.
        simulator: of the problem, where there is one already.

    Attributes:
        asked: queries of this evaluator alone, not of those beside it.
        own_best: the best value that this evaluator alone has seen; inf without one.
        memory: name of a placer -> where its last call with this evaluator ended, for placers that
            go on from there.
    """

    def __init__(
        self,
        problem: Problem,
        budget: Budget | None = None,
        *,
        measure: Measure | None = None,
        clock: Callable[[], float] = time.perf_counter,
        core_clock: Callable[[], float] = time.process_time,
        simulator: Simulator | None = None,
    ) -> None:
        self.problem = problem
        self.budget = budget or Budget()
        self.simulator = simulator or Simulator(problem)
        self._known = _Known()
        self.asked, self.own_best = 0, math.inf
        self.memory: dict[str, Any] = {}
        self.samples: list[float] = []  # values of a policy's own draws, in time order
        self.updates: list[UpdatePoint] = []  # of a policy, in time order
        self._measure = measure
        self._clock, self._core_clock = clock, core_clock
        compile_kernels(problem.execution_model)
        self._start, self._core_start = clock(), core_clock()

    @property
    def best(self) -> Placement | None:
        """The incumbent, None before there is an incumbent."""
        return self._known.best

    @property
    def best_value(self) -> float:
        """Value of the incumbent; inf without an incumbent."""
        return self._known.best_value

    @property
    def incumbent(self) -> tuple[Placement | None, float]:
        """The incumbent and its value, which another lane changes together."""
        with self._known.lock:
            return self._known.best, self._known.best_value

    @property
    def lower_bound(self) -> float:
        """The largest bound that was offered; 0 before that."""
        return self._known.lower_bound

    @property
    def bound_method(self) -> str:
        """Name of the method that proved the lower bound."""
        return self._known.bound_method

    @property
    def bounded_by(self) -> set[str]:
        """Names of all methods that have offered a bound."""
        return self._known.bounded_by

    @property
    def evaluations(self) -> int:
        """Queries so far."""
        return self._known.evaluations

    @property
    def history(self) -> list[HistoryPoint]:
        """Improvements of the incumbent, in time order."""
        return self._known.history

    @property
    def is_measured(self) -> bool:
        """True when values come from hardware."""
        return self._measure is not None

    @property
    def seconds(self) -> float:
        """Wall-clock seconds since the evaluator was made, but for those in `untimed`."""
        return self._clock() - self._start - self._known.untimed

    @property
    def remaining_evaluations(self) -> float:
        """Queries left; inf without a limit."""
        limit = self.budget.evaluations
        return math.inf if limit is None else limit - self.evaluations

    @property
    def core_seconds(self) -> float:
        """Processor seconds since the evaluator was made, but for those in `untimed`.

        User and system time of all threads of this process, whatever they do: threads of solvers
        and kernels, and also a search beside this one; and that of turns in other processes.
        """
        here = self._core_clock() - self._core_start - self._known.untimed_core
        return here + self._known.core_elsewhere

    @property
    def remaining_seconds(self) -> float:
        """Seconds left for work on one core, by both clocks; inf without a limit of either."""
        return self.remaining_seconds_beside(0.0)

    def remaining_seconds_beside(self, core_seconds: float) -> float:
        """`remaining_seconds` if others may still use so many processor seconds."""
        return min(self._wall_left, self._core_left - core_seconds)

    @property
    def _wall_left(self) -> float:
        limit = self.budget.seconds
        return math.inf if limit is None else limit - self.seconds

    @property
    def _core_left(self) -> float:
        limit = self.budget.core_seconds
        return math.inf if limit is None else limit - self.core_seconds

    @property
    def is_spent(self) -> bool:
        """True when a further query would raise `BudgetSpent`."""
        if self._known.is_stopped or self.remaining_evaluations < 1:
            return True
        return self.remaining_seconds <= 0

    def stop(self) -> None:
        """End the search: this evaluator and those `beside` it answer no further query."""
        self._known.is_stopped = True

    def beside(self) -> Evaluator:
        """An evaluator for a method that runs in another thread at the same time.

        Incumbent, bound, counts, history and clock are shared; `share` and `at_most` limit only the
        evaluator on which they are called.
        """
        other = copy.copy(self)
        other.asked, other.own_best = 0, math.inf
        return other

    def apart(self, budget: Budget) -> Evaluator:
        """An evaluator of the same problem with a budget of its own, which shares nothing."""
        return Evaluator(
            self.problem,
            budget,
            measure=self._measure,
            clock=self._clock,
            core_clock=self._core_clock,
            simulator=self.simulator,
        )

    def begin_from(self, placement: Placement | None, value: float) -> None:
        """Start with an incumbent that was evaluated elsewhere and counts there."""
        self._known.best, self._known.best_value = placement, value

    def take_in(self, found: Solution, *, is_elsewhere: bool) -> None:
        """Merge what a search with an evaluator `apart` found.

        Args:
            found: its counts, incumbent, bound and history, whose points are those of `found`
                that improve on the incumbent here.
            is_elsewhere: its processor seconds were another process's.
        """
        known, began = self._known, self.seconds - found.seconds
        with known.lock:
            for point in found.history:
                if point.value < known.best_value:
                    bound = max(known.lower_bound, point.lower_bound or 0.0) or None
                    known.best, known.best_value = found.placement, point.value
                    count, seconds = known.evaluations + point.evaluations, began + point.seconds
                    if known.history:  # searches that ran at the same time are merged in turn
                        seconds = max(seconds, known.history[-1].seconds)
                    known.history.append(HistoryPoint(count, seconds, point.value, bound))
            known.evaluations += found.evaluations
        if is_elsewhere:
            self.count_core_seconds(found.core_seconds)
        if found.bound_method:
            self.offer_bound(found.lower_bound, found.bound_method)

    def count_core_seconds(self, seconds: float) -> None:
        """Add processor seconds of another process."""
        self._known.core_elsewhere += seconds

    @contextmanager
    def untimed(self) -> Iterator[None]:
        """Within the block no seconds pass for the search, and none end it.

        For work once per installation, such as compiling a placer's kernels. No other
        thread may search meanwhile.
        """
        whole, began, core_began = self.budget, self._clock(), self._core_clock()
        self.budget = replace(whole, seconds=None, core_seconds=None)
        try:
            yield
        finally:
            self.budget = whole
            self._known.untimed += self._clock() - began
            self._known.untimed_core += self._core_clock() - core_began

    def evaluate(
        self, device_of: ArrayLike, order: ArrayLike | None = None, *, keep: bool = True
    ) -> float:
        """Value of a placement; inf if it breaks a constraint.

        Args:
            device_of: device of each unit, shape (n_units,).
            order: topological order of all units, or None for the problem's dispatch.
            keep: False where the placer's own rules forbid the placement: the query counts, and the
                placement never becomes the incumbent.

        Raises:
            BudgetSpent: the budget is used up; the query was not answered.
            InputError: `device_of` or `order` is not an integer for each unit.
        """
        if self.is_spent:
            raise BudgetSpent
        placement = _placement_of(device_of, order)
        value = self._measured(placement, self.simulator.value(placement))
        self._count(placement.device_of, placement.order, value, keep=keep)
        return value

    def evaluate_shortage(self, device_of: ArrayLike, order: ArrayLike | None = None) -> Shortage:
        """Rate the distance of a placement from keeping every limit, with its value: one query.

        Args:
            device_of: device of each unit, shape (n_units,).
            order: topological order of all units, or None for the problem's dispatch.

        Raises:
            BudgetSpent: the budget is used up; the query was not answered.
            InputError: `device_of` or `order` is not an integer for each unit.
        """
        if self.is_spent:
            raise BudgetSpent
        placement = _placement_of(device_of, order)
        found = self.simulator.shortage(placement)
        value = self._measured(placement, found.value)
        self._count(placement.device_of, placement.order, value, keep=True)
        return found

    def evaluate_many(self, devices_of: ArrayLike, *, keep: BoolArray | None = None) -> FloatArray:
        """Values of several placements without order, in parallel over cores where simulated.

        Args:
            devices_of: shape (n_placements, n_units).
            keep: which of them may become the incumbent (see `evaluate`), shape (n_placements,);
                None keeps all.

        Returns:
            Values, shape (n_placements,). When fewer queries are left, or time ends between two of
            them, only those are answered and the result is shorter.

        Raises:
            BudgetSpent: no query is left.
            InputError: `devices_of` is not an integer for each unit of each placement.
        """
        rows = np.atleast_2d(integers(devices_of, A_PLACEMENT, n_axes=2))
        if self.is_spent:
            raise BudgetSpent
        rows = rows[: int(min(len(rows), self.remaining_evaluations))]
        kept = [True] * len(rows) if keep is None else keep[: len(rows)].tolist()
        at_once = max(1, len(rows))
        if self._measure is not None:
            at_once = 1
        elif self.budget.is_timed:
            at_once = max(_BETWEEN_LOOKS, _UNITS_BETWEEN_LOOKS // self.problem.n_units)
        values: list[float] = []
        for first in range(0, len(rows), at_once):
            if values and self.is_spent:
                break
            part = slice(first, first + at_once)
            found = self._values(rows[part])
            for row, value, may_stay in zip(rows[part], found, kept[part], strict=True):
                self._count(row, None, value, keep=may_stay)
            values += found
        return np.array(values, dtype=np.float64)

    def sample_many(self, devices_of: ArrayLike, *, keep: BoolArray | None = None) -> FloatArray:
        """Evaluate placements that a policy drew from its own distribution.

        The values are kept in `samples`, apart from those of first placements and of intermediate
        ones, so that a run tells whether the policy itself became better.
        """
        values = self.evaluate_many(devices_of, keep=keep)
        self.record_samples(values)
        return values

    def record_samples(self, values: ArrayLike) -> None:
        """Keep values that were evaluated before as a policy's own samples, shape (n,)."""
        self.samples += np.asarray(values, dtype=np.float64).tolist()

    def record_update(self, **values: float) -> None:
        """Keep the measurements of one update of a policy (see `UpdatePoint`)."""
        self.updates.append(UpdatePoint(self.evaluations, values))

    @property
    def is_closed(self) -> bool:
        """True if the incumbent is proven to be optimal.

        Never of measured values: bounds hold for the cost table, which a lucky run can undercut.
        """
        value = self.best_value
        is_met = math.isfinite(value) and value <= self.lower_bound * (1.0 + CLOSED)
        return is_met and not self.is_measured

    def offer_bound(self, lower_bound: float, method: str) -> None:
        """Keep the largest proven lower bound, and which method proved it.

        A bound that is not finite has come about by rounding, and is passed over: feasibility is
        proven elsewhere.
        """
        if not math.isfinite(lower_bound):
            return
        with self._known.lock:
            self._known.bounded_by.add(method)
            if lower_bound > self._known.lower_bound:
                self._known.lower_bound, self._known.bound_method = lower_bound, method

    @contextmanager
    def share(self, fraction: float) -> Iterator[None]:
        """Within the block, the budget ends when `fraction` in (0, 1] of what is left is used."""
        with self.at_most(
            max(1.0, fraction * self.remaining_evaluations),
            max(0.0, fraction * self.remaining_seconds),
        ):
            yield

    @contextmanager
    def at_most(self, evaluations: float, seconds: float) -> Iterator[None]:
        """Within the block, the budget ends after so many further evaluations or seconds.

        Where processor seconds are limited, as many of these end it, too. It ends no later than
        before, and a budget without a limit still has none.
        """
        whole = part = self.budget
        if whole.evaluations is not None:
            last = self.evaluations + math.ceil(evaluations)
            part = replace(part, evaluations=min(whole.evaluations, last))
        if whole.seconds is not None:
            part = replace(part, seconds=min(whole.seconds, self.seconds + seconds))
        if whole.core_seconds is not None:
            last_core = min(whole.core_seconds, self.core_seconds + seconds)
            part = replace(part, core_seconds=last_core)
        self.budget = part
        try:
            yield
        finally:
            self.budget = whole

    @property
    def met_limit(self) -> Stop | None:
        """The limit of the budget that is used up; None if there is none."""
        if self.remaining_evaluations < 1:
            return Stop.EVALUATIONS
        if self._wall_left <= 0:
            return Stop.SECONDS
        return Stop.CORE_SECONDS if self._core_left <= 0 else None

    def solution(
        self, status: Status | None = None, message: str = "", stop: Stop | None = None
    ) -> Solution:
        """The incumbent as a solution.

        Args:
            status: None is `optimal` if the incumbent is proven to be, else `feasible`; `unknown`
                without an incumbent.
            message: see `Solution`.
            stop: None derives it: a proof, a limit that was met, or neither.
        """
        with self._known.lock:  # another lane changes these meanwhile
            best, value, is_closed = self.best, self.best_value, self.is_closed
            bound, method = self.lower_bound, self.bound_method
        if status is None:
            status = "optimal" if is_closed else "unknown" if best is None else "feasible"
        if stop is None:
            is_proven = is_closed or status in ("optimal", "infeasible")
            stop = Stop.PROVEN if is_proven else self.met_limit or Stop.DONE
        if best is None and not message:
            message = self._last_violation()
        return Solution(
            placement=best,
            value=value,
            status=status,
            lower_bound=min(bound, value),
            bound_method=method,
            evaluations=self.evaluations,
            seconds=self.seconds,
            core_seconds=self.core_seconds,
            history=tuple(self.history),
            samples=tuple(self.samples),
            updates=tuple(self.updates),
            message=message,
            stop=stop,
        )

    def cut_short(self) -> Solution:
        """The solution of a method whose solver stopped when its share of the seconds was used.

        A solver gets slightly less time than is left, so that its answer can still be valued.
        """
        if math.isinf(self.remaining_seconds) or self.is_closed or self.met_limit:
            return self.solution()
        by_core = self._core_left < self._wall_left
        return self.solution(stop=Stop.CORE_SECONDS if by_core else Stop.SECONDS)

    def _values(self, rows: IntArray) -> list[float]:
        """Measured or simulated values of placements, rows (n_placements, n_units)."""
        if self._measure is None:
            return [float(value) for value in self.simulator.values(rows)]
        placements = [Placement.of(row) for row in rows]
        return [self._measured(each, self.simulator.value(each)) for each in placements]

    def _measured(self, placement: Placement, simulated: float) -> float:
        """The value of the measured seconds where there is a measure, else the simulated value."""
        if self._measure is None or math.isinf(simulated):
            return simulated
        return self.simulator.value_of_seconds(placement, self._measure(placement))

    def _count(
        self, device_of: IntArray, order: IntArray | None, value: float, *, keep: bool
    ) -> None:
        known = self._known
        with known.lock:
            known.evaluations += 1
            self.asked += 1
            if keep:
                self.own_best = min(self.own_best, value)
            if keep and value < known.best_value:
                known.best, known.best_value = Placement.of(device_of, order), value
                bound = known.lower_bound if known.lower_bound > 0 else None
                known.history.append(HistoryPoint(known.evaluations, self.seconds, value, bound))
            elif known.best is None and math.isinf(value):
                known.broken = Placement.of(device_of, order)

    def _last_violation(self) -> str:
        """The constraint that the last placement breaks; "" if a placement so far was feasible."""
        broken = self._known.broken
        violation = None if broken is None else self.simulator.violation(broken)
        if violation is None:
            return ""
        return f"each of {self.evaluations} placements breaks a constraint; {violation.message}"


def _placement_of(device_of: ArrayLike, order: ArrayLike | None) -> Placement:
    """The placement of a query.

    Raises:
        InputError: `device_of` or `order` is not an integer for each unit.
    """
    placement = Placement.of(device_of, order)
    n_units = len(placement.device_of)
    if placement.order is not None and len(placement.order) == 0 < n_units:
        # which kernels take for no order
        raise InputError(f"an order needs {n_units} units, got 0; leave it out for none")
    return placement


@functools.cache
def compile_kernels(model: ExecutionModel) -> None:
    """Compile the kernels of an execution model, once per process.

    The first query after an installation or an update compiles for many seconds, which is no part
    of a search's budget.
    """
    builder = GraphBuilder()
    builder.add_op("op", "Op", inputs=[builder.add_input(1.0)])
    builder.add_tensor(0, 1.0, is_output=True)
    cluster = Cluster((Device("cpu"), Device("gpu", "gpu")), host="cpu")
    costs = CostTable(frozen_floats([[1.0, math.inf]]))
    problem = Problem.of_ops(builder.build(), cluster, costs)
    if isinstance(model, Subgraph | SubgraphIP):
        problem = replace(problem, transfer_seconds=frozen_floats([0.0, 0.0]))
    simulator = Simulator(problem.under(model))
    simulator.value(Placement.of([0], [0]))
    simulator.values([[0]])

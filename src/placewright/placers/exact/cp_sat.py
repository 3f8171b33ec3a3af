"""Constraint programming of placement and order together, with a proof.

OR-tools' CP-SAT (L. Perron, F. Didier, "CP-SAT") on a model of our own execution model `event`:
`schedule_program.model` lists the constraints that are exact and those that are relaxed. The
program minimises the makespan over placements and orders. The evaluator values each of its
solutions twice, with the order and by rank dispatch; the program's bound holds for every placement
in every order.

`max-load`, `subgraph` and `subgraph-ip` have no orders. Their programs are those of
`max_load.program` (Tarnawski et al. 2020) and `subgraphs.bound`, with a limit in the place of the
objective: see `integer_program.narrowing`.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from placewright.core.charges import CHARGED
from placewright.core.execution_models import Event, MaxLoad, Subgraph, SubgraphIP
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.errors import BudgetSpent, InputError
from placewright.placers.bases import (
    ForEveryProblem,
    anytime,
    found_none,
    pass_interrupt_on,
    require_counts,
    why_not_time_alone,
)
from placewright.placers.exact.max_load.program import max_load_limits
from placewright.placers.exact.schedule_program.model import (
    ScheduleProgram,
    limit_work,
    new_solver,
    used_work,
)
from placewright.placers.exact.schedule_program.transfers import Ticks
from placewright.placers.exact.subgraphs.bound import subgraph_limits
from placewright.placers.pipelines.ideals.load_model import why_not_separable
from placewright.placers.search.within_limits import look_for_first
from placewright.simulation.bounds.lower import quick_bounds
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.interruptible import interruptible
from placewright.simulation.layout import all_in_turn

_TICKS = 10**8  # per makespan of the first schedule
_MOST_TICKS = 2.0**50  # of the longest schedule
_MOST_SUM = 2.0**60  # of them, over all units: the solver adds them up in 63 bits
_MOST_NO_BETTER = 1000  # solutions in a row without a better value


@dataclass(frozen=True)
class CpSat:
    """Solves a constraint program, from the incumbent or from list scheduling.

    Attributes:
        max_units: limit on units (under `event`) or colocation classes (else), >= 1, so that the
            program fits into memory.
        deterministic_seconds: limit of all searches together in the solver's own measure of work,
            if the budget has no limit in seconds, > 0.
        workers: threads if the budget has a limit in seconds, >= 0; 0 uses every core. Runs without
            such a limit use one thread, so that their answers repeat.
        alternatives: further placements to try, one at a time, if the evaluator values the best
            placement of the program as slower than the program does, >= 0.
    """

    name: ClassVar[str] = "cp-sat"
    paper: ClassVar[str] = "constraint programming, OR-tools"
    objectives: ClassVar[tuple[str, ...]] = ForEveryProblem.objectives
    needs_training: ClassVar[bool] = False

    max_units: int = 500
    deterministic_seconds: float = 10.0
    workers: int = 0
    alternatives: int = 10

    def __post_init__(self) -> None:
        require_counts("cp-sat", self, "max_units")
        if not self.deterministic_seconds > 0:
            raise InputError(
                f"cp-sat: deterministic_seconds must be > 0, got {self.deterministic_seconds}"
            )
        require_counts("cp-sat", self, "workers", "alternatives", least=0)

    def why_not(self, problem: Problem) -> str | None:
        """None for up to `max_units` units, except under `placeto`."""
        model = problem.execution_model
        if not isinstance(model, Event | MaxLoad) and (reason := why_not_time_alone(problem)):
            return reason
        if not isinstance(model, Event | MaxLoad | Subgraph | SubgraphIP):
            return f"cp-sat has no program for execution model '{model.name}'"
        is_event = isinstance(model, Event)
        units = problem.n_units if is_event else problem.colocation.n_groups
        if units > self.max_units:
            return (
                f"cp-sat takes up to {self.max_units} units and this problem has {units}; raise "
                "max_units if you have the memory"
            )
        return why_not_separable(problem) if isinstance(model, MaxLoad) else None

    @anytime
    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        """Evaluate each solution of the solver twice, after a few evaluations for a start."""
        for quick in quick_bounds(problem):
            evaluator.offer_bound(quick.value, quick.method)
        if not isinstance(problem.execution_model, Event):
            return self._narrowed(problem, evaluator, rng)
        start = _start(problem, evaluator)
        horizon = all_in_turn(problem) if start is None else _longest(problem, evaluator, start)
        seconds = horizon if start is None else min(horizon, evaluator.simulator.seconds(start))
        most_ticks = min(_MOST_TICKS, _MOST_SUM / max(1, problem.n_units))
        seconds = max(seconds, horizon / most_ticks * _TICKS)
        ticks = Ticks(seconds / _TICKS if seconds > 0 else 1.0)
        most = math.inf if start is None else evaluator.simulator.value(start)
        program = ScheduleProgram(problem, ticks, ticks.up(horizon) + 1, most=most)
        if start is not None:
            timeline = evaluator.simulator.timeline(start)
            program.hint(start.device_of, timeline.start, timeline.end)
        return self._solved(program, evaluator, rng, has_start=start is not None)

    def _narrowed(
        self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator
    ) -> Solution:
        """Narrow the gap by asking for placements up to a limit."""
        seconds = evaluator.remaining_seconds
        all_of = self.deterministic_seconds if math.isinf(seconds) else seconds

        def solver(share: float) -> Any:
            return self._solver(evaluator, rng, share * all_of)

        is_load = isinstance(problem.execution_model, MaxLoad)
        questions = (max_load_limits if is_load else subgraph_limits)(problem, evaluator, solver)
        questions.run()
        if questions.is_infeasible:
            return evaluator.solution(
                message=found_none("placement that keeps support, resident bytes and limits")
            )
        return evaluator.solution()

    def _solved(
        self,
        program: ScheduleProgram,
        evaluator: Evaluator,
        rng: np.random.Generator,
        has_start: bool,
    ) -> Solution:
        from ortools.sat.python import cp_model

        is_timed = math.isfinite(evaluator.remaining_seconds)
        left = math.inf if is_timed else self.deterministic_seconds

        gave_up = False

        def search() -> tuple[int, float]:
            nonlocal left, gave_up
            solver = self._solver(evaluator, rng, left)
            status, bound, gave_up = _run(program, evaluator, solver)
            left -= used_work(solver)
            return status, bound

        status, bound = search()
        if status == cp_model.INFEASIBLE and not has_start:
            return evaluator.solution(
                message=found_none("assignment that keeps routes, resident bytes and limits")
            )
        evaluator.offer_bound(bound, "constraint program")
        for _ in range(self.alternatives):
            if status != cp_model.OPTIMAL or evaluator.is_closed or left <= 0.0:
                break
            # The evaluator found the best placement slower than the relaxed program did, so that
            # the next best of the program may be better.
            program.forbid_found()
            if math.isfinite(evaluator.best_value):
                program.stay_below(evaluator.best_value)
            status, _ = search()
        if status not in (cp_model.OPTIMAL, cp_model.INFEASIBLE) and not gave_up:
            return evaluator.cut_short()
        return evaluator.solution()

    def _solver(
        self, evaluator: Evaluator, rng: np.random.Generator, seconds: float = math.inf
    ) -> Any:
        """Make a solver with the rest of the budget, or `seconds` if that is less."""
        solver = new_solver()
        solver.parameters.random_seed = int(rng.integers(0, 2**31 - 1))
        if math.isfinite(evaluator.remaining_seconds):
            most = max(0.01, min(seconds, 0.95 * evaluator.remaining_seconds))
            solver.parameters.max_time_in_seconds = most
            solver.parameters.num_workers = self.workers
        else:
            most = min(seconds, self.deterministic_seconds)
            limit_work(solver, most)
            solver.parameters.num_workers = 1
        return solver


def _start(problem: Problem, evaluator: Evaluator) -> Placement | None:
    """The incumbent, or else the best of list scheduling and of single devices.

    If none of these keeps all limits, one that does, if a search finds any.
    """
    from placewright.placers.registry import make_placer

    if evaluator.best is None:
        for name in ("single", "heft", "peft"):
            solution = make_placer(name).place(problem, evaluator, np.random.default_rng(0))
            pass_interrupt_on(solution)
            if evaluator.is_spent:
                raise BudgetSpent
        look_for_first(evaluator)
    return evaluator.best


def _longest(problem: Problem, evaluator: Evaluator, start: Placement) -> float:
    """Seconds that no better placement than `start` needs to exceed."""
    value = evaluator.simulator.value(start)
    if problem.objective not in CHARGED:
        return value
    rate = problem.charges[problem.objective].least_rate
    return min(all_in_turn(problem), value / rate if rate > 0 else math.inf)


def _run(program: ScheduleProgram, evaluator: Evaluator, solver: Any) -> tuple[int, float, bool]:
    """Solve once and value every solution.

    Returns:
        Status, bound of the value, and whether it ended because nothing got better.
    """
    from ortools.sat.python import cp_model

    watch, is_timed = _watch(program, evaluator), math.isfinite(evaluator.remaining_seconds)
    solver.parameters.catch_sigint_signal = False  # the interpreter handles Ctrl-C
    status = interruptible(
        lambda: solver.solve(program.model, watch),
        stop=solver.stop_search,
        # Without a clock the watch alone ends it, so that the end is the same on any machine.
        is_over=lambda: is_timed and (evaluator.is_spent or evaluator.is_closed),
    )
    if watch.interrupted is not None and not isinstance(watch.interrupted, BudgetSpent):
        raise watch.interrupted
    bound = 0.0
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE, cp_model.UNKNOWN):
        best = max(0.0, solver.best_objective_bound - program.float_error)
        bound = best * program.unit * (1.0 - 1e-9)
    return status, bound, watch.gave_up


def _watch(program: ScheduleProgram, evaluator: Evaluator) -> Any:
    """The callback that the solver runs for each solution."""
    from ortools.sat.python import cp_model

    class Watch(cp_model.CpSolverSolutionCallback):
        """Values each solution; the budget's end or a fault stops the solver.

        Solutions may be better by a tick of time at once, without end: the solver counts no work
        for them. So many in a row that are no better by their value stop it, too.
        """

        def __init__(self) -> None:
            super().__init__()
            self.interrupted: BaseException | None = None
            self.gave_up = False  # it stopped the search because nothing got better
            self._turn = threading.Lock()
            self._best, self._no_better = math.inf, 0

        def on_solution_callback(self) -> None:
            """Evaluate with the order, then by rank dispatch."""
            with self._turn:
                if self.interrupted is not None:
                    return
                try:
                    device_of, order = program.decoded(self.value)
                    evaluator.evaluate(device_of, order)
                    evaluator.evaluate(device_of)
                    self._no_better += 1
                    if evaluator.best_value < self._best:
                        self._best, self._no_better = evaluator.best_value, 0
                    is_over = evaluator.is_spent or evaluator.is_closed
                    self.gave_up = not is_over and self._no_better >= _MOST_NO_BETTER
                    if is_over or self.gave_up:
                        self.stop_search()
                except BaseException as error:  # it must not cross the solver's own code
                    self.interrupted = error
                    self.stop_search()

    return Watch()

"""The sum of parts with each part's own constraint program, where the sum needs it.

The dynamic program of `placers.parts.bound` finds the cheapest devices of the articulation units
for what is known of each part and pair of devices. Only those pairs that it chose can raise the
sum, so that only they are solved (`placers.parts.problems` says why that is a bound), and it is
asked again, until all that it chose is solved or the time is up. A program that is not solved to
its end gives its own bound, and gets more time when it is chosen again. Parts that come again, and
pairs of devices that alike devices make equal, share one program (`placers.parts.twins`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from placewright.core.arrays import FloatArray, IntArray
from placewright.core.execution_models import Event
from placewright.core.problem import Problem
from placewright.placers.parts.articulation import articulation_units
from placewright.placers.parts.bound import is_too_large, least_of_parts
from placewright.placers.parts.problems import part_problem
from placewright.placers.parts.twins import Pair, Twins
from placewright.placers.schedule_program.model import ScheduleProgram
from placewright.placers.schedule_program.ticks import Ticks
from placewright.simulation.interruptible import interruptible

_TICKS = 10**7  # that the horizon of a part is divided into
_FIRST_SECONDS = 1.0  # of the first try of a program
_MOST_UNITS = 300  # of a part whose program is tried


@dataclass(frozen=True)
class PartsFound:
    """What is known when the time is up, or all that matters is solved.

    Attributes:
        bound: of the value of the whole, in seconds.
        is_solved: the bound is the least sum of solved programs.
        device_of: a placement made of the parts' solutions, (n_units,); None where one has none.
        order: all units by their starts in the parts, (n_units,).
    """

    bound: float
    is_solved: bool
    device_of: IntArray | None
    order: IntArray | None


@dataclass
class _Known:
    """One part with one pair of devices."""

    bound: float
    is_solved: bool = False
    seconds: float = _FIRST_SECONDS
    device_of: IntArray | None = None
    start: FloatArray | None = None


def solve_parts(
    problem: Problem,
    remaining: Callable[[], float],
    *,
    workers: int = 2,
    deterministic: bool = False,
    on_bound: Callable[[float], None] = lambda bound: None,
    is_over: Callable[[], bool] = lambda: False,
) -> PartsFound | None:
    """Solve what matters until the time is up.

    Args:
        problem: of execution model `event`.
        remaining: seconds left, asked between programs.
        workers: threads of the solver.
        deterministic: count the solver's own measure of work as seconds, with one thread.
        on_bound: told each bound of the whole, larger each time.
        is_over: asked, also within a program, whether to end at once.

    Returns:
        None where the problem has no articulation unit or is too large.
    """
    if not isinstance(problem.execution_model, Event) or is_too_large(problem):
        return None
    cuts = articulation_units(problem)
    if len(cuts) == 0:
        return None
    parts = _Parts(problem, cuts, is_over)
    threads, best, spent = 1 if deterministic else workers, 0.0, 0.0
    while True:
        total, chosen = parts.cheapest()
        if total * (1.0 - 1e-9) > best:
            best = total * (1.0 - 1e-9)
            on_bound(best)
        open_ones = [at for at in enumerate(chosen) if not parts.known(*at).is_solved]
        small = [one for one in open_ones if parts.size(one[0]) <= _MOST_UNITS]
        left = remaining() - spent
        if not small or left <= 0 or is_over():
            return parts.found(best, chosen, not open_ones)
        # The least time first: an easy part is solved before a hard one is tried again.
        at = min(small, key=lambda one: (parts.known(*one).seconds, one[0]))
        seconds = min(left, parts.known(*at).seconds)
        parts.solve(*at, seconds, threads, deterministic)
        spent += seconds if deterministic else 0.0


class _Parts:
    def __init__(self, problem: Problem, cuts: IntArray, is_over: Callable[[], bool]) -> None:
        self.problem, self.cuts, self._is_over = problem, cuts, is_over
        order = problem.unit_graph.topological_order
        position = np.empty(problem.n_units, dtype=np.int64)
        position[order] = np.arange(problem.n_units)
        self._stops = [*(position[cuts] + 1).tolist(), problem.n_units]
        self._firsts = [0, *self._stops[:-1]]
        self._order = order
        self._least = least_of_parts(problem)  # (n_parts, before, after)
        self._twins = Twins(problem, cuts, [self._units(at) for at in range(len(self._stops))])
        self._known: dict[tuple[int, Pair], _Known] = {}

    def cheapest(self) -> tuple[float, list[tuple[int, int]]]:
        """The least sum of bounds, and its devices before and after each part (0 for none)."""
        table = self._least
        n_parts, n_devices = table.shape[0], table.shape[1]
        reached = np.full(n_devices, np.inf)
        reached[0] = 0.0
        came = np.zeros((n_parts, n_devices), dtype=np.int64)
        for part in range(n_parts):
            sums = reached[:, None] + table[part]
            came[part] = sums.argmin(axis=0)
            reached = sums.min(axis=0)
        after = int(reached.argmin())
        total, pairs = float(reached[after]), []
        for part in range(n_parts - 1, -1, -1):
            before = int(came[part, after])
            pairs.append((before, after))
            after = before
        return total, pairs[::-1]

    def known(self, part: int, pair: Pair) -> _Known:
        """What is known of a part with a pair of devices, and of all that have the same program."""
        key = self._twins.program(part, pair)
        if key not in self._known:
            self._known[key] = self._at_first(*key)
        return self._known[key]

    def solve(self, part: int, pair: Pair, seconds: float, threads: int, repeats: bool) -> None:
        """Solve a program for so long; what it proves holds for all that have the same program.

        Args:
            part, pair: whose program.
            seconds: at most.
            threads: of the solver.
            repeats: seconds are the solver's own measure of work.
        """
        known = self.known(part, pair)
        first, (before, after) = self._twins.program(part, pair)
        cut = None if first == 0 else (int(self.cuts[first - 1]), before)
        whole = part_problem(
            self.problem, self._units(first), cut, None if self._is_last(first) else after
        )
        solver = _solver(seconds, threads, repeats)
        _solve(whole, known, solver, 0 if cut is None else 1, self._is_over)
        known.seconds *= 4.0
        for other, (before, after) in self._twins.alike(part, pair):
            least = self._least[other, before, after]
            self._least[other, before, after] = max(least, known.bound)

    def found(self, bound: float, chosen: list[tuple[int, int]], is_solved: bool) -> PartsFound:
        """The bound, and the placement that the parts' solutions make together."""
        device_of = np.full(self.problem.n_units, -1, dtype=np.int64)
        start = np.zeros(self.problem.n_units)
        for part, pair in enumerate(chosen):
            known, units = self.known(part, pair), self._units(part)
            if known.device_of is None or known.start is None:
                return PartsFound(bound, is_solved, None, None)
            device_of[units] = self._twins.exchanged(known.device_of, part, pair)
            start[units] = known.start
        place = np.empty(self.problem.n_units, dtype=np.int64)
        place[self._order] = np.arange(self.problem.n_units)
        part_of = np.searchsorted(np.array(self._stops), place, side="right")
        order = np.lexsort((place, start, part_of)).astype(np.int64)
        return PartsFound(bound, is_solved, device_of, order)

    def size(self, part: int) -> int:
        """Units of a part, its later articulation unit among them."""
        return int(self._stops[part] - self._firsts[part])

    def _units(self, part: int) -> IntArray:
        return np.asarray(self._order[self._firsts[part] : self._stops[part]])

    def _at_first(self, part: int, pair: Pair) -> _Known:
        """Nothing runs beside a single unit between two others: the table has what it takes."""
        known, units = _Known(float(self._least[(part, *pair)])), self._units(part)
        if len(units) == 0 or self._is_single(part, units):
            known.is_solved = True
            known.device_of, known.start = np.full(len(units), pair[1]), np.zeros(len(units))
        return known

    def _is_single(self, part: int, units: IntArray) -> bool:
        if len(units) > 1 or part == 0 or self._is_last(part):
            return False
        graph = self.problem.unit_graph
        made = graph.op_outputs.row(int(self.cuts[part - 1]))
        read = np.isin(made, graph.op_inputs.row(int(units[0])))
        return int(read.sum()) <= 1  # several tensors wait for each other on their way

    def _is_last(self, part: int) -> bool:
        return part == len(self._stops) - 1


def _solver(seconds: float, threads: int, deterministic: bool) -> Any:
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    solver.parameters.num_workers = threads
    solver.parameters.random_seed = 0
    if deterministic:
        solver.parameters.max_deterministic_time = seconds
    else:
        solver.parameters.max_time_in_seconds = max(0.01, seconds)
    return solver


def _solve(
    part: Problem, known: _Known, solver: Any, n_before: int, is_over: Callable[[], bool]
) -> None:
    """Keep the bound of the part's program, and its best schedule."""
    from ortools.sat.python import cp_model

    horizon = _in_turn(part)
    ticks = Ticks(horizon / _TICKS if horizon > 0 else 1.0)
    program = ScheduleProgram(part, ticks, ticks.up(horizon) + 1)
    program.model.add(program.makespan >= ticks.down(known.bound * (1.0 - 1e-9)))
    solver.parameters.catch_sigint_signal = False  # the interpreter handles Ctrl-C
    status = interruptible(
        lambda: solver.solve(program.model), stop=solver.stop_search, is_over=is_over
    )
    if status == cp_model.INFEASIBLE:
        known.bound, known.is_solved = math.inf, True
        return
    proven = max(0.0, solver.best_objective_bound) * ticks.seconds * (1.0 - 1e-9)
    known.bound = max(known.bound, proven)
    known.is_solved = status == cp_model.OPTIMAL
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        device_of, _ = program.decoded(solver.value)
        starts = np.array([solver.value(one) for one in program.start], dtype=np.float64)
        known.device_of, known.start = device_of[n_before:], starts[n_before:]


def _in_turn(part: Problem) -> float:
    """More than a schedule of the part takes in which everything waits for everything, seconds."""
    seconds = part.costs.seconds
    work = float(np.where(np.isfinite(seconds), seconds, 0.0).max(axis=1).sum())
    cluster, sizes = part.cluster, part.graph.tensor_bytes
    linked = cluster.link_channel >= 0
    latency = float(np.max(cluster.link_latency, initial=0.0, where=linked))
    per_byte = float(np.max(cluster.link_seconds_per_byte, initial=0.0, where=linked))
    hops = latency + sizes * per_byte
    if part.transfer_seconds is not None:
        hops = part.transfer_seconds
    return work + 2.0 * part.n_devices * float(np.sum(hops))

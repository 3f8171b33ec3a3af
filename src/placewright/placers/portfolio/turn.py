"""One turn of one member of a portfolio: its input, its outcome, and who takes it.

A turn depends on nothing but its input, so that it has the same outcome in every process.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.core.solution import Budget, Solution, Stop
from placewright.errors import BudgetSpent, MissingExtraError
from placewright.placers.exact.parts.programs import PartPrograms, part_programs, search_parts
from placewright.placers.portfolio.kernels import make_ready
from placewright.placers.registry import make_placer
from placewright.placers.search.within_limits import search_within_limits
from placewright.simulation.bounds.lower import RELAXATION, relaxed_bounds
from placewright.simulation.evaluator import Evaluator

# Members that are no placers; `LIMITS` looks for a first placement that keeps every limit.
BOUND, PARTS, LIMITS = RELAXATION, "parts", "limits"


@dataclass(frozen=True, eq=False)
class Turn:
    """The input of a turn."""

    member: str  # a placer's name, `BOUND`, `PARTS` or `LIMITS`
    seed: tuple[int, ...]  # of its choices
    budget: Budget  # of this turn
    settings: Mapping[str, str] = field(default_factory=dict)  # of the placer
    start: Placement | None = None  # the incumbent, from which searches begin; None without one
    value: float = math.inf  # of the incumbent, which no turn evaluates again; inf without one
    lower_bound: float = 0.0  # the best that is proven; 0 without one
    bound_method: str = ""  # what proved it
    # where the member's last turn ended; None for a first turn, and for members that keep nothing
    state: Any = None


@dataclass(frozen=True, eq=False)
class TurnOutcome:
    """The result of a turn."""

    solution: Solution  # incumbent, bound and counts at its end
    asked: int  # evaluations of this turn
    value: float  # of its own best evaluation; inf without one
    is_spent: bool  # its budget ended it
    state: Any = None  # where it ended, for the member's next turn


Turns = Generator[tuple[Turn, TurnOutcome | None], None, None]


class Takers(Protocol):
    """Whoever takes the turns of a portfolio: this process, its threads, or workers."""

    @property
    def count(self) -> int:
        """Turns that are taken at the same time."""
        ...

    @property
    def is_joint(self) -> bool:
        """True when turns search with the portfolio's own evaluator, so that incumbents and bounds
        are shared at once and nothing is merged at their end."""
        ...

    @property
    def is_elsewhere(self) -> bool:
        """True when turns use the processor seconds of other processes."""
        ...

    def make_ready(self) -> None:
        """Have all kernels compiled or read, before the clock starts."""
        ...

    def run(self, turns: Iterable[Turn | None]) -> Turns:
        """Take turns; yield each with its outcome as it ends, or with None if it was lost.

        A turn is drawn from `turns` when somebody is free to take it, so that it can depend on all
        that have ended by then. None is no turn: the next one is drawn when another one has ended.
        Closing the iterator ends turns that are under way.
        """
        ...


class TurnTaker:
    """Takes the turns of one search in one process.

    Args:
        base: an evaluator of the problem whose simulator the turns use; None makes one.
    """

    def __init__(self, problem: Problem, base: Evaluator | None = None) -> None:
        self.problem = problem
        self._given = base
        self._live: dict[str, Any] = {}  # member -> state of its last turn in this process

    def __reduce__(self) -> tuple[type[TurnTaker], tuple[Problem]]:
        return TurnTaker, (self.problem,)

    @cached_property
    def _base(self) -> Evaluator:
        return self._given or Evaluator(self.problem)

    @cached_property
    def _parts(self) -> PartPrograms | None:
        return part_programs(self.problem)

    def take(self, turn: Turn) -> TurnOutcome:
        """Take a turn with an evaluator of its own."""
        if turn.budget.is_timed:
            make_ready(self.problem.objective, self.problem.execution_model)  # before its clock
        evaluator = self._base.apart(turn.budget)
        evaluator.begin_from(turn.start, turn.value)
        if turn.lower_bound > 0:
            evaluator.offer_bound(turn.lower_bound, turn.bound_method)
        try:
            return self.take_with(turn, evaluator)
        except KeyboardInterrupt:
            found = evaluator.solution(message="interrupted", stop=Stop.INTERRUPTED)
            return TurnOutcome(found, evaluator.asked, evaluator.own_best, is_spent=False)

    def take_with(self, turn: Turn, evaluator: Evaluator) -> TurnOutcome:
        """Take a turn with an evaluator that has its budget; see `Turn`."""
        evaluator.memory = {}
        if (state := self._continued(turn)) is not None:
            evaluator.memory[turn.member] = state
        try:
            found = self._searched(turn, evaluator)
        except MissingExtraError as error:
            found = evaluator.solution(message=str(error))
        except BudgetSpent:
            found = evaluator.solution()
        state = self._live[turn.member] = evaluator.memory.get(turn.member)
        return TurnOutcome(found, evaluator.asked, evaluator.own_best, evaluator.is_spent, state)

    def _continued(self, turn: Turn) -> Any:
        """State to continue from: that of this process, brought up to date, or the turn's."""
        live = self._live.get(turn.member)
        if turn.state is None or live is None or live is turn.state:
            return turn.state
        live.catch_up(turn.state)
        return live

    def _searched(self, turn: Turn, evaluator: Evaluator) -> Solution:
        problem = self.problem
        if turn.member == BOUND:
            for bound in relaxed_bounds(problem, evaluator.remaining_seconds):
                evaluator.offer_bound(bound.value, bound.method)
            return evaluator.solution()
        if turn.member == PARTS:
            search_parts(problem, evaluator, self._parts)
            return evaluator.solution()
        if turn.member == LIMITS:
            return search_within_limits(evaluator, **{k: int(v) for k, v in turn.settings.items()})
        placer = make_placer(turn.member, turn.settings)
        if reason := placer.why_not(problem):
            return evaluator.solution(message=reason)
        return placer.place(problem, evaluator, np.random.default_rng(turn.seed))


def take_turn(taker: TurnTaker, turn: Turn) -> TurnOutcome:
    """Take a turn in a worker, which finds this function by its name."""
    return taker.take(turn)

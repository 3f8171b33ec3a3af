"""One turn of one member of a portfolio: all that it is told, and what it gives back.

A turn that is done in another process knows nothing but this, so that its answer is the same there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.core.solution import Budget, Solution
from placewright.errors import BudgetSpent, MissingExtraError
from placewright.placers.exact.parts.programs import part_programs
from placewright.placers.exact.parts.search import search_parts
from placewright.placers.portfolio.kernels import make_ready
from placewright.placers.registry import make_placer, reason_against
from placewright.simulation.bounds import relaxed_bounds
from placewright.simulation.evaluator import Evaluator

BOUND, PARTS = "linear relaxation", "parts"  # members that are no placers


@dataclass(frozen=True)
class Turn:
    """What a member does until its budget ends.

    Attributes:
        member: a placer's name, `BOUND` or `PARTS`.
        seed: of its choices.
        budget: of this turn.
        settings: of the placer.
        start: the incumbent, which the member evaluates first; None where there is none.
        lower_bound: that is known; 0 without one.
        bound_method: what proved it.
    """

    member: str
    seed: tuple[int, ...]
    budget: Budget
    settings: Mapping[str, str] = field(default_factory=dict)
    start: Placement | None = None
    lower_bound: float = 0.0
    bound_method: str = ""


def take_turn(problem: Problem, turn: Turn) -> Solution:
    """Let a member do its turn; without a placement where it does not take the problem."""
    if turn.budget.is_timed:
        make_ready(problem.objective, problem.execution_model)  # before the clock starts
    evaluator = Evaluator(problem, turn.budget)
    if turn.lower_bound > 0:
        evaluator.offer_bound(turn.lower_bound, turn.bound_method)
    if turn.start is not None:
        evaluator.evaluate(turn.start.device_of, turn.start.order)
    try:
        if turn.member == BOUND:
            for bound in relaxed_bounds(problem, evaluator.remaining_seconds):
                evaluator.offer_bound(bound.value, bound.method)
            return evaluator.solution()
        if turn.member == PARTS:
            search_parts(problem, evaluator, 1.0, part_programs(problem))
            return evaluator.solution()
        placer = make_placer(turn.member, turn.settings)
        if reason := reason_against(placer, problem):
            return evaluator.solution(message=reason)
        return placer.place(problem, evaluator, np.random.default_rng(turn.seed))
    except MissingExtraError as error:
        return evaluator.solution(message=str(error))
    except BudgetSpent:
        return evaluator.solution()

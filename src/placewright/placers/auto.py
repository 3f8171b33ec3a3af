"""The default: whichever methods apply, cheapest first, one incumbent, one bound, one budget."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from placewright.core.problem import Problem
from placewright.core.solution import Budget, Solution
from placewright.errors import BudgetSpent, InputError, MissingExtraError
from placewright.placers.anytime import anytime
from placewright.placers.registry import make_placer
from placewright.simulation.bounds import lower_bound, quick_bounds
from placewright.simulation.evaluator import CLOSED, Evaluator

# Cheapest first; the last one takes what is left of the budget.
_LISTS = ("heft", "peft", "cpop", "m-topo", "m-etf", "m-sct")
_QUICK = {
    "latency": ("single", "even-split", "expert", *_LISTS, "metis", "scotch"),
    "training": ("single", "even-split", "expert", *_LISTS, "metis", "scotch"),
    "throughput": ("single", "even-split", "expert", "m-topo", "metis", "dpl", "pipedream"),
}
# Name -> share of the remaining budget, most units that it is tried on.
_EXACT = {
    "latency": {
        "greedy": (0.1, 5000),
        "local-search": (0.4, 10**7),
        "latency-ip": (0.5, 300),
        "cp-sat": (0.5, 250),
    },
    "training": {"local-search": (0.5, 10**7), "cp-sat": (0.5, 250)},
    "throughput": {
        "ideal-dp": (0.3, 2000),
        "local-search": (0.3, 10**7),
        "maxload-ip": (0.7, 2000),
    },
}


@dataclass(frozen=True)
class Auto:
    """Runs methods in turn until the gap is closed or the budget ends.

    Attributes:
        gap: stop when value / bound - 1 is at most this, >= 0.
        descents: descents of the local search where the budget has no limit of its own.
    """

    name: ClassVar[str] = "auto"
    paper: ClassVar[str] = "portfolio"
    objectives: ClassVar[tuple[str, ...]] = ("latency", "throughput", "training")
    needs_training: ClassVar[bool] = False

    gap: float = CLOSED
    descents: int = 50

    def __post_init__(self) -> None:
        if not self.gap >= 0 or self.descents < 1:
            raise InputError(
                f"auto: gap must be >= 0 and descents >= 1, got {self.gap}, {self.descents}"
            )

    def supports(self, problem: Problem) -> str:
        """Defined for every problem."""
        del problem
        return ""

    @anytime
    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        """Bounds, quick heuristics, exact methods and search in shares, then search to the end."""
        for bound in quick_bounds(problem):
            evaluator.offer_bound(bound.value, bound.method)
        quick = _QUICK[problem.objective]
        for name in quick:
            if self._ends(problem, evaluator, rng, name, 1.0):
                return self._answer(evaluator)
        # Without a limit in seconds the solver has none either: the answer must repeat.
        best = lower_bound(problem, 0.2 * evaluator.remaining_seconds)
        evaluator.offer_bound(best.value, best.method)
        if self._is_closed(evaluator):
            return self._answer(evaluator)
        for name, (share, most_units) in _EXACT[problem.objective].items():
            applies = problem.n_units <= most_units
            if applies and self._ends(problem, evaluator, rng, name, share):
                return self._answer(evaluator)
        has_limit = evaluator.budget.seconds is not None or evaluator.budget.evaluations is not None
        if has_limit:
            self._ends(problem, evaluator, rng, "local-search", 1.0)
        return self._answer(evaluator)

    def _ends(
        self,
        problem: Problem,
        evaluator: Evaluator,
        rng: np.random.Generator,
        name: str,
        share: float,
    ) -> bool:
        """Run one method within its share; True when nothing is left to gain."""
        try:
            settings = {"descents": str(self.descents)} if name == "local-search" else {}
            placer = make_placer(name, settings)
        except MissingExtraError:
            return False
        if placer.supports(problem):
            return False
        whole = evaluator.budget
        evaluator.budget = _part(evaluator, share)
        try:
            found = placer.place(problem, evaluator, rng)
        except MissingExtraError:
            return False
        finally:
            evaluator.budget = whole
        if found.message == "interrupted":
            raise KeyboardInterrupt
        if evaluator.is_spent:
            raise BudgetSpent
        return self._is_closed(evaluator)

    def _is_closed(self, evaluator: Evaluator) -> bool:
        if evaluator.is_measured:  # bounds are on the cost table, which a lucky run can undercut
            return False
        value = evaluator.best_value
        return math.isfinite(value) and value <= evaluator.lower_bound * (1.0 + self.gap)

    def _answer(self, evaluator: Evaluator) -> Solution:
        if evaluator.is_closed:
            return evaluator.solution("optimal", "value equals the lower bound")
        return evaluator.solution()


def _part(evaluator: Evaluator, share: float) -> Budget:
    """A budget that ends when `share` of what is left is used."""
    whole = evaluator.budget
    part = whole
    if whole.evaluations is not None:
        left = max(1, math.ceil(share * evaluator.remaining_evaluations))
        part = replace(part, evaluations=min(whole.evaluations, evaluator.evaluations + left))
    if whole.seconds is not None:
        left_seconds = max(0.0, share * evaluator.remaining_seconds)
        part = replace(part, seconds=min(whole.seconds, evaluator.seconds + left_seconds))
    return part

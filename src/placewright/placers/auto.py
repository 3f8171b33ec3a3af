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
from placewright.simulation.bounds import quick_bounds, relaxed_bounds
from placewright.simulation.evaluator import CLOSED, Evaluator

# Cheapest first; the last one takes what is left of the budget.
_LISTS = ("heft", "peft", "cpop", "m-topo", "m-etf", "m-sct")
_CONTIGUOUS = ("m-topo", "dpl", "pipedream")
_CUTS = ("metis", "scotch", "mincut", "mt-kahypar")
_QUICK = {
    "latency": ("single", "even-split", "expert", *_LISTS, "metis", "scotch"),
    "training": ("single", "even-split", "expert", *_LISTS, "metis", "scotch"),
    "throughput": ("single", "even-split", "expert", *_CONTIGUOUS, *_CUTS),
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

    def why_not(self, problem: Problem) -> str | None:
        """Defined for every problem."""
        del problem
        return None

    @anytime
    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        """Bounds, quick heuristics, exact methods and search in shares, then search to the end."""
        run = _Run(self, problem, evaluator, rng)
        for bound in quick_bounds(problem):
            evaluator.offer_bound(bound.value, bound.method)
        for name in _QUICK[problem.objective]:
            if run.ends_with(name):
                return run.answer()
        # Without a limit in seconds the solver has none either: the answer must repeat.
        for bound in relaxed_bounds(problem, 0.2 * evaluator.remaining_seconds):
            evaluator.offer_bound(bound.value, bound.method)
        if run.is_closed:
            return run.answer()
        for name, (share, most_units) in _EXACT[problem.objective].items():
            if problem.n_units <= most_units and run.ends_with(name, share):
                return run.answer()
        has_limit = evaluator.budget.seconds is not None or evaluator.budget.evaluations is not None
        if has_limit:
            run.ends_with("local-search")
        return run.answer()


class _Run:
    """One method after the other on the same evaluator: incumbent and bound are shared there.

    Attributes:
        message: what the last method without a placement said about it.
    """

    def __init__(
        self, auto: Auto, problem: Problem, evaluator: Evaluator, rng: np.random.Generator
    ) -> None:
        self._auto, self._problem, self._evaluator, self._rng = auto, problem, evaluator, rng
        self.message = ""

    def ends_with(self, name: str, share: float = 1.0) -> bool:
        """Run one method within its share of what is left; True when nothing is left to gain."""
        evaluator = self._evaluator
        try:
            settings = {"descents": str(self._auto.descents)} if name == "local-search" else {}
            placer = make_placer(name, settings)
        except MissingExtraError:
            return False
        if placer.why_not(self._problem) is not None:
            return False
        whole = evaluator.budget
        evaluator.budget = _part(evaluator, share)
        try:
            found = placer.place(self._problem, evaluator, self._rng)
        except MissingExtraError:
            return False
        finally:
            evaluator.budget = whole
        if found.message == "interrupted":
            raise KeyboardInterrupt
        if evaluator.is_spent:
            raise BudgetSpent
        self.message = found.message or self.message
        return self.is_closed

    @property
    def is_closed(self) -> bool:
        """True when the gap is as small as was asked for."""
        evaluator = self._evaluator
        if evaluator.is_measured:  # bounds are on the cost table, which a lucky run can undercut
            return False
        value = evaluator.best_value
        return math.isfinite(value) and value <= evaluator.lower_bound * (1.0 + self._auto.gap)

    def answer(self) -> Solution:
        """The incumbent; without one, why a method found none."""
        if self._evaluator.is_closed:
            return self._evaluator.solution("optimal", "value equals the lower bound")
        found_one = self._evaluator.best is not None
        return self._evaluator.solution(message="" if found_one else self.message)


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

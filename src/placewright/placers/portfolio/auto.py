"""The default: quick methods first, then methods that take turns; one incumbent, one bound.

A problem of few placements is enumerated before all else, which mostly ends it with a proof.
Quick methods run once each, those that pay at any size first, and none may use up the seconds that
others need. Methods with a proof get shares of the rest. What is left goes to searches in turns: a
turn is a share of the budget, each search begins it from the incumbent of all, and the search that
has gained most lately gets the next one (every search now and then all the same). With a budget of
evaluations turns are counted in evaluations and gains in values, so that one seed gives one answer.

Where the budget is seconds alone, two run at once: methods with a proof, and the turns of searches
in a thread beside them. Before the clock starts, one placement is valued that needs no kernel of a
placer, and the kernels are made ready.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from placewright.core.execution_models import Subgraph, SubgraphIP
from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.errors import BudgetSpent, InputError, MissingExtraError
from placewright.placers.anytime import FOUND_NOTHING, anytime, pass_interrupt_on
from placewright.placers.exact.parts.programs import part_programs
from placewright.placers.exact.parts.search import search_parts
from placewright.placers.portfolio.beside import beside
from placewright.placers.portfolio.enumeration import enumerate_small
from placewright.placers.portfolio.first import evaluate_first
from placewright.placers.portfolio.kernels import make_ready
from placewright.placers.portfolio.turn import BOUND, PARTS
from placewright.placers.registry import make_placer
from placewright.simulation.bounds import quick_bounds, relaxed_bounds
from placewright.simulation.evaluator import CLOSED, Evaluator

_ANY = 10**9
# Name -> share of the remaining seconds at most, most units that it is tried on.
_LISTS = {
    "heft": (0.3, _ANY),
    "m-etf": (0.3, _ANY),
    "peft": (0.2, 300_000),
    "cpop": (0.1, 300_000),
    "m-topo": (0.1, _ANY),
    "m-sct": (0.2, 2000),  # its linear program cannot be interrupted
}
_BASELINES = {"single": (0.1, _ANY), "even-split": (0.1, _ANY), "expert": (0.1, 50_000)}
_QUICK = {
    "latency": {**_BASELINES, **_LISTS, "metis": (0.1, 50_000), "scotch": (0.1, 50_000)},
    "training": {**_BASELINES, **_LISTS, "metis": (0.1, 50_000), "scotch": (0.1, 50_000)},
    "throughput": {
        **_BASELINES,
        "m-topo": (0.1, _ANY),
        "dpl": (0.3, 50_000),
        "pipedream": (0.3, 50_000),
        "metis": (0.1, 50_000),
        "scotch": (0.1, 50_000),
        "mincut": (0.1, 50_000),
        "mt-kahypar": (0.1, 50_000),
    },
}
_SMALL = 10**6  # units times devices up to which bounds come before the first incumbent
_PIECES = "pieces"  # latency of atomic subgraphs
_TURNS = ""  # where searches take turns between exact methods
# Name -> share of the remaining budget, most units that it is tried on.
_EXACT = {
    "latency": {"greedy": (0.1, 5000), _TURNS: (0.4, _ANY), "cp-sat": (0.5, 250)},
    "training": {_TURNS: (0.5, _ANY), "cp-sat": (0.5, 250)},
    _PIECES: {
        "greedy": (0.1, 5000),
        _TURNS: (0.3, _ANY),
        "latency-ip": (0.7, 1000),
        "cp-sat": (0.9, 1000),
    },
    "throughput": {
        "ideal-dp": (0.3, 2000),
        _TURNS: (0.3, _ANY),
        "cp-sat": (0.4, 5000),
        "maxload-ip": (0.9, 5000),
    },
}
# Name -> most units that it is tried on.
_SEARCHES = {
    "latency": {"problem-space": _ANY, "local-search": _ANY, "multilevel": 200_000},
    "training": {"problem-space": _ANY, "multilevel": 200_000, "local-search": _ANY},
    "throughput": {"local-search": _ANY, "multilevel": 200_000},
}
_PARTS_SHARE = 0.3  # of what is left, for parts between articulation units
_TURN_SHARE = 0.05  # of what is left
_TURN_SECONDS = 0.25  # and at least so long
_TURN_EVALUATIONS = 48  # and at least so many
_BATCHES = 10  # of `multilevel` for each descent of local search
_FORGETS = 0.6  # of what a search gained before its last turn
_EVERY = 4  # turns after which a search gets one whatever it gained


def _exact(problem: Problem) -> dict[str, tuple[float, int]]:
    """Methods with a proof: name -> share of what is left, most units that it is tried on."""
    is_pieces = isinstance(problem.execution_model, Subgraph | SubgraphIP)
    return _EXACT[_PIECES if is_pieces else problem.objective]


@dataclass(frozen=True)
class PortfolioMembers:
    """Names of the methods of a portfolio.

    Attributes:
        quick: heuristics that run once.
        proofs: methods with a proof, and bounds.
        searches: that take turns.
    """

    quick: tuple[str, ...]
    proofs: tuple[str, ...]
    searches: tuple[str, ...]


@dataclass(frozen=True)
class Auto:
    """Runs methods in turn until the gap is closed or the budget ends.

    Attributes:
        gap: stop when value / bound - 1 is at most this, >= 0.
        descents: rounds of each search where the budget has no limit of its own.
        at_once: 2 lets searches run beside the methods with a proof where the budget is seconds
            alone; 1 lets all take turns.
    """

    name: ClassVar[str] = "auto"
    paper: ClassVar[str] = "portfolio"
    objectives: ClassVar[tuple[str, ...]] = ("latency", "throughput", "training")
    needs_training: ClassVar[bool] = False

    gap: float = CLOSED
    descents: int = 50
    at_once: int = 2

    def __post_init__(self) -> None:
        if not self.gap >= 0 or self.descents < 1 or self.at_once not in (1, 2):
            raise InputError(
                "auto: gap must be >= 0, descents >= 1 and at_once 1 or 2, got "
                f"{self.gap}, {self.descents}, {self.at_once}"
            )

    def why_not(self, problem: Problem) -> str | None:
        """Defined for every problem."""
        del problem
        return None

    def members(self, problem: Problem) -> PortfolioMembers:
        """The methods that are tried on a problem."""
        size, objective = problem.n_units, problem.objective
        exact = _exact(problem).items()
        return PortfolioMembers(
            quick=tuple(name for name, (_, most) in _QUICK[objective].items() if size <= most),
            proofs=(
                BOUND,
                PARTS,
                *(name for name, (_, most) in exact if name != _TURNS and size <= most),
            ),
            searches=tuple(name for name, most in _SEARCHES[objective].items() if size <= most),
        )

    def settings_of(self, name: str) -> dict[str, str]:
        """How long a search looks where the budget has no limit of its own."""
        return {
            "local-search": {"descents": str(self.descents)},
            "problem-space": {"rounds": str(self.descents)},
            "multilevel": {"batches": str(_BATCHES * self.descents)},
        }.get(name, {})

    @anytime
    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        """Bounds, quick heuristics, exact methods and search in shares, then search to the end."""
        if proven := enumerate_small(problem, evaluator):
            return proven
        run = _Run(self, problem, evaluator, rng)
        if evaluator.budget.is_timed:
            with evaluator.untimed():
                evaluate_first(problem, evaluator)
                make_ready(problem.objective, problem.execution_model)
        if problem.n_units * problem.n_devices <= _SMALL:
            run.bound()
        for name, (share, most_units) in _QUICK[problem.objective].items():
            if problem.n_units <= most_units and run.ends_with(name, share, quick=True):
                return run.answer()
        run.bound()
        if not self.runs_two(evaluator):
            run.prove()
        else:
            searches = _Run(self, problem, evaluator.beside(), rng.spawn(1)[0])
            with beside(searches.ends_with_turns, evaluator.stop):
                run.prove()
                if run.is_closed:
                    evaluator.stop()
        return run.answer()

    def runs_two(self, evaluator: Evaluator) -> bool:
        """True when searches run beside the methods with a proof."""
        budget = evaluator.budget
        seconds_alone = budget.is_timed and budget.evaluations is None
        return self.at_once == 2 and seconds_alone and not evaluator.is_measured


class _Run:
    """One method after the other on the same evaluator: incumbent and bound are shared there.

    Attributes:
        message: what the last method but the quick ones said about a placement that it lacks.
    """

    def __init__(
        self, auto: Auto, problem: Problem, evaluator: Evaluator, rng: np.random.Generator
    ) -> None:
        self._auto, self._problem, self._evaluator, self._rng = auto, problem, evaluator, rng
        self._gains = dict.fromkeys(auto.members(problem).searches, math.inf)
        self._waited = dict.fromkeys(self._gains, 0)
        self._lengths = dict.fromkeys(self._gains, 1.0)
        self.message = ""

    def bound(self) -> None:
        """Offer the quick bounds, where nobody has done so yet."""
        if not self._evaluator.bounded_by:
            for bound in quick_bounds(self._problem):
                self._evaluator.offer_bound(bound.value, bound.method)

    def prove(self) -> None:
        """Bounds and exact methods in shares of what is left, searches in between and after."""
        problem, evaluator = self._problem, self._evaluator
        searches_beside = self._auto.runs_two(evaluator)
        # Without a limit in seconds the solver has none either: the answer must repeat.
        for bound in relaxed_bounds(problem, 0.2 * evaluator.remaining_seconds):
            evaluator.offer_bound(bound.value, bound.method)
        parts = None if self.is_closed else part_programs(problem)
        if not self.is_closed:
            search_parts(problem, evaluator, _PARTS_SHARE, parts)
        if self.is_closed:
            return
        for name, (share, most_units) in _exact(problem).items():
            if problem.n_units > most_units or (name == _TURNS and searches_beside):
                continue
            if self.ends_with_turns(share) if name == _TURNS else self.ends_with(name, share):
                return
        if searches_beside:
            search_parts(problem, evaluator, 1.0, parts)
        elif evaluator.budget.is_limited:
            self.ends_with_turns()

    def ends_with_turns(self, share: float = 1.0) -> bool:
        """Searches in turns within a share of what is left; True when nothing is left to gain."""
        evaluator = self._evaluator
        if not evaluator.budget.is_limited:
            return any([self.ends_with(name) for name in self._gains])
        with evaluator.share(share):
            while self._gains and not evaluator.is_spent:
                if self._turn():
                    return True
        return self.is_closed

    def _turn(self) -> bool:
        """One turn of the search that gained most lately, or that has waited for long."""
        evaluator = self._evaluator
        name = max(self._gains, key=lambda one: (self._waited[one] >= _EVERY, self._gains[one]))
        before, asked = evaluator.best_value, evaluator.asked
        queries = max(_TURN_EVALUATIONS, _TURN_SHARE * evaluator.remaining_evaluations)
        seconds = max(_TURN_SECONDS, _TURN_SHARE * evaluator.remaining_seconds)
        with evaluator.at_most(queries, self._lengths[name] * seconds):
            ended = self.ends_with(name, stops=False)
            is_over = evaluator.is_spent
        for other in self._gains:
            self._waited[other] = 0 if other == name else self._waited[other] + 1
        gain = 1.0 if math.isinf(before) else before / max(evaluator.best_value, 1e-300) - 1.0
        known = self._gains[name]
        self._gains[name] = gain + (0.0 if math.isinf(known) else _FORGETS * known)
        if evaluator.asked == asked and is_over:
            self._lengths[name] *= 2.0  # it did not come to its first question
        elif evaluator.asked == asked:
            del self._gains[name]  # it has nothing to ask
        return ended

    def ends_with(
        self, name: str, share: float = 1.0, *, quick: bool = False, stops: bool = True
    ) -> bool:
        """Run one method within its share of what is left; True when nothing is left to gain.

        Args:
            name: of the method.
            share: of what is left, at most.
            quick: only the seconds are shared.
            stops: raise `BudgetSpent` where nothing is left.
        """
        evaluator = self._evaluator
        try:
            placer = make_placer(name, self._auto.settings_of(name))
        except MissingExtraError:
            return False
        if placer.why_not(self._problem) is not None:
            return False
        try:
            with evaluator.share(share, seconds_only=quick):
                found = placer.place(self._problem, evaluator, self._rng)
        except MissingExtraError:
            return False
        pass_interrupt_on(found)
        if stops and evaluator.is_spent:
            raise BudgetSpent
        if not quick:  # a simple method's failure is no word about the problem
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
        return self._evaluator.solution(message="" if found_one else self.message or FOUND_NOTHING)

"""Schedule of a portfolio: which member gets the next turn, and how its gain is counted.

With a budget of evaluations, turns come in rounds. All turns of a round begin from the incumbent
before it, and their outcomes are merged in the order of the round's list. The turns of a round
depend on the evaluations that are left and on nothing else, so that the answer is the same whoever
takes the turns, and however many at once.

With a budget in seconds, whoever is free gets the next turn, which begins from the best so far.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from placewright.core.arrays import IntArray
from placewright.core.problem import Problem
from placewright.core.solution import Budget, Solution
from placewright.placers.baselines.simple import contiguous_split
from placewright.placers.bases import FOUND_NOTHING, pass_interrupt_on, says_none_exists
from placewright.placers.portfolio.enumeration import ENUMERATION, enumerate_small
from placewright.placers.portfolio.turn import BOUND, LIMITS, PARTS, Takers, Turn, TurnOutcome
from placewright.simulation.bounds.lower import quick_bounds
from placewright.simulation.evaluator import Evaluator

SEARCHES = ""  # the step at which searches get turns between members with a proof
_GO_ON = ("problem-space", "multilevel")  # their next turn goes on where their last one ended
_QUICK_EVALUATIONS = 32  # of each quick member, at least
_TURN_SHARE = 0.05  # of what is left
_TURN_SECONDS = 0.25  # and at least so long
_TURN_EVALUATIONS = 48  # and at least so many
# With few evaluations, the knowledge of the last turn is worth more than a second worker.
_ROUND_EVALUATIONS = 1000  # that are left for each turn of a round of searches
_ROUND_TURNS = 4  # of a round of searches at most
_FORGETS = 0.6  # of what a search gained before its last turn
_EVERY = 4  # turns after which a search gets one whatever it gained
_VERDICT = 3  # worth of a message: that of a solver which says that there is no placement
_LIMITS_SHARE = 0.5  # of what is left, for a first placement that keeps every limit

Step = tuple[str, float]  # a member and its share of what is left


@dataclass(frozen=True)
class PortfolioMembers:
    """The members of a portfolio."""

    # heuristics that run once, with their shares of the seconds that are left
    quick: tuple[Step, ...]
    # members with a proof in their order, `SEARCHES` among them, with their shares of the budget
    # that is left
    steps: tuple[Step, ...]
    searches: tuple[str, ...]  # that take turns


@dataclass(frozen=True)
class Portfolio:
    """A portfolio for one problem."""

    members: PortfolioMembers  # that take turns
    settings: Mapping[str, Mapping[str, str]]  # member -> its settings
    gap: float  # the search stops when value / bound - 1 is at most this

    def search(self, evaluator: Evaluator, rng: np.random.Generator, takers: Takers) -> Solution:
        """Enumerate a small problem; else let members take turns until nothing is left to do.

        Raises:
            BudgetSpent: the budget ended before there was a turn.
            KeyboardInterrupt: a member was interrupted.
        """
        problem = evaluator.problem
        if proven := enumerate_small(problem, evaluator):
            return proven
        if evaluator.budget.is_timed:
            # Measurements take hardware's time, which counts.
            with nullcontext() if evaluator.is_measured else evaluator.untimed():
                evaluate_first(problem, evaluator)
            with evaluator.untimed():
                takers.make_ready()
        if evaluator.bounded_by <= {ENUMERATION}:  # it may have ended among the orders
            for bound in quick_bounds(problem):
                evaluator.offer_bound(bound.value, bound.method)
        schedule = _Schedule(self, evaluator, rng, takers)
        if evaluator.budget.is_timed:
            schedule.run_as_they_come()
        else:
            schedule.run_rounds()
        return schedule.answer()


class _Gains:
    """Recent gain of each search, and the turns that it has waited."""

    def __init__(self, searches: Sequence[str]) -> None:
        self._gains = dict.fromkeys(searches, math.inf)
        self._waited = dict.fromkeys(searches, 0)
        self._lengths = dict.fromkeys(searches, 1.0)
        self._under_way = dict.fromkeys(searches, 0)

    def __bool__(self) -> bool:
        return bool(self._gains)

    def names(self) -> list[str]:
        """Searches that have not ended."""
        return list(self._gains)

    def give(self) -> str | None:
        """The search that gets the next turn: that has waited for long, or gained most lately.

        None if all that may have one have a turn under way.
        """
        free = [name for name in self._gains if name not in _GO_ON or self._under_way[name] == 0]
        if not free:
            return None
        # A second turn at the same time looks for the same gain as the first.
        chosen = max(
            free,
            key=lambda name: (
                self._waited[name] >= _EVERY,
                self._gains[name] / (1 + self._under_way[name]),
                -self._under_way[name],
            ),
        )
        for name in self._gains:
            self._waited[name] = 0 if name == chosen else self._waited[name] + 1
        self._under_way[chosen] += 1
        return chosen

    def length(self, name: str) -> float:
        """Length of this search's turns, as a multiple of the ordinary length."""
        return self._lengths[name]

    def take_back(self, name: str) -> None:
        """Note that a turn has ended, or will not be taken."""
        self._under_way[name] -= 1

    def learn(self, name: str, before: float, outcome: TurnOutcome) -> None:
        """Count what a turn gained over the incumbent's value `before` it."""
        if name not in self._gains:
            return
        if outcome.asked == 0:
            if outcome.is_spent:
                self._lengths[name] *= 2.0  # it did not come to its first question
            else:
                del self._gains[name]  # it has nothing to ask
            return
        if math.isinf(outcome.value):
            gain = 0.0
        else:
            gain = 1.0 if math.isinf(before) else before / max(outcome.value, 1e-300) - 1.0
        known = self._gains[name]
        self._gains[name] = max(0.0, gain) + (0.0 if math.isinf(known) else _FORGETS * known)


class _Schedule:
    """The turns of one search."""

    def __init__(
        self, portfolio: Portfolio, evaluator: Evaluator, rng: np.random.Generator, takers: Takers
    ) -> None:
        self._portfolio, self._evaluator, self._takers = portfolio, evaluator, takers
        self._quick = deque(portfolio.members.quick)
        self._steps = deque(portfolio.members.steps)
        self._gains = _Gains(portfolio.members.searches)
        self._states: dict[str, Any] = {}  # search -> where its last turn ended
        self._seed = int(rng.integers(2**63))
        self._given = 0  # turns so far: each has a seed of its own
        self._last_given = ""  # member of the last turn
        self._looks = 0  # turns of `LIMITS` so far
        self._message, self._worth = "", 0  # the most informative one, and how much it says

    @property
    def is_closed(self) -> bool:
        """True when the gap is as small as was asked for."""
        evaluator = self._evaluator
        if evaluator.is_measured:  # bounds are on the cost table, which a lucky run can undercut
            return False
        value = evaluator.best_value
        return math.isfinite(value) and value <= evaluator.lower_bound * (1.0 + self._portfolio.gap)

    @property
    def _is_over(self) -> bool:
        return self.is_closed or self._is_hopeless or self._evaluator.is_spent

    @property
    def _is_hopeless(self) -> bool:
        """True if a solver says that no placement exists, and nothing contradicts it."""
        return self._worth == _VERDICT and self._evaluator.best is None

    def answer(self) -> Solution:
        """The incumbent; without one, why a method found none."""
        evaluator = self._evaluator
        if evaluator.is_closed:
            return evaluator.solution("optimal", "value equals the lower bound")
        has_one = evaluator.best is not None
        return evaluator.solution(message="" if has_one else self._message or FOUND_NOTHING)

    # In rounds: a budget of evaluations, or none.

    def run_rounds(self) -> None:
        """Quick members, then members with a proof and searches in turn, then searches."""
        while self._quick and not self._is_over:
            size = max(1.0, min(len(self._quick), self._left // _QUICK_EVALUATIONS))
            share = self._left / size
            self._round([(self._quick.popleft()[0], share) for _ in range(int(size))])
        self._look_for_one()
        while self._steps and not self._is_over:
            proofs: list[Step] = []
            while self._steps and self._steps[0][0] != SEARCHES:
                name, share = self._steps.popleft()
                proofs.append((name, share * self._left))
            self._round(proofs)
            if self._steps:
                _, share = self._steps.popleft()
                self._search_rounds(share)
        self._look_for_one()
        if self._evaluator.budget.is_limited:
            self._search_rounds(1.0)

    def _look_for_one(self) -> None:
        """A turn for a first placement that keeps every limit, if there is none yet."""
        if self._evaluator.best is None and not self._is_over:
            self._round([(LIMITS, _LIMITS_SHARE * self._left)])

    @property
    def _left(self) -> float:
        return self._evaluator.remaining_evaluations

    def _search_rounds(self, share: float) -> None:
        """Rounds of searches within a share of the evaluations that are left."""
        if math.isinf(self._left):
            self._round([(name, math.inf) for name in self._gains.names()])
            return
        ends = self._left - math.ceil(share * self._left)
        while self._gains and self._left > ends and not self._is_over:
            size = max(_TURN_EVALUATIONS, math.ceil(_TURN_SHARE * self._left))
            count = min(_ROUND_TURNS, max(1, int(self._left // _ROUND_EVALUATIONS)))
            spare = self._left - ends
            turns: list[Step] = []
            while len(turns) < count and spare >= 1 and (name := self._gains.give()):
                turns.append((name, min(size, spare)))
                spare -= turns[-1][1]
            self._round(turns)

    def _round(self, members: Sequence[Step]) -> None:
        """Turns of members with so many evaluations each; none after one that closes the gap."""
        turns = []
        left = self._left
        for name, most in members:
            if math.isinf(left):
                turns.append(self._turn(name, Budget()))
            elif left >= 1:
                mine = int(min(math.ceil(most), left))
                left -= 0 if name == BOUND else mine  # the bound evaluates nothing
                turns.append(self._turn(name, Budget(evaluations=mine)))
        before = self._evaluator.best_value
        with closing(self._in_order(turns)) as outcomes:
            for turn, outcome in outcomes:
                self._take(turn, outcome, before)
                if self.is_closed or self._is_hopeless:
                    return

    def _in_order(self, turns: Sequence[Turn]) -> Generator[tuple[Turn, TurnOutcome], None, None]:
        """Yield turns and outcomes in the order of the list, whichever turn ends first."""
        ended: dict[int, TurnOutcome] = {}
        at = 0
        with closing(self._takers.run(turns)) as running:
            for turn, outcome in running:
                assert outcome is not None  # a turn without seconds is tried again, not lost
                ended[id(turn)] = outcome
                while at < len(turns) and id(turns[at]) in ended:
                    yield turns[at], ended.pop(id(turns[at]))
                    at += 1

    # As they come: a budget in seconds.

    def run_as_they_come(self) -> None:
        """Give the next turn to whoever is free, until the gap is closed or the budget ends."""
        self._under_way: dict[int, float] = {}  # turn -> value of the incumbent at its begin
        self._reserved_evaluations, self._reserved_core = 0, 0.0
        self._is_proving = False
        self._searching_until: tuple[float, float] | None = None  # evaluations, seconds left
        if self._takers.count > 1:
            self._steps.append((PARTS, 1.0))  # its programs go on with the rest of the budget
        with closing(self._takers.run(self._coming())) as running:
            for turn, outcome in running:
                self._end(turn, outcome)
                if self.is_closed or self._is_hopeless:
                    return

    def _coming(self) -> Iterator[Turn | None]:
        """Yield the next turn, or None while it depends on the end of another turn."""
        while not self._is_over:
            turn = self._next_turn()
            if turn is None and not self._under_way:
                return
            if turn is not None:
                self._under_way[id(turn)] = self._evaluator.best_value
                self._reserved_evaluations += turn.budget.evaluations or 0
                self._reserved_core += turn.budget.core_seconds or 0.0
            yield turn

    def _end(self, turn: Turn, outcome: TurnOutcome | None) -> None:
        """Account for a turn that has ended, or was lost with its worker."""
        before = self._under_way.pop(id(turn))
        self._reserved_evaluations -= turn.budget.evaluations or 0
        self._reserved_core -= turn.budget.core_seconds or 0.0
        if turn.member in dict(self._portfolio.members.steps):
            self._is_proving = False
        if outcome is not None:
            self._take(turn, outcome, before)
            return
        # Its use is unknown, so all of its budget counts: searches that are always lost must end.
        self._evaluator.count_core_seconds(turn.budget.core_seconds or 0.0)
        if turn.member in self._portfolio.members.searches:
            self._gains.take_back(turn.member)

    @property
    def _free_evaluations(self) -> float:
        """Evaluations left, less those reserved for turns under way with a budget of their own."""
        reserved = 0 if self._takers.is_joint else self._reserved_evaluations
        return self._evaluator.remaining_evaluations - reserved

    @property
    def _free_seconds(self) -> float:
        return self._evaluator.remaining_seconds_beside(
            0.0 if self._takers.is_joint else self._reserved_core
        )

    def _next_turn(self) -> Turn | None:
        evaluations, seconds = self._free_evaluations, self._free_seconds
        if evaluations < 1 or seconds <= 0:
            return None
        if self._quick:
            name, share = self._quick.popleft()
            return self._limited_turn(name, evaluations / self._takers.count, share * seconds)
        if self._evaluator.best is None and self._last_given != LIMITS:
            return self._limited_turn(LIMITS, _LIMITS_SHARE * evaluations, _LIMITS_SHARE * seconds)
        if not self._is_proving and (step := self._next_proof(evaluations, seconds)):
            name, share = step
            self._is_proving = True
            return self._limited_turn(name, share * evaluations, share * seconds)
        if (search := self._gains.give()) is None:
            return None
        most = max(_TURN_EVALUATIONS, _TURN_SHARE * evaluations)
        most_seconds = self._gains.length(search) * max(_TURN_SECONDS, _TURN_SHARE * seconds)
        if self._searching_until is not None:
            evaluations -= self._searching_until[0]
            seconds -= self._searching_until[1]
        return self._limited_turn(search, min(most, evaluations), min(most_seconds, seconds))

    def _next_proof(self, evaluations: float, seconds: float) -> Step | None:
        """The next member with a proof; None while searches have a step for themselves.

        If several turns are taken at once, searches run beside the proofs and need no such step.
        """
        if (until := self._searching_until) is not None:
            if self._gains and evaluations > until[0] and seconds > until[1]:
                return None
            self._searching_until = None
        while self._steps:
            name, share = self._steps.popleft()
            if name != SEARCHES:
                return name, share
            if self._takers.count == 1 and self._gains:
                rest = 1.0 - share
                # No number of evaluations ends a step if their number has no limit.
                self._searching_until = (
                    -math.inf if math.isinf(evaluations) else rest * evaluations,
                    rest * seconds,
                )
                return None
        return None

    def _limited_turn(self, member: str, evaluations: float, seconds: float) -> Turn:
        counts_core = self._evaluator.budget.core_seconds is not None
        most = max(seconds, 1e-3)
        queries = None if math.isinf(evaluations) else max(1, math.ceil(evaluations))
        return self._turn(member, Budget(most, queries, most if counts_core else None))

    # Both.

    def _turn(self, member: str, budget: Budget) -> Turn:
        """A turn that begins from what is known now."""
        self._given, self._last_given = self._given + 1, member
        evaluator, settings = self._evaluator, self._portfolio.settings.get(member, {})
        start, value = evaluator.incumbent
        if member == LIMITS:  # the first search is that of every portfolio, later ones are others
            settings, self._looks = {"seed": str(self._looks)}, self._looks + 1
        return Turn(
            member=member,
            seed=(self._seed, self._given),
            budget=budget,
            settings=settings,
            start=start,
            value=value,
            lower_bound=evaluator.lower_bound,
            bound_method=evaluator.bound_method,
            state=self._states.get(member),
        )

    def _take(self, turn: Turn, outcome: TurnOutcome, before: float) -> None:
        """Merge what a turn found.

        Raises:
            KeyboardInterrupt: the turn was interrupted, and so is the search.
        """
        evaluator, found = self._evaluator, outcome.solution
        if not self._takers.is_joint:
            evaluator.take_in(found, is_elsewhere=self._takers.is_elsewhere)
        if turn.member == BOUND:
            evaluator.bounded_by.add(BOUND)  # that it is not solved again, whatever it gave
        pass_interrupt_on(found)
        if turn.member in self._portfolio.members.searches:
            self._gains.take_back(turn.member)
            self._gains.learn(turn.member, before, outcome)
            self._states[turn.member] = outcome.state
        worth = self._worth_of(turn.member, found.message)
        if worth >= self._worth:
            self._message, self._worth = found.message, worth

    def _worth_of(self, member: str, message: str) -> int:
        """Rank of a message by what it says about the problem: 0 for nothing.

        The verdict of a solver says most, then the placement that was closest to all limits. A
        simple method's failure is no word about the problem.
        """
        if not message or any(member == name for name, _ in self._portfolio.members.quick):
            return 0
        if says_none_exists(message):
            return _VERDICT
        return 2 if member == LIMITS else 1


def evaluate_first(problem: Problem, evaluator: Evaluator) -> None:
    """Value even splits and single devices until one fits, if there is no incumbent yet.

    The simulator's kernel is the only one that this compiles.
    """
    if evaluator.best is not None:
        return
    for wish in _wishes(problem):
        if evaluator.is_spent or math.isfinite(evaluator.evaluate(_supported(problem, wish))):
            return


def _wishes(problem: Problem) -> Iterator[IntArray]:
    """Yield the fastest device, splits by speed and by memory, then every other device."""
    seconds = np.where(problem.allowed, problem.costs.seconds, 0.0)
    total = seconds.sum(axis=0) + 1e300 * (~problem.allowed).sum(axis=0)
    fastest_first = np.argsort(total, kind="stable").tolist()
    yield np.full(problem.n_units, fastest_first[0], dtype=np.int64)
    yield contiguous_split(problem, "speed")
    yield contiguous_split(problem, "memory")
    for device in fastest_first[1:]:
        yield np.full(problem.n_units, device, dtype=np.int64)


def _supported(problem: Problem, wish: IntArray) -> IntArray:
    """Give each class its first unit's wish, or its first device if the wish is not allowed."""
    classes, allowed = problem.colocation, problem.allowed_by_class
    first = np.empty(classes.n_groups, dtype=np.int64)
    first[classes.group_of[::-1]] = np.arange(problem.n_units)[::-1]
    device_of_class = wish[first]
    may_stay = allowed[np.arange(classes.n_groups), device_of_class]
    device_of_class = np.where(may_stay, device_of_class, np.argmax(allowed, axis=1))
    return np.asarray(device_of_class[classes.group_of], dtype=np.int64)

"""The search of `auto` on several workers: its members' turns are tasks.

With a budget of evaluations alone, turns come in rounds of a fixed number, whoever takes them: each
turn begins from what was known when its round began, and what it found is taken in the order of the
turns. So the answer is the same for any number of workers. With seconds, a worker that is free gets
the next turn at once, which begins from the best that is known by then.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from placewright.core.arrays import IntArray
from placewright.core.problem import Problem
from placewright.core.solution import Budget, Solution, Stop
from placewright.errors import BudgetSpent
from placewright.placers.portfolio.auto import Auto
from placewright.placers.portfolio.enumeration import enumerate_small
from placewright.placers.portfolio.first import evaluate_first
from placewright.placers.portfolio.kernels import make_ready
from placewright.placers.portfolio.turn import Turn, take_turn
from placewright.session.joint_incumbent import FEWEST_QUERIES, JointIncumbent
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.feasibility import prove_infeasible
from placewright.workers.here import ThisProcess
from placewright.workers.interface import Workers
from placewright.workers.tasks import Shared, Task

_TURNS = 8  # of a round, however many workers there are
_LEAST_QUERIES, _LEAST_SECONDS = 48, 1.0  # of a search's turn
_SHARE = 0.05  # of what is left, for a search's turn
_PROOF_QUERIES = 0.1  # of what is left, for each method with a proof
_PROOF_SECONDS = 0.4  # of what is left, for each method with a proof
_QUICK_SECONDS = 0.1  # of what is left, for each quick method
_PATIENCE = 5.0  # seconds after its own after which a turn is given up
_FORGETS = 0.6  # of what a search gained before its last turns


@dataclass(frozen=True)
class SpreadAuto:
    """`auto` with workers for its members; given to `session.search.search` as a placer is.

    Attributes:
        auto: its settings.
        workers: that take the turns.
    """

    auto: Auto
    workers: Workers

    @property
    def name(self) -> str:
        """The algorithm's."""
        return self.auto.name

    def search(
        self, problem: Problem, budget: Budget, seed: int, start: IntArray | None = None
    ) -> Solution:
        """Search with the members of `auto`.

        Args:
            problem: what is placed.
            budget: of all members together.
            seed: of every random choice.
            start: a placement that is evaluated first, shape (n_units,).

        Returns:
            As of `session.search.search`; Ctrl-C ends it with the incumbent.
        """
        if proof := prove_infeasible(problem):
            return Evaluator(problem, budget).solution("infeasible", proof)
        first = _enumerated(problem, budget)
        if first.status in ("optimal", "infeasible") or first.stop is not Stop.DONE:
            return first
        known = [first]
        if start is not None:
            known.append(_evaluated(problem, start))
        if budget.is_timed:
            known.append(_ready(problem, self.workers))
        left = None if budget.seconds is None else max(1e-3, budget.seconds - first.seconds)
        is_apart = not isinstance(self.workers, ThisProcess)
        limit = replace(budget, seconds=left)
        joint = JointIncumbent(problem, limit, self.auto.gap, is_apart=is_apart)
        joint.core_elsewhere = first.core_seconds
        spread = _Spread(problem, self.auto, joint, seed, self.workers)
        try:
            for one in known:  # found before the clock started
                joint.take(replace(one, core_seconds=0.0))
            if budget.is_timed:
                spread.as_they_come()
            else:
                spread.in_rounds()
        except KeyboardInterrupt:
            return joint.solution("interrupted", Stop.INTERRUPTED)
        return joint.solution()


def _enumerated(problem: Problem, budget: Budget) -> Solution:
    """What no worker is asked for, because it is done before a task would reach one."""
    evaluator = Evaluator(problem, budget)
    try:
        return enumerate_small(problem, evaluator) or evaluator.solution()
    except BudgetSpent:
        return evaluator.solution()
    except KeyboardInterrupt:
        return evaluator.solution(message="interrupted", stop=Stop.INTERRUPTED)


def _evaluated(problem: Problem, start: IntArray) -> Solution:
    evaluator = Evaluator(problem)
    evaluator.evaluate(start)
    return evaluator.solution()


def _ready(problem: Problem, workers: Workers) -> Solution:
    """A first placement, and kernels that all workers have read, before the clock starts."""
    evaluator = Evaluator(problem)
    evaluate_first(problem, evaluator)
    arguments = (problem.objective, problem.execution_model)
    workers.results(Task(make_ready, arguments, label="kernels") for _ in range(workers.count))
    return evaluator.solution()


class _Spread:
    """The turns of one search."""

    def __init__(
        self, problem: Problem, auto: Auto, joint: JointIncumbent, seed: int, workers: Workers
    ) -> None:
        self._auto, self._joint, self._seed, self._workers = auto, joint, seed, workers
        self._members = auto.members(problem)
        self._shared = Shared(problem)
        self._gains = dict.fromkeys(self._members.searches, math.inf)
        self._given = 0  # turns so far: each has a seed of its own

    def in_rounds(self) -> None:
        """Quick methods, those with a proof, then searches to the end, each time all at once."""
        joint = self._joint
        quick = self._members.quick
        self._round(quick, max(1.0, joint.queries_left / max(1, len(quick))))
        if not joint.is_closed:
            self._round(self._members.proofs, max(2.0, _PROOF_QUERIES * joint.queries_left))
        rounds = 0
        while self._gains and joint.queries_left >= FEWEST_QUERIES and not joint.is_closed:
            if math.isinf(joint.queries_left) and rounds == self._auto.descents:
                return
            rounds += 1
            self._round_of_searches()

    def _round_of_searches(self) -> None:
        joint = self._joint
        before = joint.value
        members = _by_gain(self._gains, _TURNS)
        share = 0.0 if math.isinf(joint.queries_left) else _SHARE * joint.queries_left
        found = self._round(members, max(_LEAST_QUERIES, math.ceil(share)))
        for name in list(self._gains):
            mine = [one for member, one in found if member == name]
            if mine and all(one.evaluations <= 1 for one in mine):
                del self._gains[name]  # it has nothing to ask
            elif mine:
                best = min(one.value for one in mine)
                self._gains[name] = _gain(self._gains[name], before, best)

    def _round(self, members: Sequence[str], queries: float) -> list[tuple[str, Solution]]:
        """Turns of members, with as many queries each while there are any; what each found."""
        left, turns = self._joint.queries_left, []
        for member in members:
            mine = min(queries if math.isinf(queries) else int(queries), left)
            if mine < 1:
                break
            left -= mine
            limit = None if math.isinf(mine) else int(mine)
            turns.append(self._turn(member, Budget(evaluations=limit)))
        found = self._workers.results(self._task(turn) for turn in turns)
        for turn, one in zip(turns, found, strict=True):
            self._take(turn, one)
        return [(turn.member, one) for turn, one in zip(turns, found, strict=True)]

    def as_they_come(self) -> None:
        """A free worker gets the next turn; one at a time does what has a proof."""
        quick = list(reversed(self._members.quick))
        proofs = list(reversed(self._members.proofs))
        self._proving, self._under_way, self._reserved = False, 0, 0
        for done in self._workers.run(self._coming(quick, proofs)):
            self._under_way -= 1
            turn: Turn = done.task.arguments[0]
            self._reserved -= turn.budget.evaluations or 0
            self._joint.reserved -= turn.budget.core_seconds or 0.0
            if turn.member in self._members.proofs:
                self._proving = False
            if done.lost:
                continue
            before = self._joint.value
            self._take(turn, done.result)
            if turn.member in self._gains:
                known = self._gains[turn.member]
                self._gains[turn.member] = _gain(known, before, done.result.value)
                if done.result.evaluations <= 1 and done.result.stop is Stop.DONE:
                    del self._gains[turn.member]
            if self._joint.is_closed:
                return  # what is under way is ended

    def _coming(self, quick: list[str], proofs: list[str]) -> Iterator[Task | None]:
        joint, turns = self._joint, 0
        while not joint.is_out_of_time and joint.queries_left >= 1 and not joint.is_closed:
            left, queries = joint.seconds_left, self._queries()
            if queries == 0 or left <= 0:  # others have the rest
                yield None
                continue
            if quick:
                member, seconds = quick.pop(), max(_LEAST_SECONDS, _QUICK_SECONDS * left)
            elif proofs and not self._proving:
                member, seconds = proofs.pop(), max(_LEAST_SECONDS, _PROOF_SECONDS * left)
                self._proving = True
            elif self._gains:
                turns += 1
                member = _by_gain(self._gains, _TURNS)[turns % _TURNS]
                seconds = max(_LEAST_SECONDS, _SHARE * left)
            elif self._under_way:
                yield None
                continue
            else:
                return
            most = min(seconds, left)
            budget = Budget(most, queries, most if joint.counts_core_seconds else None)
            joint.reserved += budget.core_seconds or 0.0
            self._under_way += 1
            self._reserved += queries or 0
            yield self._task(self._turn(member, budget))

    def _queries(self) -> int | None:
        """Of a turn, where there is a limit beside the seconds: a part of what nobody has yet."""
        left = self._joint.queries_left - self._reserved
        if math.isinf(left):
            return None
        return int(max(min(left, _LEAST_QUERIES), left // max(1, self._workers.count)))

    def _take(self, turn: Turn, found: Solution) -> None:
        """Take in what a turn found; a quick method's failure is no word about the problem."""
        is_quick = turn.member in self._members.quick
        self._joint.take(replace(found, message="") if is_quick else found)

    def _turn(self, member: str, budget: Budget) -> Turn:
        self._given += 1
        settings = self._auto.settings_of(member)
        return self._joint.turn(member, (self._seed, self._given), budget, settings)

    def _task(self, turn: Turn) -> Task:
        seconds = turn.budget.seconds
        if seconds is None:
            return Task(take_turn, (turn,), self._shared, label=turn.member)
        patience = seconds + _PATIENCE
        return Task(
            take_turn, (turn,), self._shared, turn.member, patience, tries=1, may_be_lost=True
        )


def _by_gain(gains: dict[str, float], turns: int) -> list[str]:
    """Who gets the turns of a round: the search that gained most every second one, and all."""
    order = sorted(gains, key=lambda name: -gains[name])  # ties stay in their order
    return [order[0] if at % 2 == 0 else order[at // 2 % len(order)] for at in range(turns)]


def _gain(known: float, before: float, value: float) -> float:
    """What a search gained in its last turn, and a part of what it had gained before."""
    gain = 1.0 if math.isinf(before) else max(0.0, before / max(value, 1e-300) - 1.0)
    return gain + (0.0 if math.isinf(known) else _FORGETS * known)

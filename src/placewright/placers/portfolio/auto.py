"""The default placer: a portfolio of quick methods, methods with a proof, and searches.

A problem of few placements is enumerated before all else, which mostly ends with a proof. Then
members take turns (see `schedule`): quick methods once each, and none may use up the seconds that
others need; methods with a proof within shares of the rest; searches with all that is left. Each
turn begins from the best placement and the best bound so far.
"""

from __future__ import annotations

import contextlib
import math
import queue
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from placewright.core.execution_models import Event, Sequential, Subgraph, SubgraphIP
from placewright.core.problem import Problem, timed_objective
from placewright.core.solution import Solution
from placewright.placers.bases import (
    ForEveryProblem,
    anytime,
    require_counts,
    require_numbers,
    require_one_of,
)
from placewright.placers.portfolio.kernels import make_ready
from placewright.placers.portfolio.schedule import SEARCHES, Portfolio, PortfolioMembers
from placewright.placers.portfolio.turn import (
    BOUND,
    PARTS,
    Takers,
    Turn,
    TurnOutcome,
    Turns,
    TurnTaker,
)
from placewright.simulation.evaluator import CLOSED, Evaluator

_LOOKS_EVERY = 0.1  # seconds, for signals
_ENDS_WITHIN = 1.0  # seconds that turns get to end when nobody needs them any more


class InTurn:
    """Takes one turn after the other, each with an evaluator of its own, as a worker does."""

    count, is_joint, is_elsewhere = 1, False, False

    def __init__(self, evaluator: Evaluator) -> None:
        self._evaluator, self._taker = evaluator, TurnTaker(evaluator.problem, evaluator)

    def make_ready(self) -> None:
        """See `Takers`."""
        make_ready(self._taker.problem.objective, self._taker.problem.execution_model)

    def run(self, turns: Iterable[Turn | None]) -> Turns:
        """See `Takers`."""
        for turn in turns:
            if turn is None:
                return
            yield turn, self.take(turn)

    def take(self, turn: Turn) -> TurnOutcome:
        """Take one turn."""
        return self._taker.take(turn)


class Lanes(InTurn):
    """Takes turns with the portfolio's own evaluator, with several at once in threads.

    Args:
        count: turns at once, >= 1; a single one needs no thread.
    """

    is_joint = True

    def __init__(self, evaluator: Evaluator, count: int) -> None:
        super().__init__(evaluator)
        self.count = count

    def run(self, turns: Iterable[Turn | None]) -> Turns:
        """See `Takers`.

        Raises:
            Exception: a member raised it.
        """
        return super().run(turns) if self.count == 1 else self._run_in_threads(iter(turns))

    def take(self, turn: Turn) -> TurnOutcome:
        """Take one turn beside others."""
        evaluator, budget = self._evaluator.beside(), turn.budget
        most = math.inf if budget.evaluations is None else budget.evaluations
        seconds = math.inf if budget.seconds is None else budget.seconds
        with evaluator.at_most(most, seconds):
            return self._taker.take_with(turn, evaluator)

    def _run_in_threads(self, turns: Iterator[Turn | None]) -> Turns:
        ended: queue.SimpleQueue[_Lane] = queue.SimpleQueue()
        busy: list[_Lane] = []
        try:
            while True:
                while len(busy) < self.count:
                    turn = next(turns, None)
                    if turn is None:
                        break
                    busy.append(_Lane(self, turn, ended))
                    busy[-1].start()
                if not busy:
                    return
                lane = _next_of(ended)
                busy.remove(lane)
                yield lane.turn, lane.result()
        except (Exception, GeneratorExit):
            self._evaluator.stop()
            for lane in busy:
                lane.join(_ENDS_WITHIN)
            raise
        except BaseException:
            self._evaluator.stop()  # an interrupt waits for nobody
            raise


def _next_of(ended: queue.SimpleQueue[_Lane]) -> _Lane:
    """Wait for a lane to end; a signal ends the wait, whichever thread the system gives it to."""
    while True:
        with contextlib.suppress(queue.Empty):
            return ended.get(timeout=_LOOKS_EVERY)


class _Lane(threading.Thread):
    """A thread that takes one turn."""

    def __init__(self, lanes: Lanes, turn: Turn, ended: queue.SimpleQueue[_Lane]) -> None:
        super().__init__(daemon=True)
        self.turn = turn
        self._lanes, self._ended = lanes, ended
        self._outcome: TurnOutcome | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._outcome = self._lanes.take(self.turn)
        except BaseException as error:  # raised again in the thread that waits
            self._error = error
        finally:
            self._ended.put(self)

    def result(self) -> TurnOutcome | None:
        if self._error is not None:
            raise self._error
        return self._outcome


_ANY = 10**9
# Name -> share of the remaining seconds at most, most units that it is tried on.
_LISTS = {
    "heft": (0.3, _ANY),
    "m-etf": (0.3, _ANY),
    "peft": (0.2, 300_000),
    "cpop": (0.1, 300_000),
    "m-topo": (0.1, _ANY),
    "m-sct": (0.2, 2000),  # its linear program takes long
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
_PIECES = "pieces"  # latency of atomic subgraphs
_SUMS = "sums"  # latency of units that run one after the other
# Before all exact methods. Without a limit in seconds the relaxation has none, so that it repeats.
_PROOFS = {BOUND: (0.2, _ANY), PARTS: (0.3, _ANY)}
# Name -> share of the remaining budget, most units that it is tried on.
_EXACT = {
    "latency": {"greedy": (0.1, 5000), SEARCHES: (0.4, _ANY), "cp-sat": (0.5, 250)},
    "training": {SEARCHES: (0.5, _ANY), "cp-sat": (0.5, 250)},
    _PIECES: {
        "greedy": (0.1, 5000),
        SEARCHES: (0.3, _ANY),
        "latency-ip": (0.7, 1000),
        "cp-sat": (0.9, 1000),
    },
    _SUMS: {"sequential-ip": (0.7, _ANY), SEARCHES: (0.5, _ANY)},
    "throughput": {
        "ideal-dp": (0.3, 2000),
        SEARCHES: (0.3, _ANY),
        "cp-sat": (0.4, 5000),
        "maxload-ip": (0.9, 5000),
    },
}
# Name -> most units that it is tried on.
_SEARCHES = {
    "latency": {"problem-space": _ANY, "local-search": _ANY, "multilevel": 200_000},
    "training": {"problem-space": _ANY, "multilevel": 200_000, "local-search": _ANY},
    "throughput": {"local-search": _ANY, "multilevel": 200_000},
    _SUMS: {"local-search": 20_000},
}
_BATCHES = 10  # of `multilevel` for each descent of local search
# Of `cp-sat` if the budget has no seconds, in the solver's own measure. For the program of a
# schedule that is up to twenty seconds, as long as all other members take together.
_SCHEDULE_WORK = "1"


@dataclass(frozen=True)
class Auto(ForEveryProblem):
    """Runs its members in turns until the gap is closed or the budget ends.

    Attributes:
        gap: stop when value / bound - 1 is at most this, >= 0.
        descents: rounds of each search if the budget has no limit; `multilevel` takes ten times as
            many batches.
        at_once: turns that are taken at the same time in this process, 1 or 2, if the budget has no
            evaluations and nothing is measured; with 2, searches run beside the methods with a
            proof.
    """

    name: ClassVar[str] = "auto"
    paper: ClassVar[str] = "portfolio"

    gap: float = CLOSED
    descents: int = 50
    at_once: int = 2

    def __post_init__(self) -> None:
        require_numbers("auto", self, ">= 0", "gap")
        require_counts("auto", self, "descents")
        require_one_of("auto", self, (1, 2), "at_once")

    def members(self, problem: Problem) -> PortfolioMembers:
        """The members that suit the size of a problem."""
        size, objective = problem.n_units, timed_objective(problem.objective)
        model = problem.execution_model
        special = _PIECES if isinstance(model, Subgraph | SubgraphIP) else None
        special = _SUMS if isinstance(model, Sequential) else special
        quick, searches = _QUICK[objective], _SEARCHES[objective]
        if special == _SUMS:
            quick, searches = _BASELINES, _SEARCHES[_SUMS]

        def fitting(table: Mapping[str, tuple[float, int]]) -> tuple[tuple[str, float], ...]:
            return tuple((name, share) for name, (share, most) in table.items() if size <= most)

        steps = (*fitting(_PROOFS), *fitting(_EXACT[special or objective]))
        return PortfolioMembers(
            quick=fitting(quick),
            steps=tuple(step for step in steps if step[0] != PARTS or not problem.charges),
            searches=tuple(name for name, most in searches.items() if size <= most),
        )

    def settings_of(self, name: str) -> dict[str, str]:
        """Settings of a member, which end a search if the budget has no limit."""
        return {
            "local-search": {"descents": str(self.descents)},
            "problem-space": {"rounds": str(self.descents)},
            "multilevel": {"batches": str(_BATCHES * self.descents)},
        }.get(name, {})

    @anytime
    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        """Search with turns that this process takes, in two threads if only time is limited."""
        budget = evaluator.budget
        if not budget.is_timed:
            return self.place_with(InTurn(evaluator), problem, evaluator, rng)
        shares_time = budget.evaluations is None and not evaluator.is_measured
        lanes = Lanes(evaluator, self.at_once if shares_time else 1)
        return self.place_with(lanes, problem, evaluator, rng)

    def place_with(
        self, takers: Takers, problem: Problem, evaluator: Evaluator, rng: np.random.Generator
    ) -> Solution:
        """Search with whoever takes the members' turns; see `schedule.Portfolio.search`."""
        members = self.members(problem)
        settings = {name: self.settings_of(name) for name in members.searches}
        if isinstance(problem.execution_model, Event):
            settings["cp-sat"] = {"deterministic_seconds": _SCHEDULE_WORK}
        return Portfolio(members, settings, self.gap).search(evaluator, rng, takers)

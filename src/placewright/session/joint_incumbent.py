"""What all turns of a search have found together."""

from __future__ import annotations

import math
import time

from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.core.solution import Budget, HistoryPoint, Solution, Stop
from placewright.placers.anytime import FOUND_NOTHING
from placewright.placers.portfolio.turn import BOUND, Turn
from placewright.simulation.bounds import quick_bounds
from placewright.simulation.evaluator import CLOSED

FEWEST_QUERIES = 2  # of a turn, which values the incumbent first


class JointIncumbent:
    """Incumbent, bound, counts and clock of a search whose turns are taken by workers.

    Args:
        problem: what is placed.
        budget: of all turns together.
        gap: at which the search is done.
        is_apart: turns are taken by other processes, whose processor seconds are their own.

    Attributes:
        evaluations: queries of all turns that were taken in.
        value: of the incumbent; inf without one.
        reserved: processor seconds of turns that are under way.
        core_elsewhere: processor seconds of turns in other processes, and before this search.
    """

    def __init__(
        self, problem: Problem, budget: Budget, gap: float, *, is_apart: bool = True
    ) -> None:
        self._budget, self._gap, self._is_apart = budget, gap, is_apart
        self.core_elsewhere, self.reserved = 0.0, 0.0
        self._best: Placement | None = None
        self._bound, self._method = 0.0, ""
        self._history: list[HistoryPoint] = []
        self._message = ""
        self.value, self.evaluations = math.inf, 0
        for bound in quick_bounds(problem):
            self._offer(bound.value, bound.method)
        self._began, self._core_began = time.perf_counter(), time.process_time()

    @property
    def queries_left(self) -> float:
        """inf without a limit."""
        limit = self._budget.evaluations
        return math.inf if limit is None else limit - self.evaluations

    @property
    def seconds(self) -> float:
        """Since the search began."""
        return time.perf_counter() - self._began

    @property
    def core_seconds(self) -> float:
        """Processor seconds of this process since the search began, and of turns elsewhere."""
        return time.process_time() - self._core_began + self.core_elsewhere

    @property
    def is_out_of_time(self) -> bool:
        """True where a clock has ended the search."""
        return self._wall_left <= 0 or self._core_left <= 0

    @property
    def counts_core_seconds(self) -> bool:
        """True where the budget limits them."""
        return self._budget.core_seconds is not None

    @property
    def seconds_left(self) -> float:
        """By both clocks, without what is reserved; inf without a limit of either."""
        return min(self._wall_left, self._core_left - self.reserved)

    @property
    def _wall_left(self) -> float:
        limit = self._budget.seconds
        return math.inf if limit is None else limit - self.seconds

    @property
    def _core_left(self) -> float:
        limit = self._budget.core_seconds
        return math.inf if limit is None else limit - self.core_seconds

    @property
    def is_closed(self) -> bool:
        """True when the gap is as small as was asked for."""
        return math.isfinite(self.value) and self.value <= self._bound * (1.0 + self._gap)

    def turn(
        self, member: str, seed: tuple[int, ...], budget: Budget, settings: dict[str, str]
    ) -> Turn:
        """A turn that begins from what is known now."""
        asks = member != BOUND and (budget.evaluations is None or budget.evaluations > 1)
        start = self._best if asks else None
        return Turn(member, seed, budget, settings, start, self._bound, self._method)

    def take(self, found: Solution) -> None:
        """What a turn has found.

        Raises:
            KeyboardInterrupt: the turn was interrupted, and so is the search.
        """
        for point in found.history:
            if point.value < self.value:
                self.value = point.value
                count = self.evaluations + point.evaluations
                bound = self._bound or None
                self._history.append(HistoryPoint(count, self.seconds, point.value, bound))
                self._best = found.placement
        self.evaluations += found.evaluations
        self.core_elsewhere += found.core_seconds if self._is_apart else 0.0
        if math.isfinite(found.lower_bound):
            self._offer(found.lower_bound, found.bound_method)
        self._message = found.message or self._message
        if found.stop is Stop.INTERRUPTED:
            raise KeyboardInterrupt

    def solution(self, message: str = "", stop: Stop | None = None) -> Solution:
        """What is known, as a solution; `stop` as of `Evaluator.solution`."""
        found = self._best is not None
        closed = found and self.value <= self._bound * (1.0 + CLOSED)
        return Solution(
            placement=self._best,
            value=self.value,
            status="optimal" if closed else "feasible" if found else "unknown",
            lower_bound=min(self._bound, self.value),
            bound_method=self._method,
            evaluations=self.evaluations,
            seconds=self.seconds,
            core_seconds=self.core_seconds,
            history=tuple(self._history),
            message=message or ("" if found else self._message or FOUND_NOTHING),
            stop=stop or self._stop(closed),
        )

    def _stop(self, is_closed: bool) -> Stop:
        if is_closed:
            return Stop.PROVEN
        if self.queries_left < FEWEST_QUERIES:
            return Stop.EVALUATIONS
        if self._wall_left <= 0:
            return Stop.SECONDS
        return Stop.CORE_SECONDS if self._core_left <= 0 else Stop.DONE

    def _offer(self, bound: float, method: str) -> None:
        if bound > self._bound:
            self._bound, self._method = bound, method

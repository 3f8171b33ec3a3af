"""Lanes of a portfolio: searches of this process, in turn or several at once in threads."""

from __future__ import annotations

import contextlib
import math
import queue
import threading
from collections.abc import Iterable, Iterator

from placewright.placers.portfolio.kernels import make_ready
from placewright.placers.portfolio.turn import Turn, TurnOutcome, Turns, TurnTaker
from placewright.simulation.evaluator import Evaluator

_LOOKS_EVERY = 0.1  # seconds, for signals
_ENDS_WITHIN = 1.0  # seconds that turns get to end when nobody needs them any more


class InTurn:
    """Takes one turn after the other, each with an evaluator of its own, as a worker does."""

    count, is_joint, is_elsewhere = 1, False, False

    def __init__(self, evaluator: Evaluator) -> None:
        self._taker = TurnTaker(evaluator.problem, evaluator)

    def make_ready(self) -> None:
        """See `Takers`."""
        make_ready(self._taker.problem.objective, self._taker.problem.execution_model)

    def run(self, turns: Iterable[Turn | None]) -> Turns:
        """See `Takers`."""
        for turn in turns:
            if turn is None:
                return
            yield turn, self._taker.take(turn)


class Lanes:
    """Takes turns with the portfolio's own evaluator, with several at once in threads.

    Args:
        count: turns at once, >= 1; a single one needs no thread.
    """

    is_joint, is_elsewhere = True, False

    def __init__(self, evaluator: Evaluator, count: int) -> None:
        self._evaluator, self.count = evaluator, count
        self._taker = TurnTaker(evaluator.problem, evaluator)

    def make_ready(self) -> None:
        """See `Takers`."""
        make_ready(self._taker.problem.objective, self._taker.problem.execution_model)

    def run(self, turns: Iterable[Turn | None]) -> Turns:
        """See `Takers`.

        Raises:
            Exception: a member raised it.
        """
        if self.count > 1:
            yield from self._run_in_threads(iter(turns))
            return
        for turn in turns:
            if turn is None:
                return
            yield turn, self._take(turn)

    def _take(self, turn: Turn) -> TurnOutcome:
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
        except GeneratorExit:
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
            self._outcome = self._lanes._take(self.turn)
        except BaseException as error:  # raised again in the thread that waits
            self._error = error
        finally:
            self._ended.put(self)

    def result(self) -> TurnOutcome | None:
        if self._error is not None:
            raise self._error
        return self._outcome

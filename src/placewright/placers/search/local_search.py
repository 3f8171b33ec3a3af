"""Iterated local search: descents over moves of classes, runs and branches, kicks, and orders.

H. R. Lourenco, O. C. Martin, T. Stuetzle, "Iterated Local Search", Handbook of Metaheuristics,
2003. A descent evaluates random neighbours in batches and takes the best of a batch when it is
better; after `patience` batches without one it tries shifted orders, then kicks the placement with
random block moves. It accepts a worse local optimum with a probability that falls with its
excess (`temperature` of the incumbent's value), and returns to the incumbent after `restart` kicks
without an improvement.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from placewright.core.arrays import IntArray
from placewright.core.execution_models import Event
from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.placers.baselines.simple import (
    at_once,
    contiguous_split,
    random_placements,
)
from placewright.placers.bases import (
    ForEveryProblem,
    anytime,
    pass_interrupt_on,
    require_counts,
    require_numbers,
)
from placewright.placers.legal import with_fewer_segments
from placewright.placers.registry import make_placer
from placewright.placers.repair import repaired
from placewright.placers.search.neighbourhood import Moves, moves_of, order_by_priority, shifted
from placewright.placers.search.within_limits import look_for_first
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.ranks import upward_ranks

_LISTS = ("m-etf", "heft", "peft")  # cheapest first
_LISTS_SHARE = 0.1  # of the remaining seconds: after a longer list schedule no other is tried


@dataclass(frozen=True)
class LocalSearch(ForEveryProblem):
    """Starts from the best list schedule or baseline, or from the evaluator's incumbent.

    Attributes:
        batch: neighbours per call to the evaluator.
        patience: batches without improvement that end a descent.
        kick: block moves between descents, at most.
        temperature: relative excess over the incumbent that is accepted with probability 1/e.
        restart: descents without a new incumbent before the search returns to it.
        descents: descents if the budget has no limit.
    """

    name: ClassVar[str] = "local-search"
    paper: ClassVar[str] = "Lourenco et al., 2003"

    batch: int = 16
    patience: int = 12
    kick: int = 3
    temperature: float = 0.005
    restart: int = 20
    descents: int = 100

    def __post_init__(self) -> None:
        counts = ("batch", "patience", "kick", "restart", "descents")
        require_counts("local-search", self, *counts)
        require_numbers("local-search", self, ">= 0", "temperature")

    @anytime
    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        """Search until the budget ends, the gap is closed, or `descents` without a budget."""
        if evaluator.best is None:
            _evaluate_starts(problem, evaluator, rng)
            look_for_first(evaluator)
        moves = moves_of(problem)  # after the starts: it takes a second for thousands of units
        has_limit = evaluator.budget.is_limited
        current, value = _incumbent(problem, evaluator, rng)
        stale = done = 0
        while not moves.is_empty and (has_limit or done < self.descents):
            known = evaluator.best_value
            optimum, reached = self._descended(evaluator, moves, (current, value), rng)
            self._try_orders(problem, evaluator, optimum, reached, rng)
            if evaluator.is_closed:
                return evaluator.solution("optimal", "value equals the lower bound")
            stale = 0 if evaluator.best_value < known else stale + 1
            if stale >= self.restart:
                current, value, stale = *_incumbent(problem, evaluator, rng), 0
            elif self._accepts(reached, evaluator.best_value, rng):
                current, value = optimum, reached  # also slightly worse ones, to diversify
            current = moves.shaken(current, rng, int(rng.integers(1, self.kick + 1)))
            value = evaluator.evaluate(current)
            done += 1
        return evaluator.solution()

    def _descended(
        self,
        evaluator: Evaluator,
        moves: Moves,
        start: tuple[IntArray, float],
        rng: np.random.Generator,
    ) -> tuple[IntArray, float]:
        current, value = start
        failures, size = 0, min(self.batch, at_once(evaluator.problem))
        while failures < self.patience:
            rows = moves.batch(current, rng, size)
            failures += 1
            if len(rows) == 0:
                continue
            values = evaluator.evaluate_many(rows)
            best = int(np.argmin(values))
            if values[best] < value:
                current, value, failures = rows[best], float(values[best]), 0
        return current, value

    def _accepts(self, value: float, best: float, rng: np.random.Generator) -> bool:
        if value <= best:
            return True
        if not math.isfinite(value) or self.temperature == 0 or best <= 0:
            return False
        return bool(rng.random() < math.exp(-(value / best - 1.0) / self.temperature))

    def _try_orders(
        self,
        problem: Problem,
        evaluator: Evaluator,
        device_of: IntArray,
        value: float,
        rng: np.random.Generator,
    ) -> None:
        """Try orders near the incumbent only: elsewhere rank dispatch is hard to beat."""
        is_near = math.isfinite(value) and value <= 1.01 * evaluator.best_value
        if not (is_near and isinstance(problem.execution_model, Event)):
            return
        order = order_by_priority(problem, upward_ranks(problem, device_of))
        best = evaluator.evaluate(device_of, order)
        for _ in range(self.patience):
            candidate = shifted(problem, order, rng)
            reached = evaluator.evaluate(device_of, candidate)
            if reached <= best:
                order, best = candidate, reached


def _evaluate_starts(problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> None:
    """Evaluate baselines, then list schedules if they are defined.

    With a limit on evaluations, list schedules come first: most baselines are worse. With a limit
    on time they come second: a list schedule of a large graph may take longer than the budget.
    """
    lists = [make_placer(name) for name in _LISTS]
    lists = [placer for placer in lists if placer.why_not(problem) is None]
    if not evaluator.budget.is_timed:
        for placer in lists:
            pass_interrupt_on(placer.place(problem, evaluator, rng))
        lists = []
    rows, size = _baselines(problem, rng), at_once(problem)
    while piece := list(itertools.islice(rows, size)):
        evaluator.evaluate_many(np.array(piece))
    for placer in lists:
        began = evaluator.seconds
        pass_interrupt_on(placer.place(problem, evaluator, rng))
        if evaluator.seconds - began > _LISTS_SHARE * evaluator.remaining_seconds:
            return


def _baselines(problem: Problem, rng: np.random.Generator) -> Iterator[IntArray]:
    """Single devices, contiguous splits and a few random placements, each (n_units,)."""
    for device in range(problem.n_devices):
        yield repaired(problem, np.full(problem.n_units, device, dtype=np.int64))
    for share in ("speed", "work", "memory"):
        yield repaired(problem, contiguous_split(problem, share))
    for row in random_placements(problem, rng, 4):
        yield repaired(problem, row)


def _incumbent(
    problem: Problem, evaluator: Evaluator, rng: np.random.Generator
) -> tuple[IntArray, float]:
    best, value = evaluator.incumbent
    if best is not None:
        device_of = np.array(best.device_of)
        return device_of, value if best.order is None else evaluator.evaluate(device_of)
    device_of = repaired(problem, random_placements(problem, rng, 1)[0])
    if problem.cluster.limits_segments:
        device_of, _ = with_fewer_segments(problem, device_of, is_over=lambda: evaluator.is_spent)
    return device_of, math.inf

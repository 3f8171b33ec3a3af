"""Multilevel search: few large groups first, then ever smaller ones, then groups again.

G. Karypis, V. Kumar, "A Fast and High Quality Multilevel Scheme for Partitioning Irregular Graphs",
SIAM Journal on Scientific Computing 20(1), 1998; further cycles that coarsen within the blocks of
what was found: C. Walshaw, "Multilevel Refinement for Combinatorial Optimisation Problems", Annals
of Operations Research 131, 2004.

The units are joined to ever fewer groups along heavy edges. On the coarsest level devices of groups
are sampled by the cross-entropy method; each finer level moves its groups, one or a run of them, as
long as that helps. A further cycle joins only what is on one device, moves a few groups of a coarse
level, and refines again. After some cycles without improvement sampling begins anew.

Departures from the papers: what is valued is the placement of all units on every level, because the
makespan of a coarse graph, whose groups run as one, says little about that of the fine one.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import ClassVar
from weakref import WeakKeyDictionary

import numpy as np

from placewright.core.arrays import FloatArray, IntArray
from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.errors import InputError
from placewright.placers.anytime import anytime
from placewright.placers.search.levels.search import Shape, cycles
from placewright.placers.shared_weights import with_shared_weights_tied
from placewright.simulation.evaluator import Evaluator

_searches: WeakKeyDictionary[Evaluator, _Search] = WeakKeyDictionary()


@dataclass(frozen=True)
class Multilevel:
    """Samples on the coarsest level, refines on all, then cycles from the incumbent.

    Attributes:
        groups: of the coarsest level, >= 2; where sampling begins anew, half to eight times as
            many.
        batch: neighbours per call to the evaluator.
        patience: batches without improvement that end a coarse level; finer ones have up to four
            times as many.
        kick: groups that a further cycle moves first, at most.
        temperature: excess over the best, as a share of it, that is kept with chance 1/e.
        restart: cycles without an improvement before sampling begins anew.
        batches: calls to the evaluator where the budget has no limit of its own.
    """

    name: ClassVar[str] = "multilevel"
    paper: ClassVar[str] = "Karypis and Kumar, SISC 1998"
    objectives: ClassVar[tuple[str, ...]] = ("latency", "throughput", "training")
    needs_training: ClassVar[bool] = False

    groups: int = 16
    batch: int = 16
    patience: int = 12
    kick: int = 3
    temperature: float = 0.005
    restart: int = 12
    batches: int = 1000

    def __post_init__(self) -> None:
        counts = (self.batch, self.patience, self.kick, self.restart, self.batches)
        if self.groups < 2 or min(counts) < 1 or not self.temperature >= 0:
            raise InputError(
                "multilevel: groups must be >= 2, batch, patience, kick, restart and batches >= 1 "
                f"and temperature >= 0, got {self.groups}, {counts}, {self.temperature}"
            )

    def why_not(self, problem: Problem) -> str | None:
        """Defined for every problem."""
        del problem
        return None

    @anytime
    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        """Search until the budget ends, the gap is closed, or `batches` without a budget.

        A further call with the same evaluator goes on where the last one ended.
        """
        if problem.allowed_by_class.sum(axis=1).max() <= 1:  # nothing can move
            if evaluator.best is None:
                only = np.argmax(problem.allowed_by_class, axis=1)
                evaluator.evaluate(only[problem.colocation.group_of])
            return evaluator.solution()
        search = _searches.get(evaluator)
        if search is None or search.settings != self:
            search = _searches[evaluator] = _Search(self)
        if search.questions is None:
            search.begin(problem, evaluator, rng)
        done, has_limit = 0, evaluator.budget.is_limited
        while (has_limit or done < self.batches) and not evaluator.is_closed:
            search.ask(evaluator)
            done += 1
        return evaluator.solution("optimal" if evaluator.is_closed else None)


@dataclass(eq=False)
class _Search:
    """What one turn leaves to the next: the questions, and the one that has no answer yet."""

    settings: Multilevel
    questions: Generator[IntArray, FloatArray, None] | None = None
    rows: IntArray = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))
    values: list[FloatArray] = field(default_factory=list)

    def begin(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> None:
        """The first question, for which nothing is evaluated."""
        one = self.settings
        shape = Shape(one.groups, one.batch, one.patience, one.kick, one.temperature, one.restart)

        of_evaluator = weakref.ref(evaluator)  # which is what this search is found by

        def incumbent() -> tuple[IntArray | None, float]:
            known = of_evaluator()
            if known is None or known.best is None:
                return None, math.inf
            return np.array(known.best.device_of), known.best_value

        tied = with_shared_weights_tied(problem)
        self.questions = cycles(tied, shape, incumbent, rng.spawn(1)[0])
        self.rows = next(self.questions)

    def ask(self, evaluator: Evaluator) -> None:
        """Have one question answered; what the budget cut off is asked again next time."""
        assert self.questions is not None
        values = evaluator.evaluate_many(self.rows)
        self.values.append(values)
        self.rows = self.rows[len(values) :]
        if len(self.rows) == 0:
            answer, self.values = np.concatenate(self.values), []
            self.rows = self.questions.send(answer)

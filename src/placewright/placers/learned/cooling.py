"""Draws around the best single device that come closer as it cools: the control of feedback."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from placewright.core.arrays import IntArray
from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.errors import InputError
from placewright.placers.anytime import anytime
from placewright.placers.baselines.simple import homogeneous_placements
from placewright.placers.conditions import ForEveryProblem
from placewright.simulation.evaluator import Evaluator


@dataclass(frozen=True)
class Cooling(ForEveryProblem):
    """Keep the best single device, and move colocation classes away from it at random.

    Each class moves with a probability that falls geometrically from `first` to `last` over the
    budget. The sampler times the single devices, and reads no other value. So its samples get
    better although it learns nothing: what a learner adds must stand against it.

    Example:
        ``Cooling(first=0.5, last=0.002)`` moves half of the classes at first, and in the end one
        of 500.

    Attributes:
        first: probability of a move in the first draw, in (0, 1].
        last: probability of a move in the last draw, in (0, first].
        samples: draws if the budget does not count evaluations.
        batch: draws per call to the evaluator.
    """

    name: ClassVar[str] = "cooling"
    paper: ClassVar[str] = "baseline"

    first: float = 0.5
    last: float = 0.002
    samples: int = 1000
    batch: int = 50

    def __post_init__(self) -> None:
        if self.samples < 1 or self.batch < 1:
            raise InputError(
                f"cooling: samples and batch must be >= 1, got {self.samples}, {self.batch}"
            )
        if not 0.0 < self.last <= self.first <= 1.0:
            raise InputError(
                f"cooling: it needs 0 < last <= first <= 1, got {self.last}, {self.first}"
            )

    @anytime
    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        """Time the single devices, then draw until the budget ends or `samples` are drawn."""
        single = homogeneous_placements(problem)
        best = single[int(np.argmin(evaluator.evaluate_many(single)))]
        counted = evaluator.budget.evaluations
        total = self.samples if counted is None else counted - len(single)
        for drawn in range(0, total, self.batch):
            turn = np.arange(drawn, min(drawn + self.batch, total))
            moved = self.first * (self.last / self.first) ** (turn / max(1, total - 1))
            evaluator.sample_many(moved_away(problem, best, moved, rng))
        return evaluator.solution()


def moved_away(
    problem: Problem, placement: IntArray, probabilities: np.ndarray, rng: np.random.Generator
) -> IntArray:
    """A placement with each colocation class moved to another allowed device at random.

    Args:
        placement: device of each unit, shape (n_units,).
        probabilities: of a move of each class, one for each draw, shape (k,).

    Returns:
        Placements, shape (k, n_units).
    """
    classes = problem.colocation
    of_class = np.empty(classes.n_groups, dtype=np.int64)
    of_class[classes.group_of] = placement
    others = problem.allowed_by_class.copy()
    others[np.arange(classes.n_groups), of_class] = False
    draws = np.where(others, rng.random((len(probabilities), *others.shape)), -1.0)
    moves = rng.random((len(probabilities), classes.n_groups)) < probabilities[:, None]
    wished = np.where(moves & others.any(axis=1), draws.argmax(axis=2), of_class)
    placements: IntArray = wished[:, classes.group_of]
    return placements

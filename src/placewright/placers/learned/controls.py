"""Controls of learning: uniform draws from a learner's action space, and a sampler that cools."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np

from placewright.core.arrays import IntArray
from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.errors import InputError
from placewright.placers.baselines.simple import (
    at_once,
    batches,
    evaluate_homogeneous,
    homogeneous_placements,
)
from placewright.placers.bases import ForEveryProblem, anytime, require_counts
from placewright.placers.registry import make_placer
from placewright.simulation.evaluator import Evaluator


class Actions(Protocol):
    """The action space of a learner's policy."""

    def uniform(self, n: int, rng: np.random.Generator) -> IntArray:
        """Uniform choices, as placements of all units, shape (n, n_units)."""
        ...


@runtime_checkable
class HasActions(Protocol):
    """A learned placer with an action space."""

    def actions(self, problem: Problem) -> Actions:
        """The action space on a problem."""
        ...


@dataclass(frozen=True)
class RandomGrouped(ForEveryProblem):
    """Uniform over the groups and devices that a learner chooses from, without any policy.

    `random` draws single units and a learner draws groups, so that beating the former shows the
    grouping, not the learning. This placer has the learner's own groups. If the learner groups and
    places (`grouper-placer`, `hierarchical`), each op's group and each group's device are uniform.

    Attributes:
        learner: registry name of the learner; its other settings are the defaults.
        groups: replaces the learner's number of groups; 0 leaves it.
        homogeneous_starts: evaluate the homogeneous placements first.
        samples: draws if the budget has no limit.
        batch: draws per call to the evaluator; fewer of a large graph.
    """

    name: ClassVar[str] = "random-grouped"
    paper: ClassVar[str] = "baseline"

    learner: str = "post"
    groups: int = 0
    homogeneous_starts: bool = True
    samples: int = 1000
    batch: int = 50

    def __post_init__(self) -> None:
        if self.samples < 1 or self.batch < 1:
            raise InputError(
                f"random-grouped: samples and batch must be >= 1, got {self.samples}, {self.batch}"
            )
        require_counts("random-grouped", self, "groups", least=0)
        self._learner()

    @anytime
    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        """Draw until the budget ends, or `samples` times without a budget."""
        actions = self._learner().actions(problem)
        if self.homogeneous_starts:
            evaluate_homogeneous(problem, evaluator)
        for size in batches(evaluator, self.samples, min(self.batch, at_once(problem))):
            evaluator.sample_many(actions.uniform(size, rng))
        return evaluator.solution()

    def _learner(self) -> HasActions:
        settings = {"groups": str(self.groups)} if self.groups else {}
        learner = make_placer(self.learner, settings)
        if not isinstance(learner, HasActions):
            raise InputError(f"random-grouped: '{self.learner}' is no learner with groups")
        return learner


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
        batch: draws per call to the evaluator; fewer of a large graph.
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
        batch = min(self.batch, at_once(problem))
        for drawn in range(0, total, batch):
            turn = np.arange(drawn, min(drawn + batch, total))
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

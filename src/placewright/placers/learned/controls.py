"""Controls for learned placers: samplers without learning, with which learners are compared.

`RandomGrouped` draws uniformly from a learner's action space; `Cooling` draws ever closer to the
best single device.
"""

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
        """Draw `n` uniform actions, as placements: device of each unit, shape (n, n_units)."""
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
        samples: draws if the budget has no limit at all, neither of time nor of evaluations.
        batch: draws per call to the evaluator; fewer for a large graph.
    """

    name: ClassVar[str] = "random-grouped"
    paper: ClassVar[str] = "baseline"

    learner: str = "post"
    groups: int = 0
    homogeneous_starts: bool = True
    samples: int = 1000
    batch: int = 50

    def __post_init__(self) -> None:
        require_counts("random-grouped", self, "samples", "batch")
        require_counts("random-grouped", self, "groups", least=0)
        self._learner()

    @anytime
    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        """Draw until the budget ends, or `samples` times if the budget has no limit."""
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
    """Draw placements around the best single device, ever closer to it.

    Each draw starts from the homogeneous placement with the smallest value, and moves each
    colocation class to a random other device with a probability that falls geometrically from
    `first` to `last` over the draws. Only the values of the homogeneous placements are read. So the
    samples get better although nothing is learned, and a learner must do better than that.

    Example:
        ``Cooling(first=0.5, last=0.002)`` moves half of the classes at first, and in the end one
        of 500.

    Attributes:
        first: probability of a move in the first draw, in (0, 1].
        last: probability of a move in the last draw, in (0, first].
        samples: most draws if the budget has no limit on evaluations: the probabilities need the
            number of draws in advance, which a limit on time does not give.
        batch: draws per call to the evaluator; fewer for a large graph.
    """

    name: ClassVar[str] = "cooling"
    paper: ClassVar[str] = "baseline"

    first: float = 0.5
    last: float = 0.002
    samples: int = 1000
    batch: int = 50

    def __post_init__(self) -> None:
        require_counts("cooling", self, "samples", "batch")
        if not 0.0 < self.last <= self.first <= 1.0:
            raise InputError(
                f"cooling: it needs 0 < last <= first <= 1, got {self.last}, {self.first}"
            )

    @anytime
    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        """Evaluate the homogeneous placements, then draw until the budget or the draws end."""
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
    """Draw k variants of a placement.

    In draw i each colocation class moves independently, with probability ``probabilities[i]``, to
    a uniformly drawn other device that it may use, if there is one.

    Args:
        placement: device of each unit, shape (n_units,).
        probabilities: shape (k,).

    Returns:
        Device of each unit in each draw, shape (k, n_units).
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

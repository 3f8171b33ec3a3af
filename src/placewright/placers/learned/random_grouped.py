"""Uniform draws from the action space of a learner: the control that isolates learning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np

from placewright.core.arrays import IntArray
from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.errors import InputError
from placewright.placers.anytime import anytime
from placewright.placers.baselines.simple import evaluate_homogeneous
from placewright.placers.conditions import ForEveryProblem
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
        batch: draws per call to the evaluator.
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
        if self.groups < 0:
            raise InputError(f"random-grouped: groups must be >= 0, got {self.groups}")
        self._learner()

    @anytime
    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        """Draw until the budget ends, or `samples` times without a budget."""
        actions = self._learner().actions(problem)
        if self.homogeneous_starts:
            evaluate_homogeneous(problem, evaluator)
        has_limit = evaluator.budget.is_limited
        drawn = 0
        while has_limit or drawn < self.samples:
            size = self.batch if has_limit else min(self.batch, self.samples - drawn)
            evaluator.sample_many(actions.uniform(size, rng))
            drawn += size
        return evaluator.solution()

    def _learner(self) -> HasActions:
        settings = {"groups": str(self.groups)} if self.groups else {}
        learner = make_placer(self.learner, settings)
        if not isinstance(learner, HasActions):
            raise InputError(f"random-grouped: '{self.learner}' is no learner with groups")
        return learner

"""Uniform random placements: the baseline that every learned method must beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.errors import InputError
from placewright.placers.anytime import anytime
from placewright.placers.conditions import ForEveryProblem
from placewright.simulation.evaluator import Evaluator


@dataclass(frozen=True)
class RandomSearch(ForEveryProblem):
    """Draws a uniform device for every colocation class, independently.

    Attributes:
        samples: draws if the budget has no limit.
        batch: draws per call to the evaluator.
    """

    name: ClassVar[str] = "random"
    paper: ClassVar[str] = "baseline"

    samples: int = 1000
    batch: int = 64

    def __post_init__(self) -> None:
        if self.samples < 1 or self.batch < 1:
            raise InputError(
                f"random: samples and batch must be >= 1, got {self.samples}, {self.batch}"
            )

    @anytime
    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        """Draw until the budget ends, or `samples` times without a budget."""
        has_limit = evaluator.budget.is_limited
        drawn = 0
        while has_limit or drawn < self.samples:
            size = self.batch if has_limit else min(self.batch, self.samples - drawn)
            evaluator.evaluate_many(random_placements(problem, rng, size))
            drawn += size
        return evaluator.solution()


def random_placements(problem: Problem, rng: np.random.Generator, size: int) -> np.ndarray:
    """Placements that keep support, pins and colocation, shape (size, n_units), int64."""
    allowed = problem.allowed_by_class
    n_choices = allowed.sum(axis=1)
    choices = np.argsort(~allowed, axis=1, kind="stable")  # allowed devices first
    draws = rng.integers(0, np.maximum(1, n_choices), size=(size, len(n_choices)))
    chosen = choices[np.arange(len(n_choices))[None, :], draws]  # (size, classes)
    return np.asarray(chosen[:, problem.colocation.group_of], dtype=np.int64)

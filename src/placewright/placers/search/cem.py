"""Search by the cross-entropy method, the simplest learner and a baseline for all others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from placewright.core.arrays import FloatArray, IntArray
from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.errors import InputError
from placewright.placers.baselines.simple import evaluate_homogeneous
from placewright.placers.bases import ForEveryProblem, anytime, require_counts, require_numbers
from placewright.placers.legal import ActionSpace
from placewright.placers.shared_weights import with_shared_weights_tied
from placewright.simulation.evaluator import Evaluator

_LARGEST_BATCH = 100_000


@dataclass(frozen=True)
class Cem(ForEveryProblem):
    """An independent distribution per colocation class, moved towards the elite of each batch.

    R. Y. Rubinstein and D. P. Kroese, "The Cross-Entropy Method", Springer 2004, Algorithm 4.2.1
    with smoothing (Eq. 4.9): p <- smoothing * (frequencies in the elite) + (1 - smoothing) * p.
    The homogeneous placements are evaluated first and are no part of a batch. If memory is
    short, units that share a weight stay together (`shared_weights`).

    Attributes:
        batch: placements per iteration, 2 to 100,000.
        elite: share of the batch that updates the distribution, in (0, 1].
        smoothing: weight of the new frequencies, in (0, 1].
        floor: weight of the uniform distribution, so that no device is ruled out, in [0, 1).
        homogeneous_starts: evaluate the homogeneous placements first.
        updates: False samples from the first distribution only: the control of learning.
        iterations: batches if the budget has no limit.
    """

    name: ClassVar[str] = "cem"
    paper: ClassVar[str] = "Rubinstein and Kroese, 2004"

    batch: int = 50
    elite: float = 0.1
    smoothing: float = 0.7
    floor: float = 0.01
    homogeneous_starts: bool = True
    updates: bool = True
    iterations: int = 200

    def __post_init__(self) -> None:
        require_counts("cem", self, "iterations")
        if not 2 <= self.batch <= _LARGEST_BATCH:
            raise InputError(f"cem: batch must be from 2 to {_LARGEST_BATCH}, got {self.batch}")
        require_numbers("cem", self, "in (0, 1]", "elite", "smoothing")
        require_numbers("cem", self, "in [0, 1)", "floor")

    def actions(self, problem: Problem) -> ActionSpace:
        """The devices of each colocation class: the domain of the distribution."""
        problem = with_shared_weights_tied(problem)
        return ActionSpace(problem, problem.colocation)

    @anytime
    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        """Iterate until the budget ends, or `iterations` times without a budget.

        A proven optimum ends it, too, unless evaluations are limited: then it draws them all, so
        that runs have equally many samples. Every batch is one call to the evaluator.
        """
        problem = with_shared_weights_tied(problem)
        classes, allowed = problem.colocation, problem.allowed_by_class
        uniform = allowed / np.maximum(1, allowed.sum(axis=1, keepdims=True))
        probability = uniform.copy()
        n_elite = max(1, round(self.elite * self.batch))
        if self.homogeneous_starts:
            evaluate_homogeneous(problem, evaluator)
        done, has_limit = 0, evaluator.budget.is_limited
        while (has_limit or done < self.iterations) and not evaluator.is_spent:
            if evaluator.is_closed and evaluator.budget.evaluations is None:
                break
            done += 1
            chosen = sampled_devices(probability, self.batch, rng)
            values = evaluator.sample_many(chosen[:, classes.group_of])
            best = np.argsort(values, kind="stable")[:n_elite]
            elite = chosen[best[np.isfinite(values[best])]]  # (n_elite, classes)
            if self.updates and len(elite):
                moved = smoothed(probability, elite, self.smoothing)
                probability = (1 - self.floor) * moved + self.floor * uniform
        return evaluator.solution()


def sampled_devices(probability: FloatArray, n: int, rng: np.random.Generator) -> IntArray:
    """n draws of a device for each group by inverse transform, shape (n, n_groups).

    Args:
        probability: of each device, shape (n_groups, n_devices).
    """
    draws = rng.random((n, len(probability), 1))
    cumulative = probability.cumsum(axis=1)[None]
    return np.asarray((draws * cumulative[..., -1:] >= cumulative).sum(axis=2), dtype=np.int64)


def smoothed(probability: FloatArray, elite: IntArray, smoothing: float) -> FloatArray:
    """Eq. (4.9): device frequencies in the elite, (n_elite, n_groups), mixed with the old ones."""
    counts = (elite[:, :, None] == np.arange(probability.shape[1])).mean(axis=0)
    return np.asarray(smoothing * counts + (1 - smoothing) * probability)

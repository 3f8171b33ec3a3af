"""What REINFORCE on one problem needs, for `seq2seq`, `hierarchical` and `grouper-placer`."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from placewright.core.arrays import FloatArray, IntArray
from placewright.core.problem import Problem
from placewright.placers.baselines.homogeneous import evaluate_homogeneous
from placewright.placers.learned.baselines import MovingAverage
from placewright.placers.learned.learning_scope import clipped_step
from placewright.placers.learned.monitoring import EarlyStop, Scalars
from placewright.placers.learned.returns import (
    FAILING_TIMES,
    negative_root,
    reference_value,
    relative_times,
)
from placewright.simulation.evaluator import Evaluator

SMALLEST_SQUARE = 1e-10


class Settings(Protocol):
    """The hyperparameters that all three have."""

    @property
    def learning_rate(self) -> float: ...
    @property
    def clip_norm(self) -> float: ...
    @property
    def baseline_decay(self) -> float: ...
    @property
    def patience(self) -> int: ...
    @property
    def homogeneous_starts(self) -> bool: ...
    @property
    def updates(self) -> bool: ...


class Reinforce:
    """Times placements, keeps the moving baseline, takes gradient steps.

    Args:
        policy: whose parameters Adam descends.
        settings: hyperparameters.
        problem: what is placed; gives times their scale.
        evaluator: is asked for every placement.
        scalars: are told after every step.

    Attributes:
        updates: batches of placements timed so far.
    """

    def __init__(
        self,
        policy: nn.Module,
        settings: Settings,
        problem: Problem,
        evaluator: Evaluator,
        scalars: Scalars,
    ) -> None:
        self.updates = 0
        self._policy = policy
        self._optimiser = torch.optim.Adam(policy.parameters(), lr=settings.learning_rate)
        self._clip_norm = settings.clip_norm
        self._evaluator, self._scalars = evaluator, scalars
        self._learns = settings.updates
        self._reference = reference_value(problem)
        self._baseline = MovingAverage(settings.baseline_decay)
        self._square = MovingAverage(settings.baseline_decay)  # of advantages, squared
        self._stop = EarlyStop(settings.patience)
        if settings.homogeneous_starts:
            evaluate_homogeneous(problem, evaluator)

    @property
    def goes_on(self) -> bool:
        """False when patience is lost; the budget ends a run by `BudgetSpent`."""
        return not self._stop(self._evaluator.best_value, self._evaluator.evaluations)

    def time(self, placements: IntArray) -> FloatArray:
        """Relative times of placements (n, n_units), shape (at most n,)."""
        self.updates += 1
        return relative_times(self._evaluator.sample_many(placements), self._reference)

    def teaching(self, times: FloatArray, feasible_only_after: int) -> IntArray:
        """Samples that teach: all, or the feasible ones after so many updates; their indices."""
        if self.updates <= feasible_only_after:
            return np.arange(len(times))
        return np.flatnonzero(times < FAILING_TIMES)

    def advantage(
        self, times: FloatArray, *, baseline: bool = True, normalised: bool = False
    ) -> Tensor:
        """-sqrt(time) minus the moving average, which is updated; shape (n,).

        Args:
            times: relative times, shape (n,).
            baseline: False gives the rewards themselves.
            normalised: divide by the moving root mean square of advantages. The closer placements
                come to each other, the smaller plain advantages get beside an entropy bonus.
        """
        rewards = negative_root(times)
        advantage = self._baseline.advantage(rewards) if baseline else rewards
        self._baseline.update(rewards)
        if normalised:
            self._square.update(np.square(advantage))
            advantage = advantage / np.sqrt((self._square.value or 0.0) + SMALLEST_SQUARE)
        return torch.tensor(advantage, dtype=torch.float32)

    def descend(self, loss: Tensor, entropy: Tensor, times: FloatArray) -> None:
        """One clipped step of Adam down `loss`; scalars of the update.

        With updates off the parameters stay as they are.
        """
        if self._learns:
            clipped_step(self._policy, self._optimiser, loss, self._clip_norm)
        self._scalars(
            self._evaluator.evaluations,
            best=self._evaluator.best_value,
            mean_time=float(times.mean()) * self._reference,
            loss=loss.item(),
            entropy=entropy.item(),
        )

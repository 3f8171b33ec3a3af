"""REINFORCE on one problem, for `seq2seq`, `hierarchical` and `grouper-placer`.

`joint_bonus` is the entropy bonus of a grouper and a placer that are trained together.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from placewright.core.arrays import FloatArray, IntArray
from placewright.core.problem import Problem
from placewright.placers.baselines.single import evaluate_homogeneous
from placewright.placers.learned.shared.learning_scope import clipped_step
from placewright.placers.learned.shared.monitoring import EarlyStop, Scalars
from placewright.placers.learned.shared.returns import (
    FAILING_TIMES,
    MovingAverage,
    negative_root,
    reference_value,
    relative_times,
)
from placewright.placers.learned.shared.sampling import entropy
from placewright.placers.learned.shared.searching import JointSettings
from placewright.simulation.evaluator import Evaluator

SMALLEST_SQUARE = 1e-10


class Settings(Protocol):
    """The hyperparameters that all three placers have."""

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
        policy: the network that Adam trains.
        settings: hyperparameters.
        problem: the problem to solve; gives times their scale.
        evaluator: times every placement.
        scalars: gets the numbers of every step.

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
        """False if patience is lost; the budget ends a run by `BudgetSpent`."""
        return not self._stop(self._evaluator.best_value, self._evaluator.evaluations)

    def time(self, placements: IntArray) -> FloatArray:
        """Relative times of placements (n, n_units), shape (at most n,)."""
        self.updates += 1
        return relative_times(self._evaluator.sample_many(placements), self._reference)

    def teaching(self, times: FloatArray, feasible_only_after: int) -> IntArray:
        """Indices of the samples that teach: all, or only feasible ones after so many updates."""
        if self.updates <= feasible_only_after:
            return np.arange(len(times))
        return np.flatnonzero(times < FAILING_TIMES)

    def advantage(
        self, times: FloatArray, *, baseline: bool = True, normalised: bool = False
    ) -> Tensor:
        """-sqrt(time) minus the moving average, which is updated; shape (n,).

        Args:
            times: relative times, shape (n,).
            baseline: False returns the rewards themselves.
            normalised: divide by the moving root mean square of advantages. The closer placements
                come to each other, the smaller plain advantages get relative to an entropy bonus.
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


def joint_bonus(settings: JointSettings, placer_entropy: Tensor, log_groups: Tensor) -> Tensor:
    """The bonus that the loss of a grouper and a placer is reduced by; a scalar.

    With weights u of `usage_entropy` and -g of the mean entropy of a node, u >= g, it is
    g I + (u - g) H, the mutual information I of node and group and the entropy H of usage: nodes
    are drawn to groups of their own and each to one.

    Args:
        settings: the weights.
        placer_entropy: of the placer, mean over groups and samples; a scalar.
        log_groups: log-probabilities of each node's group, shape (nodes, groups).
    """
    return (
        settings.entropy_weight * placer_entropy
        + settings.grouper_entropy_weight * entropy(log_groups).mean()
        + settings.usage_entropy_weight * usage_entropy(log_groups)
    )


def usage_entropy(log_groups: Tensor) -> Tensor:
    """Entropy in nats of the group of a node drawn at random; a scalar.

    ln(groups) if all groups are equally likely, 0 if all nodes are in one. Unlike `entropy` of each
    node, it requires no node to be undecided.

    Args:
        log_groups: log-probabilities of each node's group, shape (nodes, groups).
    """
    return entropy(torch.logsumexp(log_groups, dim=0) - math.log(len(log_groups)))

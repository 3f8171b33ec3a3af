"""From evaluated times to rewards and returns, and running baselines that they are compared with.

Times are divided by the problem's own reference time, so that the published learning rates mean the
same for a model of one millisecond and for one of ten seconds. The papers measured in seconds, at a
scale of about one. If energy or price is minimised, joules or money stand in the place of seconds.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from placewright.core.arrays import FloatArray
from placewright.core.charges import CHARGED
from placewright.core.problem import Problem

# An infeasible placement counts as this many reference times ("a large failing time"), and so does
# one that takes longer.
FAILING_TIMES = 10.0
SMALLEST_SQUARE = 1e-10  # of advantages


def reference_value(problem: Problem) -> float:
    """The sum of all units' costs, each on its cheapest device (inf-free and > 0).

    Costs are seconds, or the amount of the objective that a unit takes if it runs alone.
    """
    costs = problem.costs.seconds
    if problem.objective in CHARGED:
        charges = problem.charges[problem.objective]
        can_run, rates = np.isfinite(costs), charges.always + charges.of_devices
        costs = np.where(can_run, charges.own + np.where(can_run, costs, 0.0) * rates, np.inf)
    return float(max(costs.min(axis=1).sum(), np.finfo(np.float64).tiny))


def relative_times(values: FloatArray, reference: float) -> FloatArray:
    """Values / reference, infeasible ones at the failing time; never above it, shape unchanged."""
    times: FloatArray = np.minimum(np.asarray(values) / reference, FAILING_TIMES)
    return times


def negative_root(times: FloatArray) -> FloatArray:
    """-sqrt(time): the reward of Mirhoseini et al. 2017 and 2018."""
    reward: FloatArray = -np.sqrt(times)
    return reward


def discounted(rewards: FloatArray, discount: float) -> FloatArray:
    """Return at each step: r_t + discount * r_{t+1} + ..., shape (n_steps, ...) unchanged."""
    returns = np.array(rewards, dtype=np.float64)
    for step in range(len(returns) - 2, -1, -1):
        returns[step] += discount * returns[step + 1]
    return returns


def released_hsdag_return(rewards: FloatArray, discount: float) -> float:
    """The factor on every step in HSDAG's code: sum of r_{T-1-i} * discount^i."""
    return float(np.sum(rewards[::-1] * discount ** np.arange(len(rewards))))


@dataclass
class MovingAverage:
    """Exponential moving average; the first update sets it."""

    decay: float = 0.9  # weight of the past, in [0, 1)
    value: float | None = None  # the average, None before the first update

    @property
    def kept(self) -> FloatArray:
        """The average, shape (1,); empty before the first update."""
        return np.array([] if self.value is None else [self.value], dtype=np.float64)

    def restore(self, kept: FloatArray) -> None:
        """Continue from `kept` of another average."""
        self.value = float(kept[0]) if len(kept) else None

    def advantage(self, rewards: FloatArray) -> FloatArray:
        """Rewards minus the average of the past (of themselves the first time), shape (n,)."""
        base = float(np.mean(rewards)) if self.value is None else self.value
        return rewards - base

    def update(self, rewards: FloatArray) -> None:
        """Fold in the mean of `rewards`, shape (n,) with n >= 1."""
        mean = float(np.mean(rewards))
        self.value = (
            mean if self.value is None else self.decay * self.value + (1 - self.decay) * mean
        )


def over_root_mean_square(advantage: FloatArray, square: MovingAverage) -> FloatArray:
    """Divide advantages, shape (n,), by their moving root mean square, these included.

    The closer placements come to each other, the smaller plain advantages get relative to an
    entropy bonus.
    """
    square.update(np.square(advantage))
    return np.asarray(advantage / np.sqrt((square.value or 0.0) + SMALLEST_SQUARE))


@dataclass
class PerStepAverage:
    """Mean return at each step over the last episodes (Placeto)."""

    window: int = 10  # number of episodes that count
    _episodes: deque[FloatArray] = field(default_factory=deque)

    @property
    def kept(self) -> FloatArray:
        """Returns of the remembered episodes, shape (n_episodes, n_steps)."""
        return np.array(list(self._episodes), dtype=np.float64)

    def restore(self, kept: FloatArray) -> None:
        """Continue from `kept` of another average."""
        self._episodes = deque(kept)

    @property
    def value(self) -> FloatArray:
        """The average at each step, shape (n_steps,), after one update at least."""
        return np.asarray(np.mean(np.stack(list(self._episodes)), axis=0), dtype=np.float64)

    @property
    def deviation(self) -> float:
        """Root mean square deviation of the remembered returns from their average; 0 at first."""
        return float(np.sqrt(np.square(self.kept - self.value).mean()))

    def update(self, returns: FloatArray) -> None:
        """Fold in one episode's returns, shape (n_steps,)."""
        self._episodes.append(returns)
        while len(self._episodes) > self.window:
            self._episodes.popleft()


@dataclass
class RunningMean:
    """Mean of all values so far (Post's b)."""

    total: float = 0.0
    count: int = 0

    @property
    def value(self) -> float:
        """The mean; 0 before the first value."""
        return self.total / self.count if self.count else 0.0

    def update(self, values: FloatArray) -> None:
        """Fold in `values`, shape (n,)."""
        self.total += float(np.sum(values))
        self.count += len(values)

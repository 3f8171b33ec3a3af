"""Running baselines: what a reward is compared with."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from placewright.core.arrays import FloatArray


@dataclass
class MovingAverage:
    """Exponential moving average; the first update sets it.

    Attributes:
        decay: weight of the past, in [0, 1).
        value: the average, None before the first update.
        told: what was folded in since somebody put a list here; None keeps nothing.
    """

    decay: float = 0.9
    value: float | None = None
    told: list[FloatArray] | None = None

    def advantage(self, rewards: FloatArray) -> FloatArray:
        """Rewards minus the average of the past (of themselves the first time), shape (n,)."""
        base = float(np.mean(rewards)) if self.value is None else self.value
        return rewards - base

    def update(self, rewards: FloatArray) -> None:
        """Fold in the mean of `rewards`, shape (n,) with n >= 1."""
        if self.told is not None:
            self.told.append(rewards)
        mean = float(np.mean(rewards))
        self.value = (
            mean if self.value is None else self.decay * self.value + (1 - self.decay) * mean
        )


@dataclass
class PerStepAverage:
    """Mean return at each step over the last episodes (Placeto).

    Attributes:
        window: number of episodes that count.
        told: what was folded in since somebody put a list here; None keeps nothing.
    """

    window: int = 10
    told: list[FloatArray] | None = None
    _episodes: deque[FloatArray] = field(default_factory=deque)

    @property
    def episodes(self) -> FloatArray:
        """What is remembered, shape (n_episodes, n_steps)."""
        return np.array(list(self._episodes), dtype=np.float64)

    @property
    def value(self) -> FloatArray:
        """The average at each step, shape (n_steps,), after one update at least."""
        return np.asarray(np.mean(np.stack(list(self._episodes)), axis=0), dtype=np.float64)

    @property
    def deviation(self) -> float:
        """Root mean square of what is remembered, minus the average at each step; 0 at first."""
        return float(np.sqrt(np.square(self.episodes - self.value).mean()))

    def update(self, returns: FloatArray) -> None:
        """Fold in one episode's returns, shape (n_steps,)."""
        if self.told is not None:
            self.told.append(returns)
        self._episodes.append(returns)
        while len(self._episodes) > self.window:
            self._episodes.popleft()


@dataclass
class RunningMean:
    """Mean of everything seen so far (Post's b)."""

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

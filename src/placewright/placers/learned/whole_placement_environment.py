"""Gymnasium environment: a whole placement as one action."""

from __future__ import annotations

from typing import Any

import numpy as np

from placewright.core.problem import Problem
from placewright.core.solution import Budget
from placewright.placers.learned.environment import (
    Environment,
    Observation,
    PlacementSpaces,
    gym,
)


class WholePlacementEnv(Environment):
    """One step an episode: the action is a device for every group; reward: -sqrt(relative time).

    Args:
        problem: what is placed.
        groups: largest number of groups.
        budget: queries in all; afterwards episodes are truncated.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - Gymnasium's own name

    def __init__(self, problem: Problem, groups: int = 64, budget: Budget | None = None) -> None:
        self._spaces = PlacementSpaces(problem, groups, budget)
        self.space, self.evaluator = self._spaces.space, self._spaces.evaluator
        n, n_devices = self.space.allowed.shape
        self.observation_space = gym.spaces.Dict(self._spaces.observed)
        self.action_space = gym.spaces.MultiDiscrete(np.full(n, n_devices))
        self._devices = self.space.allowed.argmax(axis=1)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Every group on its first allowed device; nothing is timed."""
        super().reset(seed=seed)
        del options
        self._devices = self.space.allowed.argmax(axis=1)
        return self._observation(), {"best": self.evaluator.best_value}

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Time a whole placement; the episode ends."""
        if self.evaluator.is_spent:
            return self._observation(), 0.0, False, True, {"best": self.evaluator.best_value}
        wished = np.asarray(action, dtype=np.int64)
        fits = self.space.allowed[np.arange(self.space.n_groups), wished]
        self._devices = np.where(fits, wished, self.space.allowed.argmax(axis=1))
        value, time = self._spaces.time(self._devices)
        info = {"time": value, "best": self.evaluator.best_value}
        return self._observation(), -float(np.sqrt(time)), True, False, info

    def _observation(self) -> Observation:
        return self._spaces.observation(self._devices)

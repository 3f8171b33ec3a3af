"""Gymnasium environment: one group a step, paid by the fall in time, as in Placeto."""

from __future__ import annotations

from typing import Any

import numpy as np

from placewright.core.arrays import IntArray
from placewright.core.problem import Problem
from placewright.core.solution import Budget
from placewright.placers.learned.environment import (
    Environment,
    Observation,
    PlacementSpaces,
    gym,
)


class NodeByNodeEnv(Environment):
    """One group a step, in topological order; reward: fall in time over the reference time.

    Observation: features (n, devices + 1), adjacency (n, n), allowed (n, devices), the current
    placement (n,) and the number of the group that the next action places. A forbidden device is
    replaced by the group's first allowed one. An episode starts from a random placement.

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
        current = {"current": gym.spaces.Discrete(n + 1)}
        self.observation_space = gym.spaces.Dict({**self._spaces.observed, **current})
        self.action_space = gym.spaces.Discrete(n_devices)
        self._devices: IntArray = np.zeros(n, dtype=np.int64)
        self._current = 0
        self._time = 0.0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """A random placement, the first group to place."""
        super().reset(seed=seed)
        del options
        allowed = self.space.allowed
        draws = np.where(allowed, self.np_random.random(allowed.shape), -1.0)
        self._devices = draws.argmax(axis=1)
        self._current = 0
        if not self.evaluator.is_spent:
            self._time = self._query()
        return self._observation(), self._info()

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Place the current group; the new placement is timed."""
        if self.evaluator.is_spent:
            return self._observation(), 0.0, False, True, self._info()
        allowed = self.space.allowed[self._current]
        device = int(action)
        self._devices[self._current] = device if allowed[device] else int(allowed.argmax())
        self._current += 1
        before, self._time = self._time, self._query()
        done = self._current == self.space.n_groups
        return self._observation(), before - self._time, done, False, self._info()

    def _query(self) -> float:
        return self._spaces.time(self._devices)[1]

    def _info(self) -> dict[str, Any]:
        return {"time": self._spaces.seconds(self._time), "best": self.evaluator.best_value}

    def _observation(self) -> Observation:
        return {**self._spaces.observation(self._devices), "current": np.int64(self._current)}

"""Gymnasium environments: placement as a game for learners from other libraries.

`NodeByNodeEnv` places one group per step and pays the fall in time, as Placeto does;
`WholePlacementEnv` takes a whole placement as one action. Both count every query.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.core.arrays import FloatArray, IntArray
from placewright.core.problem import Problem
from placewright.core.solution import Budget
from placewright.placers.learned.shared.extra import require_packages

require_packages("gymnasium")

import gymnasium as gym  # noqa: E402 - asked for by name first

from placewright.placers.learned.shared.features import (  # noqa: E402
    group_adjacency,
    group_output_bytes,
    group_seconds,
)
from placewright.placers.learned.shared.grouping import (  # noqa: E402
    ActionSpace,
    colocation_grouping,
    neighbour_merge,
)
from placewright.placers.learned.shared.returns import reference_value, relative_times  # noqa: E402
from placewright.simulation.evaluator import Evaluator  # noqa: E402

if TYPE_CHECKING:
    Environment = gym.Env[dict[str, Any], Any]
else:
    Environment = gym.Env

Observation = dict[str, Any]


def static_features(space: ActionSpace) -> FloatArray:
    """Seconds per device and output bytes, each by its maximum, shape (n_groups, n_devices + 1)."""
    seconds = group_seconds(space.problem, space.grouping)
    seconds = np.where(np.isfinite(seconds), seconds, 0.0)
    size = group_output_bytes(space.problem, space.grouping)[:, None]
    scaled = [column / max(float(column.max()), 1e-30) for column in (seconds, size)]
    return np.concatenate(scaled, axis=1).astype(np.float32)


class PlacementSpaces:
    """A problem in groups, its observations, and the evaluator that times it.

    Args:
        problem: the problem to solve.
        groups: largest number of groups.
        budget: queries in all.

    Attributes:
        space: groups and their devices.
        evaluator: counts queries.
        observed: spaces of an observation, by name.
    """

    def __init__(self, problem: Problem, groups: int, budget: Budget | None) -> None:
        grouping = neighbour_merge(problem, colocation_grouping(problem), groups)
        self.space = ActionSpace(problem, grouping)
        self.evaluator = Evaluator(problem, budget)
        self._reference = reference_value(problem)
        self._features = static_features(self.space)
        self._adjacency = (group_adjacency(problem, grouping) > 0).astype(np.int8)
        n, n_devices = self.space.allowed.shape
        self.observed: dict[str, gym.Space[Any]] = {
            "features": gym.spaces.Box(0.0, 1.0, (n, n_devices + 1), np.float32),
            "adjacency": gym.spaces.Box(0, 1, (n, n), np.int8),
            "allowed": gym.spaces.Box(0, 1, (n, n_devices), np.int8),
            "devices": gym.spaces.MultiDiscrete(np.full(n, n_devices)),
        }

    def observation(self, devices: IntArray) -> Observation:
        """The observation of a placement of groups, (n_groups,)."""
        return {
            "features": self._features.copy(),
            "adjacency": self._adjacency.copy(),
            "allowed": self.space.allowed.astype(np.int8),
            "devices": devices.copy(),
        }

    def time(self, devices: IntArray) -> tuple[float, float]:
        """Value of a placement of groups, and over the reference time; one query."""
        value = self.evaluator.evaluate(self.space.expand(devices))
        return value, float(relative_times(np.array([value]), self._reference)[0])

    def seconds(self, relative: float) -> float:
        """A relative time in the problem's unit."""
        return relative * self._reference


class NodeByNodeEnv(Environment):
    """One group a step, in topological order; reward: fall in time over the reference time.

    Observation: features (n, devices + 1), adjacency (n, n), allowed (n, devices), the current
    placement (n,) and the number of the group that the next action places. A forbidden device is
    replaced by the group's first allowed one. An episode starts from a random placement.

    Args:
        problem: the problem to solve.
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


class WholePlacementEnv(Environment):
    """One step an episode: the action is a device for every group; reward: -sqrt(relative time).

    Args:
        problem: the problem to solve.
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

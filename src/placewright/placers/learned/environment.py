"""What the Gymnasium environments share: the problem in groups, observations, timing.

`node_by_node_environment` places one group a step and pays the fall in time, as Placeto does;
`whole_placement_environment` takes a whole placement as one action. Both count every query.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.core.arrays import FloatArray, IntArray
from placewright.core.problem import Problem
from placewright.core.solution import Budget
from placewright.placers.learned.extra import require_packages

require_packages("gymnasium")

import gymnasium as gym  # noqa: E402 - asked for by name first

from placewright.placers.learned.features import (  # noqa: E402
    group_adjacency,
    group_output_bytes,
    group_seconds,
)
from placewright.placers.learned.grouping import (  # noqa: E402
    ActionSpace,
    colocation_grouping,
    neighbour_merge,
)
from placewright.placers.learned.returns import reference_value, relative_times  # noqa: E402
from placewright.simulation.evaluator import Evaluator  # noqa: E402

if TYPE_CHECKING:
    Environment = gym.Env[dict[str, Any], Any]
else:
    Environment = gym.Env

Observation = dict[str, Any]

__all__ = ["Environment", "Observation", "PlacementSpaces", "gym", "static_features"]


def static_features(space: ActionSpace) -> FloatArray:
    """Seconds per device and output bytes, each by its maximum, shape (n_groups, n_devices + 1)."""
    seconds = group_seconds(space.problem, space.grouping)
    seconds = np.where(np.isfinite(seconds), seconds, 0.0)
    size = group_output_bytes(space.problem, space.grouping)[:, None]
    scaled = [column / max(float(column.max()), 1e-30) for column in (seconds, size)]
    return np.concatenate(scaled, axis=1).astype(np.float32)


class PlacementSpaces:
    """A problem in groups, with what an agent may observe of it and the evaluator that times it.

    Args:
        problem: what is placed.
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
        """What an agent sees with this placement of groups, (n_groups,)."""
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

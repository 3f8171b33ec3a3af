"""Random moves: a class, a swap, a branch, a run of units, what is connected, a boundary."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from placewright.core.arrays import IntArray
from placewright.core.problem import Problem
from placewright.placers.search.neighbourhood.blocks import branch_by_branch_order, branches

_LARGE_GRAPH = 5000  # dominator subtrees take quadratic memory in a chain; runs cover those


@lru_cache(maxsize=1)
def moves_of(problem: Problem) -> Moves:
    """The moves of a problem, kept for the next turn on the same one."""
    return Moves(problem)


class Moves:
    """Draws neighbours of a placement that keep support, pins and colocation."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._classes = problem.colocation
        self._allowed = problem.allowed_by_class
        self._orders = [problem.unit_graph.topological_order, branch_by_branch_order(problem)]
        self._branches = branches(problem) if problem.n_units <= _LARGE_GRAPH else []
        self._movable = np.flatnonzero(self._allowed.sum(axis=1) > 1)
        successors = problem.unit_graph.successors
        self._sources, self._targets = successors.row_of_each(), successors.indices
        self._kinds = [self._run, self._branch, self._class, self._boundary, self._swap]
        self._weights = np.array([0.3, 0.25 if self._branches else 0.0, 0.2, 0.2, 0.05])
        self._weights /= self._weights.sum()

    @property
    def is_empty(self) -> bool:
        """True when every class has one device only."""
        return len(self._movable) == 0

    def neighbour(self, device_of: IntArray, rng: np.random.Generator) -> IntArray:
        """A placement next to this one, shape (n_units,); maybe equal to it."""
        kind = self._kinds[int(rng.choice(len(self._kinds), p=self._weights))]
        return kind(device_of, rng)

    def batch(self, device_of: IntArray, rng: np.random.Generator, size: int) -> IntArray:
        """Neighbours that differ from the placement, shape (<= size, n_units)."""
        rows = [self.neighbour(device_of, rng) for _ in range(size)]
        rows = [row for row in rows if not np.array_equal(row, device_of)]
        return np.array(rows, dtype=np.int64).reshape(len(rows), len(device_of))

    def shaken(self, device_of: IntArray, rng: np.random.Generator, moves: int) -> IntArray:
        """Several random block moves in a row."""
        for _ in range(moves):
            kind = self._branch if self._branches and rng.random() < 0.5 else self._run
            device_of = kind(device_of, rng)
        return device_of

    def _moved(self, device_of: IntArray, units: IntArray, device: int) -> IntArray:
        """The units' classes on `device`, where they may be there."""
        groups = np.unique(self._classes.group_of[units])
        groups = groups[self._allowed[groups, device]]
        chosen = np.zeros(self._classes.n_groups, dtype=np.bool_)
        chosen[groups] = True
        return np.where(chosen[self._classes.group_of], device, device_of)

    def _device(self, rng: np.random.Generator, other_than: int = -1) -> int:
        n_devices = self.problem.n_devices
        if other_than < 0 or n_devices == 1:
            return int(rng.integers(n_devices))
        return int((other_than + 1 + rng.integers(n_devices - 1)) % n_devices)

    def _class(self, device_of: IntArray, rng: np.random.Generator) -> IntArray:
        group = int(rng.choice(self._movable))
        units = self._classes.members.row(group)
        return self._moved(device_of, units, self._device(rng, int(device_of[units[0]])))

    def _swap(self, device_of: IntArray, rng: np.random.Generator) -> IntArray:
        first, second = (self._classes.members.row(int(g)) for g in rng.choice(self._movable, 2))
        swapped = self._moved(device_of, first, int(device_of[second[0]]))
        return self._moved(swapped, second, int(device_of[first[0]]))

    def _run(self, device_of: IntArray, rng: np.random.Generator) -> IntArray:
        """A contiguous run of one of two orders; lengths are spread evenly over magnitudes."""
        order = self._orders[int(rng.integers(len(self._orders)))]
        length = int(np.exp(rng.uniform(0.0, np.log(len(order) + 1.0))))
        start = int(rng.integers(len(order)))
        units = order[start : start + max(1, length)]
        return self._moved(device_of, units, self._device(rng))

    def _branch(self, device_of: IntArray, rng: np.random.Generator) -> IntArray:
        units = self._branches[int(rng.integers(len(self._branches)))]
        return self._moved(device_of, units, self._device(rng))

    def _boundary(self, device_of: IntArray, rng: np.random.Generator) -> IntArray:
        """One end of a crossing edge, or all that is connected to it on its device, crosses."""
        crossing = np.flatnonzero(device_of[self._sources] != device_of[self._targets])
        if len(crossing) == 0:
            return self._run(device_of, rng)
        edge = int(rng.choice(crossing))
        ends = int(self._sources[edge]), int(self._targets[edge])
        moving, staying = ends if rng.random() < 0.5 else ends[::-1]
        limit = 1 if rng.random() < 0.5 else int(rng.integers(2, 2 + self.problem.n_units))
        units = self._connected(device_of, moving, limit)
        return self._moved(device_of, units, int(device_of[staying]))

    def _connected(self, device_of: IntArray, unit: int, limit: int) -> IntArray:
        """Up to `limit` units of one device around a unit, nearest first."""
        graph = self.problem.unit_graph
        seen: dict[int, None] = {unit: None}
        for current in (queue := [unit]):
            if len(seen) >= limit:
                break
            for rows in (graph.successors, graph.predecessors):
                for other in rows.row(current).tolist():
                    if other not in seen and device_of[other] == device_of[unit]:
                        seen[other] = None
                        queue.append(other)
        return np.array(list(seen)[:limit], dtype=np.int64)

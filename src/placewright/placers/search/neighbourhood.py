"""Random moves of placements and of orders, for local search.

A move sends to one device a class, a branch, a run of units, a connected set or a boundary unit, or
swaps two classes. Branches between a fork and a join are subtrees of the dominator tree (units that
can only be reached through a unit) or of the post-dominator tree (units that only lead to a unit);
runs are contiguous in the graph's topological order or in a depth-first one. K. D. Cooper, T. J.
Harvey, K. Kennedy, "A Simple, Fast Dominance Algorithm", 2001.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from placewright.core.arrays import Csr, FloatArray, IntArray, positions_in
from placewright.core.problem import Problem
from placewright.placers.list_scheduling.ranks import ready_by_rank
from placewright.simulation.compiled import compiled

_LARGE_GRAPH = 5000  # units; in larger graphs runs take the place of branches
_MOST_MEMBERS = 2_000_000  # of all branches of one dominator tree


@lru_cache(maxsize=1)
def moves_of(problem: Problem) -> Moves:
    """The moves of a problem, cached for the next turn on it."""
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
        """True if every class has one device only."""
        return len(self._movable) == 0

    def neighbour(self, device_of: IntArray, rng: np.random.Generator) -> IntArray:
        """A random neighbour of the placement, shape (n_units,); it may be equal."""
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
        """Move the classes of the units to `device`, if they are allowed there."""
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
        """Move one end of a crossing edge, or its connected units on its device, across."""
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


def branch_by_branch_order(problem: Problem) -> IntArray:
    """A topological order that finishes a branch before it begins the next, shape (n_units,)."""
    graph = problem.unit_graph
    missing = np.diff(graph.predecessors.indptr)
    return np.asarray(_depth_first(graph.successors.indptr, graph.successors.indices, missing))


@compiled
def _depth_first(indptr: IntArray, successors: IntArray, missing: IntArray) -> IntArray:
    n_units, done, height = len(missing), 0, 0
    order, stack = np.empty(n_units, np.int64), np.empty(n_units, np.int64)
    for unit in range(n_units - 1, -1, -1):
        if missing[unit] == 0:
            stack[height] = unit
            height += 1
    while height > 0:
        height -= 1
        unit = stack[height]
        order[done] = unit
        done += 1
        for at in range(indptr[unit + 1] - 1, indptr[unit] - 1, -1):
            missing[successors[at]] -= 1
            if missing[successors[at]] == 0:
                stack[height] = successors[at]
                height += 1
    return order


def branches(problem: Problem) -> list[IntArray]:
    """Distinct subtrees of both dominator trees with 2 .. n_units - 1 units, smallest first.

    Of a long chain, whose subtrees have a quadratic number of members, the largest are left out.
    """
    graph = problem.unit_graph
    order = graph.topological_order
    distinct: dict[bytes, IntArray] = {}
    for predecessors, forward in ((graph.predecessors, order), (graph.successors, order[::-1])):
        for units in _subtrees(predecessors, forward):
            if 2 <= len(units) < problem.n_units:
                distinct.setdefault(units.tobytes(), units)
    return sorted(distinct.values(), key=lambda units: (len(units), units.astype(">i8").tobytes()))


def _subtrees(predecessors: Csr, order: IntArray) -> list[IntArray]:
    """Members of the smallest subtrees of the dominator tree, `_MOST_MEMBERS` in all at most.

    A virtual root stands before all sources.
    """
    n_units = len(order)
    own = np.array(order)  # as a view, or where it is frozen, it would be compiled for again
    parent = np.asarray(_dominators(predecessors.indptr, predecessors.indices, own))
    size = np.ones(n_units + 1, dtype=np.int64)
    for unit in order[::-1].tolist():
        size[parent[unit]] += size[unit]
    # In a depth-first order of the tree, a subtree is a slice that begins with its root.
    start, free = np.zeros(n_units, dtype=np.int64), np.zeros(n_units + 1, dtype=np.int64)
    for unit in order.tolist():
        start[unit] = free[parent[unit]]
        free[unit] = start[unit] + 1
        free[parent[unit]] += size[unit]
    depth_first = np.argsort(start)
    smallest = np.argsort(size[:-1], kind="stable")
    smallest = smallest[np.cumsum(size[smallest]) <= _MOST_MEMBERS]
    return [np.sort(depth_first[start[unit] : start[unit] + size[unit]]) for unit in smallest]


@compiled
def _dominators(indptr: IntArray, predecessors: IntArray, order: IntArray) -> IntArray:
    """Immediate dominator of each unit, shape (n_units,); n_units is the virtual root."""
    n_units = len(order)
    parent, depth = np.full(n_units, n_units), np.zeros(n_units + 1, np.int64)
    for unit in order:
        common = predecessors[indptr[unit]] if indptr[unit] < indptr[unit + 1] else n_units
        for at in range(indptr[unit] + 1, indptr[unit + 1]):
            other = predecessors[at]
            while common != other:
                if depth[common] >= depth[other]:
                    common = parent[common]
                else:
                    other = parent[other]
        parent[unit], depth[unit] = common, depth[common] + 1
    return parent


def order_by_priority(problem: Problem, priority: FloatArray) -> IntArray:
    """The topological order that always takes the ready unit of highest priority.

    Args:
        priority: shape (n_units,).
    """
    return ready_by_rank(problem, np.asarray(priority, dtype=np.float64))


def shifted(problem: Problem, order: IntArray, rng: np.random.Generator) -> IntArray:
    """Move one random unit to a random place between its last producer and first consumer."""
    graph = problem.unit_graph
    position = positions_in(order)
    unit = int(rng.integers(len(order)))
    before, after = graph.predecessors.row(unit), graph.successors.row(unit)
    low = int(position[before].max(initial=-1)) + 1
    high = int(position[after].min(initial=len(order))) - 1
    rest = np.delete(order, position[unit])
    return np.insert(rest, int(rng.integers(low, high + 1)), unit)

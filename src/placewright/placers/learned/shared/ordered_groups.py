"""Groups whose graph has no cycle, for systems that visit them in topological order.

Placeto's code sorts the groups and fails on a cycle. A merge that would close one is refused here,
and groups are numbered in the order of their graph.

Where colocation closes cycles before any merge, no grouping of whole classes is without them: a
training step keeps the backward ops of a layer with its forward ops. The graph then has only the
edges that lead from a class to one whose first unit comes later. That is the graph of the forward
pass, with each backward op on the device of its forward op, as in the published training graphs.
"""

from __future__ import annotations

import heapq

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from placewright.core.arrays import IntArray
from placewright.core.grouping import Grouping
from placewright.core.problem import Problem
from placewright.placers.learned.shared.grouping import (
    FEWEST_GROUPS,
    ActionSpace,
    Merger,
    edge_list,
    merge_chains,
    merge_neighbours,
    merge_to_fixpoint,
)


class OrderedMerger(Merger):
    """Sets of colocation classes that refuse merges which would close a cycle."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self._rank = first_positions(problem)
        edges = ordered_edges(problem, self._rank)
        self._after: list[set[int]] = [set() for _ in self._classes]
        self._before: list[set[int]] = [set() for _ in self._classes]
        for producer, consumer in edges.T.tolist():
            self._after[producer].add(consumer)
            self._before[consumer].add(producer)

    def merge(self, first: int, second: int) -> bool:
        """Merge two groups given by any of their classes; False if it is refused."""
        first, second = self.root(first), self.root(second)
        if first == second or self._is_around(first, second) or self._is_around(second, first):
            return False
        if not super().merge(first, second):
            return False
        low, high = min(first, second), max(first, second)
        for links, mirrors in ((self._after, self._before), (self._before, self._after)):
            for other in links[high]:
                mirrors[other].discard(high)
                mirrors[other].add(low)
            links[low] |= links[high]
            links[high] = set()
        for links in (self._after, self._before):
            links[low].discard(low)
            links[low].discard(high)
        self._rank[low] = min(self._rank[low], self._rank[high])
        return True

    def _is_around(self, first: int, last: int) -> bool:
        """True if a path leads from one group to another through a third."""
        ahead = [node for node in self._after[first] if node != last]
        seen = set(ahead)
        while ahead:
            for node in self._after[ahead.pop()]:
                if node == last:
                    return True
                if node not in seen:
                    seen.add(node)
                    ahead.append(node)
        return False

    def grouping(self, problem: Problem) -> Grouping:
        """The groups, numbered in topological order; of several the earliest first unit is next."""
        del problem
        labels = self.roots()
        roots = np.unique(labels).tolist()
        waits = {root: len(self._before[root]) for root in roots}
        ready = [(int(self._rank[root]), root) for root in roots if waits[root] == 0]
        heapq.heapify(ready)
        number = np.empty(len(self._classes), dtype=np.int64)
        for index in range(len(roots)):
            _, root = heapq.heappop(ready)
            number[root] = index
            for other in sorted(self._after[root]):
                waits[other] -= 1
                if waits[other] == 0:
                    heapq.heappush(ready, (int(self._rank[other]), other))
        return Grouping(number[labels])


def first_positions(problem: Problem) -> IntArray:
    """Topological position of the first unit of each colocation class, shape (n_classes,)."""
    order = problem.unit_graph.topological_order
    first = np.full(problem.colocation.n_groups, len(order), dtype=np.int64)
    np.minimum.at(first, problem.colocation.group_of[order], np.arange(len(order)))
    return first


def ordered_edges(problem: Problem, rank: IntArray) -> IntArray:
    """Edges between colocation classes without a cycle, shape (2, n_edges).

    All of them if they close none, else those that lead to a later first unit.
    """
    producers, consumers, _ = edge_list(problem)
    class_of, n_classes = problem.colocation.group_of, problem.colocation.n_groups
    ends = np.stack([class_of[producers], class_of[consumers]])
    ends = np.unique(ends[:, ends[0] != ends[1]], axis=1).reshape(2, -1)
    links = coo_array((np.ones(ends.shape[1]), (ends[0], ends[1])), shape=(n_classes, n_classes))
    n_components = int(connected_components(links, connection="strong")[0])
    if n_components == n_classes:
        return ends
    forward: IntArray = ends[:, rank[ends[0]] < rank[ends[1]]]
    return forward


def ordered_space(problem: Problem, n_groups: int) -> ActionSpace:
    """Co-location groups, neighbours merged to at most `n_groups`, without a cycle.

    Group numbers are in topological order of the graph that `OrderedMerger` keeps.
    """
    merger = OrderedMerger(problem)
    merge_to_fixpoint(problem, merger)
    if len(np.unique(merger.roots())) < FEWEST_GROUPS:
        merger = OrderedMerger(problem)
        merge_chains(problem, merger)
    merge_neighbours(problem, merger, n_groups)
    return ActionSpace(problem, merger.grouping(problem))

"""Groups of units that a policy places together, and their expansion to placements of all units.

Groups are closed under colocation. They need not be convex: the evaluator always values the
expanded placement of the units. A merge is refused if the members would have no device in common,
or would fill more than a quarter of the memory of every device that they may use, so that a layer
that is larger than any device can still be spread. All bytes that devices keep count: weights, and
under `max-load` the tensors of samples in flight. One that several colocation classes need counts
once for each of them.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

import numpy as np

from placewright.core.arrays import FloatArray, IntArray
from placewright.core.grouping import DisjointSets, Grouping
from placewright.core.problem import Problem
from placewright.placers.legal import ActionSpace

LARGEST_SHARE_OF_MEMORY = 0.25
FEWEST_GROUPS = 16  # that the published fixpoint must leave


class Merger:
    """Sets of colocation classes that refuse merges which no device could hold."""

    def __init__(self, problem: Problem) -> None:
        classes = problem.colocation
        self.class_of = classes.group_of
        self._sets, self._classes = DisjointSets(classes.n_groups), range(classes.n_groups)
        self._allowed = np.array(problem.allowed_by_class)
        self._kept = problem.kept.bytes_by_label(classes.group_of)
        self._limit = LARGEST_SHARE_OF_MEMORY * problem.cluster.memory_bytes

    def root(self, node: int) -> int:
        """The representative of a class's group."""
        return self._sets.root(node)

    def merge(self, first: int, second: int) -> bool:
        """Merge two groups given by any of their classes; False if it is refused."""
        first, second = self.root(first), self.root(second)
        if first == second:
            return False
        both = self._allowed[first] & self._allowed[second]
        kept = self._kept[first] + self._kept[second]
        if not np.any(both & (kept <= self._limit)):
            return False
        low = self._sets.join(first, second)
        self._allowed[low] = both
        self._kept[low] = kept
        return True

    def roots(self) -> IntArray:
        """The representative of each unit, shape (n_units,)."""
        return np.array([self.root(node) for node in self._classes])[self.class_of]

    def grouping(self, problem: Problem) -> Grouping:
        """The groups, numbered by the first of their units in topological order."""
        labels = self.roots()
        order = problem.unit_graph.topological_order
        rank = np.empty(len(labels), dtype=np.int64)
        rank[Grouping.from_labels(labels[order]).group_of] = labels[order]
        number = np.empty(len(self._classes), dtype=np.int64)
        n_groups = len(np.unique(labels))
        number[rank[:n_groups]] = np.arange(n_groups)
        return Grouping(number[labels])


def edge_list(problem: Problem) -> tuple[IntArray, IntArray, FloatArray]:
    """Producer, consumer and bytes of every edge between units, each of shape (n_edges,)."""
    graph = problem.unit_graph
    tensors = graph.tensor_consumers.row_of_each()
    inner = graph.tensor_producers[tensors] >= 0
    producers = graph.tensor_producers[tensors[inner]]
    consumers = graph.tensor_consumers.indices[inner]
    return producers, consumers, graph.tensor_bytes[tensors[inner]]


def merged_space(
    problem: Problem, n_groups: int, merger_of: Callable[[Problem], Merger] = Merger
) -> ActionSpace:
    """Co-location groups, neighbours merged to at most `n_groups`.

    Co-location groups are the published fixpoint if it leaves `FEWEST_GROUPS` groups, else chains.
    The paper places training graphs and adds rules by hand that keep the branches of a ConvNet
    apart; on a forward graph with one output its fixpoint alone would be a single group.
    """
    merger = merger_of(problem)
    merge_to_fixpoint(problem, merger)
    if len(np.unique(merger.roots())) < FEWEST_GROUPS:
        merger = merger_of(problem)
        merge_chains(problem, merger)
    merge_neighbours(problem, merger, n_groups)
    return ActionSpace(problem, merger.grouping(problem))


def merge_to_fixpoint(problem: Problem, merger: Merger) -> None:
    """Mirhoseini et al. 2017: a group joins the only group that reads it, until there is none.

    A training graph keeps many groups, since backward ops read the activations too. The forward
    graph of a model with a single output ends as one group, unless merges are refused.
    """
    producers, consumers, _ = edge_list(problem)
    refused: dict[tuple[int, int], None] = {}
    while True:
        root = merger.roots()
        pairs = np.unique(np.stack([root[producers], root[consumers]], axis=1), axis=0)
        pairs = pairs[pairs[:, 0] != pairs[:, 1]]
        first, counts = np.unique(pairs[:, 0], return_counts=True)
        single = pairs[np.isin(pairs[:, 0], first[counts == 1])].tolist()
        changed = False
        for producer, consumer in single:
            if (producer, consumer) in refused:
                continue
            if merger.merge(producer, consumer):
                changed = True
            else:
                refused[producer, consumer] = None
        if not changed:
            return


def merge_chains(problem: Problem, merger: Merger) -> None:
    """Merge a unit into its only reader if that reads nothing else: branches stay apart."""
    graph = problem.unit_graph
    for unit in graph.topological_order.tolist():
        readers = graph.successors.row(unit)
        if len(readers) == 1 and len(graph.predecessors.row(int(readers[0]))) == 1:
            merger.merge(int(merger.class_of[unit]), int(merger.class_of[readers[0]]))


def neighbour_merge(problem: Problem, grouping: Grouping, n_groups: int) -> Grouping:
    """Merge the cheapest group into the neighbour that it shares most bytes with, repeatedly.

    Stops at `n_groups` groups, or earlier if no device could hold a further merge.
    """
    merger = Merger(problem)
    for unit, label in enumerate(grouping.members.indptr[grouping.group_of].tolist()):
        leader = int(grouping.members.indices[label])
        merger.merge(int(merger.class_of[leader]), int(merger.class_of[unit]))
    merge_neighbours(problem, merger, n_groups)
    return merger.grouping(problem)


def merge_neighbours(problem: Problem, merger: Merger, n_groups: int) -> None:
    """Merge the cheapest group into a neighbour until there are `n_groups`, or nothing merges."""
    roots = merger.roots()
    total = np.bincount(roots, mean_seconds(problem))
    cost = {root: float(total[root]) for root in np.unique(roots).tolist()}
    shared = _shared_bytes(problem, roots)
    heap = [(value, root) for root, value in sorted(cost.items())]
    heapq.heapify(heap)
    while len(cost) > n_groups and heap:
        value, root = heapq.heappop(heap)
        if cost.get(root) != value:
            continue
        near = sorted(shared.get(root, {}).items(), key=lambda item: (-item[1], item[0]))
        for other in [node for node, _ in near] or _cheapest(heap, cost):
            if other != root and merger.merge(root, other):
                _absorb(cost, shared, merger.root(root), root, other)
                heapq.heappush(heap, (cost[merger.root(root)], merger.root(root)))
                break


def _cheapest(heap: list[tuple[float, int]], cost: dict[int, float]) -> list[int]:
    """The eight cheapest groups of the heap, whose entries of groups that have merged are stale."""
    alive = dict.fromkeys(entry for entry in heap if cost.get(entry[1]) == entry[0])
    return [node for _, node in heapq.nsmallest(8, alive)]


def mean_seconds(problem: Problem) -> FloatArray:
    """Mean seconds of each unit over the devices that can run it, shape (n_units,)."""
    seconds = problem.costs.seconds
    able = np.isfinite(seconds)
    total = np.where(able, seconds, 0.0).sum(axis=1)
    mean: FloatArray = total / np.maximum(1, able.sum(axis=1))
    return mean


def _shared_bytes(problem: Problem, roots: IntArray) -> dict[int, dict[int, float]]:
    shared: dict[int, dict[int, float]] = {}
    for producer, consumer, size in zip(*edge_list(problem), strict=True):
        first, second = int(roots[producer]), int(roots[consumer])
        if first != second:
            for here, there in ((first, second), (second, first)):
                row = shared.setdefault(here, {})
                row[there] = row.get(there, 0.0) + float(size)
    return shared


def _absorb(
    cost: dict[int, float],
    shared: dict[int, dict[int, float]],
    root: int,
    first: int,
    second: int,
) -> None:
    gone = second if root == first else first
    cost[root] += cost.pop(gone)
    row = shared.setdefault(root, {})
    for other, size in shared.pop(gone, {}).items():
        mirror = shared[other]
        mirror.pop(gone, None)
        if other != root:
            row[other] = row.get(other, 0.0) + size
            mirror[root] = mirror.get(root, 0.0) + size
    row.pop(gone, None)

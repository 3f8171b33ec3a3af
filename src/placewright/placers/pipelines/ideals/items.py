"""Items: the groups of units that a contiguous split moves as a whole, and their order.

Preprocessing of Tarnawski et al. 2020 (section 5 and appendix B): forward and backward parts of a
colocation class move as one, so only the forward graph constrains the order of the split; a class
without a forward part is ordered by the mirror image of its backward edges; classes that need each
other (strongly connected) are fused; an item without run time that touches one other item joins it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewright.core.arrays import BoolArray, Csr, IntArray, frozen_ints
from placewright.core.graph import FORWARD, ComputationGraph
from placewright.core.grouping import Grouping
from placewright.core.problem import Problem


@dataclass(frozen=True, eq=False)
class Items:
    """The items of a contiguous split."""

    grouping: Grouping  # unit -> item
    successors: Csr  # precedence among items, acyclic, rows in ascending order
    # True if memory is tight and an item with resident bytes joined another, so that no split
    # separates the two
    absorbed_memory: bool

    @property
    def n_items(self) -> int:
        """Number of items."""
        return self.grouping.n_groups


def items_of(problem: Problem, fused: Grouping | None = None) -> Items:
    """Items of a problem.

    Args:
        fused: units that stay together beyond their colocation class (PipeDream's components).
    """
    grouping = fused or problem.colocation
    grouping = components_fused(grouping, precedence_pairs(problem, grouping))
    grouping, absorbed_memory = _idle_leaves_absorbed(problem, grouping)
    pairs = precedence_pairs(problem, grouping)
    successors = Csr.from_pairs(pairs[:, 0], pairs[:, 1], grouping.n_groups)
    return Items(grouping, successors, absorbed_memory and not problem.keeps_everything)


def precedence_pairs(problem: Problem, grouping: Grouping) -> IntArray:
    """Distinct pairs (before, after) of groups, shape (n_pairs, 2), in ascending order.

    Forward edges as they are; a backward edge mirrored where either end's group has no forward
    unit (it mirrors a forward op that the graph does not have).
    """
    graph = problem.unit_graph
    producers, consumers = unit_edges(graph)
    is_forward = graph.op_phases == FORWARD
    has_forward = np.zeros(grouping.n_groups, dtype=np.bool_)
    has_forward[grouping.group_of[is_forward]] = True
    first, second = grouping.group_of[producers], grouping.group_of[consumers]
    ahead = is_forward[producers] & is_forward[consumers]
    behind = ~is_forward[producers] & ~is_forward[consumers]
    behind &= ~has_forward[first] | ~has_forward[second]
    pairs = np.concatenate(
        [
            np.stack([first[ahead], second[ahead]], axis=1),
            np.stack([second[behind], first[behind]], axis=1),
        ]
    )
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    return np.unique(pairs, axis=0).astype(np.int64)


def has_backward_to_forward_edge(problem: Problem) -> bool:
    """True if a forward unit reads an output of a backward unit: no forward graph exists."""
    graph = problem.unit_graph
    producers, consumers = unit_edges(graph)
    is_forward = graph.op_phases == FORWARD
    return bool(np.any(~is_forward[producers] & is_forward[consumers]))


def unit_edges(graph: ComputationGraph, *, as_read: bool = False) -> tuple[IntArray, IntArray]:
    """Producer and consumer of every edge between units, each of shape (n_edges,).

    Consumers of a tensor ascend; with `as_read` they keep the order of the file, if it is known.
    """
    readers = graph.tensor_consumers
    if as_read and graph.consumers_as_read is not None:
        readers = graph.consumers_as_read
    producers = graph.tensor_producers[readers.row_of_each()]
    inner = producers >= 0
    return producers[inner], readers.indices[inner]


def components_fused(grouping: Grouping, pairs: IntArray) -> Grouping:
    """Fuse groups that reach each other."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    n = grouping.n_groups
    matrix = coo_array((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), shape=(n, n))
    _, labels = connected_components(matrix.tocsr(), directed=True, connection="strong")
    return grouping.then(Grouping.from_labels(labels))


def _idle_leaves_absorbed(problem: Problem, grouping: Grouping) -> tuple[Grouping, bool]:
    """Let an item that takes no time on any device join its only neighbour.

    It joins if it may run wherever the neighbour may; there it never adds load. The second result
    is True if one of them has resident bytes.
    """
    n = grouping.n_groups
    idle, allowed, has_bytes = _traits(problem, grouping)
    around = _neighbours(problem, grouping)
    host = np.arange(n, dtype=np.int64)
    absorbed_memory = False
    waiting = [item for item in range(n) if idle[item]]
    while waiting:
        item = waiting.pop()
        if host[item] != item or len(around[item]) != 1:
            continue
        (neighbour,) = around[item]
        if not bool(np.all(allowed[item] | ~allowed[neighbour])):
            continue
        host[item] = neighbour
        around[neighbour].pop(item)
        absorbed_memory |= bool(has_bytes[item])
        has_bytes[neighbour] |= has_bytes[item]
        if idle[neighbour]:
            waiting.append(neighbour)
    while not np.array_equal(host, host[host]):
        host = host[host]
    return grouping.then(Grouping.from_labels(host)), absorbed_memory


def _traits(problem: Problem, grouping: Grouping) -> tuple[BoolArray, BoolArray, BoolArray]:
    """Per group: takes no time anywhere, allowed devices, has resident bytes."""
    n = grouping.n_groups
    idle = np.ones(n, dtype=np.bool_)
    allowed = np.ones((n, problem.n_devices), dtype=np.bool_)
    has_bytes = np.zeros(n, dtype=np.bool_)
    busy = np.where(problem.allowed, problem.costs.seconds, 0.0) + problem.exchange_seconds
    zero = busy.max(axis=1) <= 0.0
    np.logical_and.at(idle, grouping.group_of, zero)
    np.logical_and.at(allowed, grouping.group_of, problem.allowed)
    np.logical_or.at(has_bytes, grouping.group_of, problem.kept.unit_bytes > 0)
    return idle, allowed, has_bytes


def _neighbours(problem: Problem, grouping: Grouping) -> list[dict[int, None]]:
    """Groups that share an edge with each group, in either direction."""
    producers, consumers = unit_edges(problem.unit_graph)
    first, second = grouping.group_of[producers], grouping.group_of[consumers]
    pairs = np.concatenate([np.stack([first, second], axis=1), precedence_pairs(problem, grouping)])
    around: list[dict[int, None]] = [{} for _ in range(grouping.n_groups)]
    for one, other in np.unique(pairs[pairs[:, 0] != pairs[:, 1]], axis=0).tolist():
        around[one][other] = None
        around[other][one] = None
    return around


def depth_first_order(successors: Csr) -> IntArray:
    """A topological order that follows chains: the item that became free last goes first.

    The order of the linearised program of Tarnawski et al. 2020; ties by highest index.

    >>> depth_first_order(Csr.from_rows([[2], [3], [], []])).tolist()
    [1, 3, 0, 2]
    """
    n = successors.n_rows
    waiting = np.bincount(successors.indices, minlength=n).tolist()
    free = [item for item in range(n) if waiting[item] == 0]
    order: list[int] = []
    while free:
        item = free.pop()
        order.append(item)
        for target in successors.row(item).tolist():
            waiting[target] -= 1
            if waiting[target] == 0:
                free.append(target)
    return frozen_ints(order)

"""Items: the groups of units that a contiguous split moves as a whole, and their order.

Preprocessing of Tarnawski et al. 2020 (section 5 and appendix B): forward and backward parts of a
colocation class move as one, so only the forward graph constrains the order of the split; a class
without a forward part is ordered by the mirror image of its backward edges; classes that need each
other (strongly connected) are fused; an item that takes no time, and nothing of a limit, joins the
only other item that it touches, unless it touches the host.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placewright.core.arrays import BoolArray, Csr, IntArray, frozen_ints
from placewright.core.graph import FORWARD, ComputationGraph
from placewright.core.grouping import Grouping
from placewright.core.problem import Problem
from placewright.simulation.compiled import compiled


@dataclass(frozen=True, eq=False)
class Items:
    """The items of a contiguous split."""

    grouping: Grouping  # unit -> item
    successors: Csr  # precedence among items, acyclic, rows in ascending order
    # True if memory is tight and an item with resident bytes joined another, so that no split
    # separates the two
    absorbed_memory: bool
    has_fused_classes: bool  # True if classes that need each other are one item

    @property
    def n_items(self) -> int:
        """Number of items."""
        return self.grouping.n_groups

    @property
    def restriction(self) -> str:
        """Words for a message that no split exists; empty if items are whole classes."""
        return " that keeps ops without run time at their neighbour" if self.absorbed_memory else ""

    @property
    def restrictions(self) -> str:
        """Words as `restriction` for a message about all splits."""
        return " that keep ops without run time at their neighbour" if self.absorbed_memory else ""


def items_of(problem: Problem, fused: Grouping | None = None) -> Items:
    """Items of a problem.

    Args:
        fused: units that stay together beyond their colocation class (PipeDream's components).
    """
    grouping = fused or problem.colocation
    classes, grouping = grouping, components_fused(grouping, precedence_pairs(problem, grouping))
    has_fused_classes = grouping.n_groups < classes.n_groups
    grouping, absorbed_memory = _idle_leaves_absorbed(problem, grouping)
    pairs = precedence_pairs(problem, grouping)
    successors = Csr.from_pairs(pairs[:, 0], pairs[:, 1], grouping.n_groups)
    absorbed_memory &= not problem.keeps_everything
    return Items(grouping, successors, absorbed_memory, has_fused_classes)


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
    """Let an item that takes nothing, neither time nor of a limit, join its only neighbour.

    It joins if it may run wherever the neighbour may; there it never adds load. An item that reads
    a graph input or makes an output stays: it may save a transfer by staying with the host. The
    second result is True if one of them has resident bytes.
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
    """Per group: no cost anywhere and no tensor of the host, allowed devices, resident bytes."""
    n = grouping.n_groups
    idle = np.ones(n, dtype=np.bool_)
    allowed = np.ones((n, problem.n_devices), dtype=np.bool_)
    has_bytes = np.zeros(n, dtype=np.bool_)
    busy = np.where(problem.allowed, problem.costs.seconds, 0.0) + problem.exchange_seconds
    zero = busy.max(axis=1) <= 0.0
    for quantity in problem.limits:
        charged = np.where(problem.allowed, problem.charges[quantity].own, 0.0)
        zero &= charged.max(axis=1) <= 0.0
    graph = problem.unit_graph
    producers, readers = graph.tensor_producers, graph.tensor_consumers
    zero[readers.indices[producers[readers.row_of_each()] < 0]] = False
    zero[producers[graph.tensor_is_output & (producers >= 0)]] = False
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


_Words = NDArray[np.uint64]
_FIRST_IDEALS = 10_000
_MOST_BYTES = 2**30  # of the sets of all ideals, one bit for each item


@dataclass(frozen=True, eq=False)
class IdealLattice:
    """Ideals in order of size: 0 is the empty set, the last one holds every item."""

    # the additions to ideal i are entries ``indptr[i]:indptr[i + 1]`` of the next two
    indptr: IntArray
    added: IntArray  # item that is added, shape (n_additions,)
    reached: IntArray  # ideal that results, shape (n_additions,)

    @property
    def n_ideals(self) -> int:
        """Number of ideals."""
        return len(self.indptr) - 1


def chain(order: IntArray) -> IdealLattice:
    """The ideals of a linear order: its prefixes.

    >>> chain(np.array([2, 0, 1])).n_ideals
    4
    """
    n = len(order)
    indptr = np.minimum(np.arange(n + 2), n)
    return IdealLattice(frozen_ints(indptr), frozen_ints(order), frozen_ints(np.arange(1, n + 1)))


def enumerate_ideals(successors: Csr, limit: int) -> IdealLattice | None:
    """All ideals of an acyclic precedence, or None if there are more than `limit`.

    Args:
        successors: items that come after each item.
        limit: on the number of ideals.
    """
    predecessors = successors.transposed(successors.n_rows)
    within, *arrays = _enumerate(
        predecessors.indptr,
        predecessors.indices,
        successors.n_rows,
        limit,
    )
    if not within:
        return None
    return IdealLattice(*(frozen_ints(array) for array in arrays))


def enumerate_in_time(
    successors: Csr, limit: int, seconds_left: Callable[[], float]
) -> tuple[IdealLattice | None, int]:
    """All ideals, with a limit that grows tenfold as long as time and memory allow.

    Args:
        successors: items that come after each item.
        limit: as in `enumerate_ideals`.
        seconds_left: of the budget; inf without a limit.

    Returns:
        The lattice, None if there are more ideals than the last limit; and that limit.
    """
    limit = min(limit, most_in_memory(successors.n_rows))
    looked_for = limit if math.isinf(seconds_left()) else min(limit, _FIRST_IDEALS)
    while True:
        before = seconds_left()
        lattice = enumerate_ideals(successors, looked_for)
        left = seconds_left()
        too_long = 10.0 * (before - left) > left
        if lattice is not None or looked_for == limit or too_long:
            return lattice, looked_for
        looked_for = min(limit, 10 * looked_for)


def most_in_memory(n_items: int) -> int:
    """Number of ideals of so many items whose sets fit into memory."""
    return _MOST_BYTES // (8 * max(1, (n_items + 63) // 64))


@compiled
def _hash_of(words: _Words) -> np.uint64:
    """FNV-style mix of a bitset."""
    value = np.uint64(1469598103934665603)
    for word in words:
        value = (value ^ word) * np.uint64(1099511628211)
        value ^= value >> np.uint64(29)
    return value


@compiled
def _find(table: IntArray, bits: NDArray[np.uint64], words: _Words) -> np.int64:
    """Slot of the hash table that holds the set `words`, or the free slot where it belongs."""
    mask = np.int64(len(table) - 1)
    slot = np.int64(_hash_of(words) & np.uint64(mask))
    while table[slot] >= 0 and not np.array_equal(bits[table[slot]], words):
        slot = (slot + 1) & mask
    return slot


@compiled
def _enumerate(pred_ptr, preds, n_items, limit) -> tuple[bool, IntArray, IntArray, IntArray]:  # type: ignore[no-untyped-def]
    """Breadth first from the empty set; equal sets meet in a hash table of bitsets."""
    n_words = max(1, (n_items + 63) // 64)
    capacity = 1024
    bits = np.zeros((capacity, n_words), dtype=np.uint64)
    table = np.full(4 * capacity, -1, dtype=np.int64)
    words = np.zeros(n_words, dtype=np.uint64)
    table[_find(table, bits, words)] = 0
    indptr = [np.int64(0)]
    added = [np.int64(0) for _ in range(0)]
    reached = [np.int64(0) for _ in range(0)]
    n_ideals = 1
    current = 0
    while current < n_ideals:
        for item in range(n_items):
            word, bit = item >> 6, np.uint64(1) << np.uint64(item & 63)
            if bits[current, word] & bit:
                continue
            is_free = True
            for k in range(pred_ptr[item], pred_ptr[item + 1]):
                p = preds[k]
                if not bits[current, p >> 6] & (np.uint64(1) << np.uint64(p & 63)):
                    is_free = False
                    break
            if not is_free:
                continue
            words[:] = bits[current]
            words[word] |= bit
            slot = _find(table, bits, words)
            if table[slot] < 0:
                if n_ideals >= limit:
                    return False, np.array(indptr), np.array(added), np.array(reached)
                if n_ideals == capacity:
                    capacity *= 2
                    larger = np.zeros((capacity, n_words), dtype=np.uint64)
                    larger[:n_ideals] = bits
                    bits = larger
                    table = np.full(4 * capacity, -1, dtype=np.int64)
                    for ideal in range(n_ideals):
                        table[_find(table, bits, bits[ideal])] = ideal
                    slot = _find(table, bits, words)
                bits[n_ideals] = words
                table[slot] = n_ideals
                n_ideals += 1
            added.append(np.int64(item))
            reached.append(table[slot])
        indptr.append(np.int64(len(added)))
        current += 1
    return True, np.array(indptr), np.array(added), np.array(reached)

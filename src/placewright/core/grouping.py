"""Partitions of a graph's nodes, the coarser graph of a convex one, and texts for units."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from placewright.core.arrays import (
    Csr,
    FloatArray,
    IntArray,
    frozen_bools,
    frozen_floats,
    frozen_ints,
)
from placewright.core.graph import ComputationGraph
from placewright.core.quantities import format_bytes
from placewright.errors import GraphError, GroupingError


class DisjointSets:
    """Sets of the numbers 0 .. n - 1 that only grow: union-find with path halving.

    The smallest number of a set is its root.
    """

    def __init__(self, n: int) -> None:
        self._parent = list(range(n))

    def root(self, number: int) -> int:
        """The smallest number of the set that holds `number`."""
        parent = self._parent
        while parent[number] != number:
            parent[number] = parent[parent[number]]
            number = parent[number]
        return number

    def join(self, first: int, second: int) -> int:
        """Unite the sets of two numbers; return the root of the united set."""
        low, high = sorted((self.root(first), self.root(second)))
        self._parent[high] = low
        return low

    def grouping(self) -> Grouping:
        """The sets as groups, numbered by their first member."""
        return Grouping.from_labels([self.root(number) for number in range(len(self._parent))])


@dataclass(frozen=True, eq=False)
class Grouping:
    """A partition of n nodes into groups 0 .. n_groups - 1, none of them empty."""

    group_of: IntArray  # group of each node, shape (n_nodes,), int64

    def __post_init__(self) -> None:
        used = np.unique(self.group_of)
        if len(used) == 0 or not np.array_equal(used, np.arange(len(used))):
            raise GroupingError("groups must be numbered 0, 1, 2, ... without an empty one")

    @classmethod
    def identity(cls, n_nodes: int) -> Grouping:
        """Every node on its own."""
        return cls(frozen_ints(np.arange(n_nodes)))

    @classmethod
    def from_labels(cls, labels: ArrayLike) -> Grouping:
        """Nodes with equal labels share a group; groups are numbered by first appearance."""
        _, first, inverse = np.unique(np.asarray(labels), return_index=True, return_inverse=True)
        rank = np.empty(len(first), dtype=np.int64)
        rank[np.argsort(first)] = np.arange(len(first))
        return cls(frozen_ints(rank[inverse.ravel()]))

    @property
    def n_nodes(self) -> int:
        """Number of nodes that are grouped."""
        return len(self.group_of)

    @cached_property
    def n_groups(self) -> int:
        """Number of groups."""
        return int(self.group_of.max()) + 1

    @cached_property
    def members(self) -> Csr:
        """Nodes of each group, in ascending order."""
        return Csr.from_pairs(self.group_of, np.arange(self.n_nodes), self.n_groups)

    @property
    def is_identity(self) -> bool:
        """True when every node is its own group, in order."""
        return self.n_groups == self.n_nodes and bool(
            np.array_equal(self.group_of, np.arange(self.n_nodes))
        )

    def expand(self, per_group: ArrayLike) -> IntArray:
        """Give every node the value of its group: shape (n_groups,) -> (n_nodes,)."""
        return np.asarray(per_group, dtype=np.int64)[self.group_of]

    def sums(self, rows: FloatArray) -> FloatArray:
        """Sums of the rows of each group's nodes: shape (n_nodes, n) -> (n_groups, n)."""
        total = np.zeros((self.n_groups, rows.shape[1]))
        np.add.at(total, self.group_of, rows)
        return total

    def then(self, coarser: Grouping) -> Grouping:
        """The grouping of nodes that `coarser`, a grouping of these groups, makes."""
        return Grouping(frozen_ints(coarser.group_of[self.group_of]))


@dataclass(frozen=True, eq=False)
class Quotient:
    """The graph whose ops are the groups of a finer one."""

    graph: ComputationGraph  # one op per group; tensors inside a group are gone
    # the finer graph's tensor behind each tensor of `graph`, shape (n_tensors,)
    tensor_of: IntArray


def quotient(
    graph: ComputationGraph, grouping: Grouping, working: FloatArray | None = None
) -> Quotient:
    """Merge the ops of each group into one op named after its costliest member.

    Flops add up, shared weights stay shared, a tensor stays when another group reads it or it
    leaves the graph.

    Args:
        grouping: of its ops; its groups are convex.
        working: bytes that each group takes besides while it runs, shape (n_groups,): a group that
            needs any has one more tensor, which nobody reads.

    Raises:
        GroupingError: the grouping has another size, or merging makes a cycle (a group that is not
            convex, or groups that need each other).
    """
    if grouping.n_nodes != graph.n_ops:
        raise GroupingError(f"the grouping has {grouping.n_nodes} nodes, the graph {graph.n_ops}")
    group_of, n_groups = grouping.group_of, grouping.n_groups
    tensors = graph.tensor_consumers.row_of_each()
    producers = graph.tensor_producers
    producer_group = np.where(producers >= 0, group_of[np.maximum(producers, 0)], -1)
    consumer_group = group_of[graph.tensor_consumers.indices]
    crossing = producer_group[tensors] != consumer_group
    pairs = np.unique(tensors[crossing] * n_groups + consumer_group[crossing])
    leaving = np.union1d(np.unique(pairs // n_groups), np.flatnonzero(graph.tensor_is_output))
    new_index = np.full(graph.n_tensors, -1, dtype=np.int64)
    new_index[leaving] = np.arange(len(leaving))
    leader = _leaders(graph, grouping)
    try:
        merged = ComputationGraph(
            op_names=tuple(graph.op_names[op] for op in leader),
            op_kinds=tuple(graph.op_kinds[op] for op in leader),
            op_flops=frozen_floats(np.bincount(group_of, graph.op_flops, minlength=n_groups)),
            op_phases=frozen_ints(graph.op_phases[leader]),
            op_modules=tuple(graph.op_modules[op] for op in leader),
            op_colocation=frozen_ints(colocation_of_groups(graph.op_colocation, grouping)),
            op_weights=_weights_of_groups(graph, grouping),
            weight_bytes=graph.weight_bytes,
            tensor_bytes=frozen_floats(graph.tensor_bytes[leaving]),
            tensor_producers=frozen_ints(producer_group[leaving]),
            tensor_consumers=Csr.from_pairs(
                new_index[pairs // n_groups], pairs % n_groups, len(leaving)
            ),
            tensor_is_output=frozen_bools(graph.tensor_is_output[leaving]),
            tensor_shapes=tuple(graph.tensor_shapes[tensor] for tensor in leaving),
            tensor_dtypes=tuple(graph.tensor_dtypes[tensor] for tensor in leaving),
            consumers_as_read=_as_read(graph, grouping, leaving),
            weight_dtypes=graph.weight_dtypes,
        )
    except GraphError as error:
        raise GroupingError(f"the groups do not form an acyclic graph: {error}") from error
    coarse = Quotient(merged, frozen_ints(leaving))
    return coarse if working is None else _with_working_memory(coarse, working)


def _with_working_memory(coarse: Quotient, working: FloatArray) -> Quotient:
    graph, groups = coarse.graph, np.flatnonzero(working > 0)
    added, consumers = len(groups), graph.tensor_consumers
    if not added:
        return coarse
    as_read = graph.consumers_as_read
    merged = replace(
        graph,
        tensor_bytes=frozen_floats(np.concatenate([graph.tensor_bytes, working[groups]])),
        tensor_producers=frozen_ints(np.concatenate([graph.tensor_producers, groups])),
        tensor_consumers=Csr.from_pairs(
            consumers.row_of_each(), consumers.indices, graph.n_tensors + added
        ),
        consumers_as_read=None
        if as_read is None
        else Csr.from_rows([*(as_read.row(at) for at in range(graph.n_tensors)), *[()] * added]),
        tensor_is_output=frozen_bools(
            np.concatenate([graph.tensor_is_output, np.zeros(added, dtype=np.bool_)])
        ),
        tensor_shapes=(*graph.tensor_shapes, *((),) * added),
        tensor_dtypes=(*graph.tensor_dtypes, *("",) * added),
    )
    # They are never transferred, so no tensor of the finer graph stands behind them.
    return Quotient(merged, frozen_ints(np.concatenate([coarse.tensor_of, np.full(added, -1)])))


def _as_read(graph: ComputationGraph, grouping: Grouping, kept: IntArray) -> Csr | None:
    """Keep `consumers_as_read` if every group is a single op; else None."""
    rows = graph.consumers_as_read
    alone = np.array_equal(grouping.group_of, np.arange(graph.n_ops))
    return Csr.from_rows([rows.row(int(t)) for t in kept]) if rows is not None and alone else None


def colocation_of_groups(classes: IntArray, grouping: Grouping) -> IntArray:
    """Colocation class of each group, -1 where free; classes that meet in a group become one."""
    labels, numbers = np.unique(classes, return_inverse=True)
    sets = DisjointSets(len(labels))
    first: dict[int, int] = {}  # of each group, by its number in `labels`
    bound = np.flatnonzero(classes >= 0)
    for group, number in zip(
        grouping.group_of[bound].tolist(), numbers[bound].tolist(), strict=True
    ):
        sets.join(first.setdefault(group, number), number)
    result = np.full(grouping.n_groups, -1, dtype=np.int64)
    for group, number in first.items():
        result[group] = labels[sets.root(number)]
    return result


def with_whole_classes(graph: ComputationGraph, grouping: Grouping) -> Grouping:
    """Join the groups that share a colocation class; the result may have cycles."""
    labels = grouping.group_of.copy()
    for own in np.unique(graph.op_colocation[graph.op_colocation >= 0]):
        joined = np.unique(labels[graph.op_colocation == own])
        labels[np.isin(labels, joined)] = joined[0]
    return Grouping.from_labels(labels)


def _leaders(graph: ComputationGraph, grouping: Grouping) -> IntArray:
    by_cost = np.lexsort((np.arange(graph.n_ops), -graph.op_flops, grouping.group_of))
    starts = np.searchsorted(grouping.group_of[by_cost], np.arange(grouping.n_groups))
    return by_cost[starts].astype(np.int64)


def _weights_of_groups(graph: ComputationGraph, grouping: Grouping) -> Csr:
    n_weights = max(1, len(graph.weight_bytes))
    groups = grouping.group_of[graph.op_weights.row_of_each()]
    pairs = np.unique(groups * n_weights + graph.op_weights.indices)
    return Csr.from_pairs(pairs // n_weights, pairs % n_weights, grouping.n_groups)


_MOST_NAMED = 4  # ops of a unit in a message


@dataclass(frozen=True)
class LargestUnit:
    """The unit with the most weights; among equals the one with the most ops, then the first."""

    op: str  # name of its costliest op
    n_ops: int  # number of its ops
    weight_bytes: float  # of its weights, each counted once

    @property
    def text(self) -> str:
        """The unit in one line."""
        more = "1 op" if self.n_ops == 1 else f"{self.n_ops} ops"
        return (
            f"largest unit: {more} around '{self.op}' with {format_bytes(self.weight_bytes)} of "
            "weights"
        )


def unit_text(graph: ComputationGraph, units: Grouping, unit: int) -> str:
    """``op 'x'``, or ``the unit of op 'x' with 'a', 'b' and 7 more ops``."""
    ops = units.members.row(unit).tolist()
    chief = _costliest(graph, ops)
    others = [f"'{graph.op_names[op]}'" for op in ops if op != chief]
    if not others:
        return f"op '{graph.op_names[chief]}'"
    shown, more = others[:_MOST_NAMED], len(others) - _MOST_NAMED
    listed = ", ".join(shown) if len(shown) == 1 or more > 0 else _and(shown)
    rest = f" and {more} more op{'s' if more > 1 else ''}" if more > 0 else ""
    return f"the unit of op '{graph.op_names[chief]}' with {listed}{rest}"


def largest_unit(graph: ComputationGraph, units: Grouping) -> LargestUnit:
    """The largest unit of a graph."""
    weights = unit_weight_bytes(graph, units)
    sizes = np.bincount(units.group_of, minlength=units.n_groups)
    unit = int(np.lexsort((np.arange(units.n_groups), -sizes, -weights))[0])
    chief = _costliest(graph, units.members.row(unit).tolist())
    return LargestUnit(graph.op_names[chief], int(sizes[unit]), float(weights[unit]))


def unit_weight_bytes(graph: ComputationGraph, units: Grouping) -> FloatArray:
    """Bytes of the weights of each unit, each weight counted once in it, shape (n_units,)."""
    n_weights = max(1, len(graph.weight_bytes))
    rows = graph.op_weights
    pairs = np.unique(units.group_of[rows.row_of_each()] * n_weights + rows.indices)
    sizes = graph.weight_bytes[pairs % n_weights]
    sums = np.bincount(pairs // n_weights, sizes, minlength=units.n_groups)
    return sums.astype(np.float64)


def _costliest(graph: ComputationGraph, ops: list[int]) -> int:
    return min(ops, key=lambda op: (-float(graph.op_flops[op]), op))


def _and(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"

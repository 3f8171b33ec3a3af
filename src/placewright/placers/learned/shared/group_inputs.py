"""Features of graphs for policies, and features and actions of a grouper with its placer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.sparse import coo_array

from placewright.core.arrays import Csr, FloatArray, IntArray
from placewright.core.grouping import Grouping
from placewright.core.problem import Problem
from placewright.placers.learned.shared.grouping import edge_list
from placewright.placers.legal import ActionSpace

ADJACENCY_SLOTS = 10


@dataclass(frozen=True, eq=False)
class NodeRows:
    """Features of the nodes that the grouper groups (units, or colocation classes)."""

    kinds: FloatArray  # kind counts, shape (n_nodes, n_kinds)
    shapes: FloatArray  # padded output shapes, shape (n_nodes, 25), -1 pads
    # difference of numbers / n_nodes to the first consumers, then to the first producers, 0 pads,
    # shape (n_nodes, 2 * ADJACENCY_SLOTS)
    neighbours: FloatArray
    edges: IntArray  # distinct edges between nodes, shape (2, n_edges)

    @classmethod
    def of(cls, problem: Problem, nodes: Grouping, *, logarithmic: bool = True) -> NodeRows:
        """Features of the nodes that `nodes` groups a problem's units into.

        Shapes are as `output_shapes` returns them.
        """
        edges, _ = group_edges(problem, nodes)
        slots = np.zeros((nodes.n_groups, 2, ADJACENCY_SLOTS))
        used = np.zeros((nodes.n_groups, 2), dtype=np.int64)
        for producer, consumer in edges.T.tolist():
            for here, there, side in ((producer, consumer, 0), (consumer, producer, 1)):
                if used[here, side] < ADJACENCY_SLOTS:
                    slots[here, side, used[here, side]] = (there - here) / nodes.n_groups
                    used[here, side] += 1
        return cls(
            kind_counts(problem, nodes, kind_vocabulary(problem)),
            output_shapes(problem, nodes, logarithmic=logarithmic),
            slots.reshape(nodes.n_groups, -1),  # (nodes, out ++ in)
            edges,
        )

    def for_grouper(self) -> FloatArray:
        """Input of the grouper, shape (n_nodes, n_kinds + 25 + 2 * ADJACENCY_SLOTS)."""
        return np.concatenate([self.kinds, self.shapes, self.neighbours], axis=1)

    @cached_property
    def _sizes(self) -> FloatArray:
        """Features that a group sums up: kind counts and shapes, (n_nodes, n_kinds + 25)."""
        return np.concatenate([self.kinds, np.maximum(self.shapes, 0.0)], axis=1)

    def for_placer(self, group_of: IntArray, n_groups: int) -> FloatArray:
        """Rows of sampled groups, shape (n_groups, n_kinds + 25 + 2 * n_groups).

        Edges to and from each group, itself included, kind counts, and summed output shapes (pads
        count 0); each row divided by its maximum + 1.
        """
        n_nodes = len(group_of)
        entries = (np.ones(n_nodes), (group_of, np.arange(n_nodes)))
        members = coo_array(entries, shape=(n_groups, n_nodes))
        pairs = group_of[self.edges[0]] * n_groups + group_of[self.edges[1]]
        adjacency = np.bincount(pairs, minlength=n_groups**2).reshape(n_groups, n_groups)
        sums = members @ self._sizes
        rows = np.concatenate([adjacency, adjacency.T, sums], axis=1)
        return np.asarray(rows / (rows.max(axis=1, keepdims=True) + 1.0))


@dataclass(frozen=True, eq=False)
class JointSpace:
    """The action space of a grouper and a placer that are trained together."""

    nodes: Grouping  # units -> nodes, which the grouper groups (colocation classes)
    space: ActionSpace  # devices of units
    rows: NodeRows  # features of the nodes
    n_groups: int  # number of groups to choose from

    @classmethod
    def of(cls, problem: Problem, n_groups: int, *, logarithmic: bool = True) -> JointSpace:
        """At most `n_groups` groups of a problem's colocation classes."""
        nodes = problem.colocation
        rows = NodeRows.of(problem, nodes, logarithmic=logarithmic)
        return cls(nodes, ActionSpace(problem, nodes), rows, min(n_groups, nodes.n_groups))

    @property
    def placer_inputs(self) -> int:
        """Width of the placer's rows."""
        return int(self.rows.kinds.shape[1] + self.rows.shapes.shape[1]) + 2 * self.n_groups

    def uniform(self, n: int, rng: np.random.Generator) -> IntArray:
        """Placements with a uniform group for every node and device for every group, (n, units)."""
        n_nodes, n_devices = self.nodes.n_groups, self.space.problem.n_devices
        groups = rng.integers(0, self.n_groups, size=(n, n_nodes))
        devices = rng.integers(0, n_devices, size=(n, self.n_groups))
        return np.stack([self.expand(*pair) for pair in zip(groups, devices, strict=True)])

    def expand(self, group_of: IntArray, devices: IntArray) -> IntArray:
        """Placements from groups of nodes (n_nodes,) and devices of groups (..., n_groups)."""
        return self.space.expand_with(group_of[self.nodes.group_of], devices)


MAX_OUTPUTS, MAX_RANK = 5, 5


def kind_vocabulary(*problems: Problem) -> tuple[str, ...]:
    """All op kinds of the problems' units, in alphabetical order."""
    return tuple(sorted({kind for problem in problems for kind in problem.unit_graph.op_kinds}))


def kind_counts(problem: Problem, grouping: Grouping, vocabulary: tuple[str, ...]) -> FloatArray:
    """Units of each kind in each group, shape (n_groups, len(vocabulary)); unknown kinds: none."""
    column = {kind: index for index, kind in enumerate(vocabulary)}
    counts = np.zeros((grouping.n_groups, len(vocabulary)))
    for unit, kind in enumerate(problem.unit_graph.op_kinds):
        if kind in column:
            counts[grouping.group_of[unit], column[kind]] += 1.0
    return counts


def output_shapes(problem: Problem, grouping: Grouping, *, logarithmic: bool = True) -> FloatArray:
    """Shapes of the tensors that leave each group, shape (n_groups, MAX_OUTPUTS * MAX_RANK).

    -1 pads, and stands for an extent that is unknown.

    Args:
        logarithmic: extents as log(1 + extent), so that batch 1 and 2,048 channels have one scale;
            else as they are.
    """
    graph, group_of = problem.unit_graph, grouping.group_of
    rows = np.full((grouping.n_groups, MAX_OUTPUTS, MAX_RANK), -1.0)
    used = np.zeros(grouping.n_groups, dtype=np.int64)
    for tensor in np.flatnonzero(graph.tensor_producers >= 0).tolist():
        group = int(group_of[graph.tensor_producers[tensor]])
        leaves = np.any(group_of[graph.tensor_consumers.row(tensor)] != group)
        if used[group] < MAX_OUTPUTS and (leaves or graph.tensor_is_output[tensor]):
            shape = np.maximum(graph.tensor_shapes[tensor][:MAX_RANK], -1)
            logarithms = np.where(shape < 0, -1.0, np.log1p(np.maximum(shape, 0)))
            rows[group, used[group], : len(shape)] = logarithms if logarithmic else shape
            used[group] += 1
    return rows.reshape(grouping.n_groups, -1)  # (groups, outputs * rank)


def group_edges(problem: Problem, grouping: Grouping) -> tuple[IntArray, FloatArray]:
    """Distinct edges between groups, shape (2, n_edges), and the bytes on each, (n_edges,)."""
    producers, consumers, size = edge_list(problem)
    keys = grouping.group_of[producers] * grouping.n_groups + grouping.group_of[consumers]
    crossing = grouping.group_of[producers] != grouping.group_of[consumers]
    unique, inverse = np.unique(keys[crossing], return_inverse=True)
    total = np.bincount(inverse, size[crossing], minlength=len(unique))
    edges = np.stack([unique // grouping.n_groups, unique % grouping.n_groups])
    return edges.astype(np.int64), np.asarray(total, dtype=np.float64)


def group_adjacency(problem: Problem, grouping: Grouping) -> FloatArray:
    """Number of edges from each group to each other, shape (n_groups, n_groups)."""
    producers, consumers, _ = edge_list(problem)
    counts = np.zeros((grouping.n_groups, grouping.n_groups))
    np.add.at(counts, (grouping.group_of[producers], grouping.group_of[consumers]), 1.0)
    np.fill_diagonal(counts, 0.0)
    return counts


def group_output_bytes(problem: Problem, grouping: Grouping) -> FloatArray:
    """Bytes of the tensors that each group produces, shape (n_groups,)."""
    graph = problem.unit_graph
    made = graph.tensor_producers >= 0
    groups = grouping.group_of[graph.tensor_producers[made]]
    size = np.bincount(groups, graph.tensor_bytes[made], minlength=grouping.n_groups)
    return np.asarray(size, dtype=np.float64)


def one_hot_degrees(edges: IntArray, n_nodes: int, largest: int = 8) -> FloatArray:
    """One-hot in-degree and out-degree, capped at `largest`, shape (n_nodes, 2 * largest + 2)."""
    rows = np.zeros((n_nodes, 2, largest + 1))
    for column, ends in ((0, edges[1]), (1, edges[0])):
        degree = np.minimum(np.bincount(ends, minlength=n_nodes), largest)
        rows[np.arange(n_nodes), column, degree] = 1.0
    return rows.reshape(n_nodes, -1)  # (nodes, in ++ out)


def fractal_dimension(edges: IntArray, n_nodes: int) -> FloatArray:
    """Slope of log N(r) on log r per node, HSDAG Eq. (4), shape (n_nodes,).

    N(r) is the number of nodes within r hops along the edges; 0 with fewer than two radii.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import dijkstra

    matrix = csr_array((np.ones(edges.shape[1]), (edges[0], edges[1])), shape=(n_nodes, n_nodes))
    slopes = np.zeros(n_nodes)
    for start in range(0, n_nodes, 512):
        nodes = np.arange(start, min(start + 512, n_nodes))
        hops = dijkstra(matrix, unweighted=True, indices=nodes)  # (chunk, nodes)
        for node, row in zip(nodes.tolist(), hops, strict=True):
            near = row[np.isfinite(row) & (row > 0)].astype(np.int64)
            if len(near) and near.max() >= 2:
                within = np.cumsum(np.bincount(near)[1:])
                radius = np.log(np.arange(1, len(within) + 1))
                slopes[node] = np.polyfit(radius, np.log(within), 1)[0]
    return slopes


def positional_encoding(positions: IntArray, width: int = 16) -> FloatArray:
    """sin and cos of each topological index, HSDAG Eq. (5), shape (n_nodes, width)."""
    rate = 10_000.0 ** (-np.arange(0, width, 2) / width)
    angle = positions[:, None] * rate[None, :]  # (nodes, width / 2)
    return np.concatenate([np.sin(angle), np.cos(angle)], axis=1)


def levels(successors: Csr, order: IntArray, step: FloatArray) -> FloatArray:
    """Longest path to each node, without its own `step`, shape (n_nodes,)."""
    start = np.zeros(len(order))
    for node in order.tolist():
        targets = successors.row(node)
        start[targets] = np.maximum(start[targets], start[node] + step[node])
    return start

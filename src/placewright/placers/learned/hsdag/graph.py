"""The graph of HSDAG: view, coarsening (step 2) and node features.

*View.* HSDAG takes one node per ``<layer>`` of an OpenVINO file. Our graphs store constants as the
weights of ops, so the view turns these, graph inputs and outputs into nodes: on the models of the
zoo, except for moe, their number and their edges equal those of the file. Nodes are units, which a
runtime cannot split; if every unit is one op, as with catalogue costs, the view is the file's own
graph.

*Coarsening.* The released ``merge_operations`` visits nodes in topological order. A node whose only
predecessor has a group joins it; any other node opens a group, and takes in its only successor if
it is that node's only predecessor, which the first rule would do anyway. So the groups are the
trees of the edges that lead to a node with a single predecessor, in any order. Ours: a problem's
colocation classes stay together, and a merge of units that no device could hold is refused
(`grouping.Merger`).

*Features* are the input of the network (paper, section on features).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from placewright.core.arrays import Csr, FloatArray, IntArray, positions_in
from placewright.core.graph import ComputationGraph
from placewright.core.grouping import Grouping
from placewright.core.problem import Problem
from placewright.placers.learned.shared.group_inputs import (
    fractal_dimension,
    one_hot_degrees,
    positional_encoding,
)
from placewright.placers.learned.shared.grouping import Merger, neighbour_merge
from placewright.placers.legal import ActionSpace
from placewright.placers.shared_weights import with_shared_weights_tied

WEIGHT, INPUT, OUTPUT = "Const", "Parameter", "Result"  # kinds in OpenVINO's files
SHAPE_RANK = 4  # the released code pads shapes to four extents


@dataclass(frozen=True, eq=False)
class GraphView:
    """Nodes are numbered: units, weights, graph inputs, graph outputs."""

    kinds: tuple[str, ...]  # of each node, length n_nodes
    n_units: int  # number of units, the first nodes
    edges: IntArray  # distinct, (producer, consumer), in ascending order, shape (2, n_edges)
    # extents of each node's largest output, () where unknown; of a weight its number of bytes,
    # since graphs do not keep the shapes of weights; length n_nodes
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, graph: ComputationGraph) -> GraphView:
        """The view of a graph of units."""
        n, n_weights = graph.n_ops, len(graph.weight_bytes)
        inputs = np.flatnonzero(graph.tensor_producers < 0)
        outputs = np.flatnonzero(graph.tensor_is_output)
        first_input = n + n_weights
        first_output = first_input + len(inputs)
        node_of_producer = np.array(graph.tensor_producers)
        node_of_producer[inputs] = first_input + np.arange(len(inputs))
        reads = node_of_producer[graph.tensor_consumers.row_of_each()]
        edges = [
            np.stack([reads, graph.tensor_consumers.indices]),
            np.stack([n + graph.op_weights.indices, graph.op_weights.row_of_each()]),
            np.stack([node_of_producer[outputs], first_output + np.arange(len(outputs))]),
        ]
        others = [WEIGHT] * n_weights + [INPUT] * len(inputs) + [OUTPUT] * len(outputs)
        shapes = [*largest_output_shapes(graph)]
        shapes += [(int(size),) for size in graph.weight_bytes.tolist()]
        shapes += [graph.tensor_shapes[tensor] for tensor in inputs.tolist()]
        shapes += [()] * len(outputs)
        distinct = np.unique(np.concatenate(edges, axis=1), axis=1).astype(np.int64)
        return cls((*graph.op_kinds, *others), n, distinct, tuple(shapes))

    @property
    def n_nodes(self) -> int:
        """Number of nodes."""
        return len(self.kinds)

    @cached_property
    def successors(self) -> Csr:
        """Distinct consumers of each node, in ascending order."""
        return Csr.from_pairs(self.edges[0], self.edges[1], self.n_nodes)

    @cached_property
    def visits(self) -> IntArray:
        """All nodes in topological order, generation by generation, shape (n_nodes,).

        The rule of NetworkX, by which the released code visits the layers of a file: first nodes
        without predecessors, then each node after the last of its predecessors.
        """
        missing = np.bincount(self.edges[1], minlength=self.n_nodes).tolist()
        order = [node for node in range(self.n_nodes) if not missing[node]]
        for node in order:  # grows while it is read
            for reader in self.successors.row(node).tolist():
                missing[reader] -= 1
                if not missing[reader]:
                    order.append(reader)
        return np.array(order, dtype=np.int64)


def largest_output_shapes(graph: ComputationGraph) -> list[tuple[int, ...]]:
    """Extents of each op's largest output, () if it has none, length n_ops."""
    shapes: list[tuple[int, ...]] = [()] * graph.n_ops
    largest: FloatArray = np.full(graph.n_ops, -1.0)
    for tensor in np.flatnonzero(graph.tensor_producers >= 0).tolist():
        op = int(graph.tensor_producers[tensor])
        if graph.tensor_bytes[tensor] > largest[op]:
            largest[op] = graph.tensor_bytes[tensor]
            shapes[op] = graph.tensor_shapes[tensor]
    return shapes


@dataclass(frozen=True, eq=False)
class CoarseGraph:
    """The input graph of the network: groups of nodes of the view."""

    view: GraphView  # the nodes before coarsening
    space: ActionSpace  # groups of units, and their devices. Group g is node g
    # node of each node of the view, shape (view.n_nodes,). Nodes from `space.n_groups` on hold no
    # unit; -1 for a node that was left out
    node_of: IntArray
    edges: IntArray  # distinct and directed, without loops, shape (2, n_edges)
    # of each node in a list of groups in the order of the last visit to a member, as the released
    # code has it by its own order of visits, shape (n_nodes,)
    position: IntArray

    @property
    def n_nodes(self) -> int:
        """Number of nodes."""
        return len(self.position)


def trees_of_single_predecessors(view: GraphView) -> IntArray:
    """The released groups: the node that opened each node's group, shape (n_nodes,)."""
    degree = np.bincount(view.edges[1], minlength=view.n_nodes)
    opener = np.arange(view.n_nodes)
    joins = degree[view.edges[1]] == 1
    opener[view.edges[1, joins]] = view.edges[0, joins]
    while True:
        further = opener[opener]
        if np.array_equal(further, opener):
            return opener
        opener = further


def coarsened(problem: Problem, max_nodes: int, *, weights_as_nodes: bool) -> CoarseGraph:
    """Coarsen a problem's view.

    Args:
        problem: if memory is short, units that share a weight stay together.
        max_nodes: limit on nodes, if constraints allow; 0 sets none. Above it nodes without units
            are left out, and then the cheapest groups of units join the neighbours that they share
            most bytes with.
        weights_as_nodes: False leaves nodes without units out. In both cases those of a tree with
            units stay, as part of its group.
    """
    problem = with_shared_weights_tied(problem)
    view = GraphView.of(problem.unit_graph)
    opener = trees_of_single_predecessors(view)
    grouping = units_of_trees(problem, view, opener)
    sees_others = weights_as_nodes
    if sees_others and max_nodes:
        sees_others = _nodes(view, opener, grouping, sees_others=True).max() < max_nodes
    if max_nodes and grouping.n_groups > max_nodes:
        grouping = neighbour_merge(problem, grouping, max_nodes)
    node_of = _nodes(view, opener, grouping, sees_others=sees_others)
    n_nodes = int(node_of.max()) + 1
    ends = node_of[view.edges]
    ends = ends[:, (ends[0] != ends[1]) & (ends.min(axis=0) >= 0)]
    edges = np.unique(ends, axis=1).reshape(2, -1)
    return CoarseGraph(
        view, ActionSpace(problem, grouping), node_of, edges, _positions(view, node_of, n_nodes)
    )


def units_of_trees(problem: Problem, view: GraphView, opener: IntArray) -> Grouping:
    """Groups of units: the trees, as far as colocation, memory and devices allow."""
    merger = Merger(problem)
    first: dict[int, int] = {}  # opener -> the latest unit of its tree that opened a group
    for node in view.visits.tolist():
        if node >= view.n_units:
            continue
        tree = int(opener[node])
        if tree not in first or not merger.merge(
            int(merger.class_of[first[tree]]), int(merger.class_of[node])
        ):
            first[tree] = node
    return merger.grouping(problem)


def _nodes(view: GraphView, opener: IntArray, grouping: Grouping, *, sees_others: bool) -> IntArray:
    """Node of each node of the view: its units' group, or a node of its own tree."""
    node_of = np.full(view.n_nodes, -1, dtype=np.int64)
    node_of[: view.n_units] = grouping.group_of
    tree_group = np.full(view.n_nodes, -1, dtype=np.int64)
    units = np.arange(view.n_units)[::-1]
    tree_group[opener[units]] = grouping.group_of[units]  # the first unit's group stays
    others = np.arange(view.n_units, view.n_nodes)
    node_of[others] = tree_group[opener[others]]
    alone = others[node_of[others] < 0]
    if sees_others and len(alone):
        _, number = np.unique(opener[alone], return_inverse=True)
        node_of[alone] = grouping.n_groups + number
    return node_of


def _positions(view: GraphView, node_of: IntArray, n_nodes: int) -> IntArray:
    last = np.full(n_nodes, -1, dtype=np.int64)
    visit = positions_in(view.visits)
    seen = node_of >= 0
    np.maximum.at(last, node_of[seen], visit[seen])
    position: IntArray = np.argsort(np.argsort(last))
    return position


def vocabulary_of(*problems: Problem) -> tuple[str, ...]:
    """All kinds of the problems' nodes, in alphabetical order."""
    kinds = {kind for problem in problems for kind in problem.unit_graph.op_kinds}
    return tuple(sorted(kinds | {WEIGHT, INPUT, OUTPUT}))


def node_features(
    graph: CoarseGraph, vocabulary: tuple[str, ...], parts: Sequence[str], *, normalised: bool
) -> FloatArray:
    """Feature rows of the coarse graph's nodes, shape (n_nodes, n_features).

    Args:
        graph: the nodes.
        vocabulary: kinds, each with a column.
        parts: the features besides kinds, by name.
        normalised: every column with mean 0 and deviation 1, shapes as logarithms.
    """
    known: dict[str, Callable[[], FloatArray]] = {
        "raw_index": lambda: graph.position[:, None].astype(np.float64),
        "degrees": lambda: one_hot_degrees(graph.edges, graph.n_nodes),
        "fractal_dimension": lambda: fractal_dimension(graph.edges, graph.n_nodes)[:, None],
        "index": lambda: positional_encoding(graph.position),
        "output_shape": lambda: output_shapes(graph, logarithmic=normalised),
    }
    columns = [kind_shares(graph, vocabulary), *(known[part]() for part in parts)]
    rows = np.concatenate(columns, axis=1)
    return standardised(rows) if normalised else rows


def kind_shares(graph: CoarseGraph, vocabulary: tuple[str, ...]) -> FloatArray:
    """Mean over a node's members of their one-hot kinds, shape (n_nodes, len(vocabulary))."""
    column = {kind: index for index, kind in enumerate(vocabulary)}
    counts = np.zeros((graph.n_nodes, len(vocabulary)))
    for kind, node in zip(graph.view.kinds, graph.node_of.tolist(), strict=True):
        if node >= 0 and kind in column:
            counts[node, column[kind]] += 1.0
    shares: FloatArray = counts / np.maximum(1.0, counts.sum(axis=1, keepdims=True))
    return shares


def output_shapes(graph: CoarseGraph, *, logarithmic: bool) -> FloatArray:
    """Extents of each node's largest output, padded with 0, shape (n_nodes, SHAPE_RANK)."""
    rows = np.zeros((graph.n_nodes, SHAPE_RANK))
    largest = np.full(graph.n_nodes, -1.0)
    for shape, node in zip(graph.view.shapes, graph.node_of.tolist(), strict=True):
        size = float(np.prod(shape, dtype=np.float64)) if shape else 0.0
        if node >= 0 and size > largest[node]:
            largest[node] = size
            extents = shape[-SHAPE_RANK:]
            rows[node] = 0.0
            known = np.maximum(extents, 0)  # extents below 0 are unknown
            rows[node, : len(extents)] = np.log1p(known) if logarithmic else known
    return rows


def standardised(rows: FloatArray) -> FloatArray:
    """Every column with mean 0 and standard deviation 1; constant columns become 0."""
    spread = rows.std(axis=0)
    scaled: FloatArray = (rows - rows.mean(axis=0)) / np.where(spread > 1e-12, spread, 1.0)
    return scaled

"""Step 2 of HSDAG: co-location groups of the graph's nodes, as the released code forms them.

The released ``merge_operations`` visits nodes in topological order. A node whose only predecessor
has a group joins it; any other opens a group, and takes in its only successor where it is that
one's only predecessor, which the first rule would do anyway. So the groups are the trees of the
edges that lead to a node with a single predecessor, whatever the order.

What is ours: a problem's colocation classes stay together, and a merge of units that no device
could hold is refused (`grouping.Merger`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewright.core.arrays import BoolArray, IntArray
from placewright.core.grouping import Grouping
from placewright.core.problem import Problem
from placewright.placers.learned.grouping import ActionSpace, Merger, neighbour_merge
from placewright.placers.learned.hsdag.graph_view import GraphView
from placewright.placers.shared_weights import with_shared_weights_tied


@dataclass(frozen=True, eq=False)
class CoarseGraph:
    """What the network sees: groups of nodes of the view.

    Attributes:
        view: the nodes before coarsening.
        space: groups of units, and their devices. Group g is node g.
        node_of: node of each node of the view, shape (view.n_nodes,). Nodes from `space.n_groups`
            on hold no unit; -1 where the network does not see it.
        edges: distinct and directed, without loops, shape (2, n_edges).
        position: of each node in the released code's list of groups, which is in the order of the
            last visit to a member, shape (n_nodes,).
    """

    view: GraphView
    space: ActionSpace
    node_of: IntArray
    edges: IntArray
    position: IntArray

    @property
    def n_nodes(self) -> int:
        """Number of nodes."""
        return len(self.position)

    @property
    def holds_units(self) -> BoolArray:
        """Whether a node holds a unit, shape (n_nodes,)."""
        return np.arange(self.n_nodes) < self.space.n_groups


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
        problem: where memory is short, units that share a weight stay together.
        max_nodes: that are left at most, where constraints allow; 0 sets no limit. Nodes without
            units join a neighbour first, then the cheapest groups of units those that they share
            most bytes with.
        weights_as_nodes: False leaves nodes without units out after coarsening.
    """
    problem = with_shared_weights_tied(problem)
    view = GraphView.of(problem.unit_graph)
    opener = trees_of_single_predecessors(view)
    grouping = units_of_trees(problem, view, opener)
    sees_others = weights_as_nodes
    if max_nodes and _n_nodes(view, opener, grouping) > max_nodes and sees_others:
        sees_others = False
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


def _n_nodes(view: GraphView, opener: IntArray, grouping: Grouping) -> int:
    return int(_nodes(view, opener, grouping, sees_others=True).max()) + 1


def _positions(view: GraphView, node_of: IntArray, n_nodes: int) -> IntArray:
    last = np.full(n_nodes, -1, dtype=np.int64)
    visit = np.empty(view.n_nodes, dtype=np.int64)
    visit[view.visits] = np.arange(view.n_nodes)
    seen = node_of >= 0
    np.maximum.at(last, node_of[seen], visit[seen])
    position: IntArray = np.argsort(np.argsort(last))
    return position

"""Units: the finest convex grouping of ops that keeps the fused ops of every device together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from placewright.core.arrays import IntArray
from placewright.core.graph import ComputationGraph
from placewright.core.grouping import Grouping


def common_units(graph: ComputationGraph, fused: Iterable[Grouping]) -> Grouping:
    """Join the groups of all devices to the finest grouping with an acyclic quotient.

    Each group is then convex, and a union of every device's groups.

    Groups of different devices that share an op join; then groups that need each other in a cycle
    join: the strongly connected components of the quotient are the finest way to break its cycles.

    Args:
        graph: the ops.
        fused: of each device, the ops that it executes as one kernel.
    """
    labels = np.arange(graph.n_ops, dtype=np.int64)
    for grouping in fused:
        # The join is the components of the bipartite graph of present and the device's groups.
        n_labels = int(labels.max()) + 1
        n_nodes = n_labels + grouping.n_groups
        ends = (labels, grouping.group_of + n_labels)
        labels = _components(ends, n_nodes, "weak")[:n_labels][labels]
    labels = _acyclic(graph, labels)
    position = np.empty(graph.n_ops, dtype=np.int64)
    position[graph.topological_order] = np.arange(graph.n_ops)
    by_position = labels[graph.topological_order]
    return Grouping(Grouping.from_labels(by_position).group_of[position])


def _acyclic(graph: ComputationGraph, labels: IntArray) -> IntArray:
    sources = labels[graph.successors.row_of_each()]
    targets = labels[graph.successors.indices]
    components = _components((sources, targets), int(labels.max()) + 1, "strong")
    return components[labels]


def _components(
    ends: tuple[IntArray, IntArray], n_nodes: int, connection: Literal["weak", "strong"]
) -> IntArray:
    matrix = coo_array((np.ones(len(ends[0]), dtype=np.int8), ends), shape=(n_nodes, n_nodes))
    _, component_of = connected_components(matrix.tocsr(), directed=True, connection=connection)
    return np.asarray(component_of, dtype=np.int64)

"""Graph parsing: every node keeps its best edge, and nodes that these edges lead together merge.

As the released ``ParsingNet_GPU`` does it, without its loop over communities. An edge of the graph
is scored once in each direction, and with dropout the two scores differ. Then three nodes or more
may point round in a circle, and a community is closed before the node that its best edge leads to
has been asked: that node leaves it again for the community of its own best edge.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewright.core.arrays import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Communities:
    """One parse.

    Attributes:
        community_of: of each node, by falling score of the edge that opened it, nodes without edges
            last, shape (n_nodes,).
        inner: whether both ends of an edge were in one community when it was closed, (n_edges,).
    """

    community_of: IntArray
    inner: BoolArray

    @property
    def n_communities(self) -> int:
        """Number of communities."""
        return int(self.community_of.max()) + 1


def dominant_communities(edges: IntArray, score: FloatArray, n_nodes: int) -> Communities:
    """Merge nodes along the best edge of each.

    Of all nodes, the one with the highest best edge a -> b opens a community of a, b and all nodes
    whose best edges lead to one of them; then the next of those that are left. So the community of
    a node is that of the highest-scored best edge which leads into the path of best edges that
    starts at the node: it is found by doubling the path.

    Args:
        edges: each edge in both directions, sorted by their first node, shape (2, n_edges).
        score: of each, shape (n_edges,). Of equal scores the first counts as higher.
        n_nodes: number of nodes.
    """
    n_edges = edges.shape[1]
    rank = np.empty(n_edges, dtype=np.int64)
    rank[np.argsort(-score, kind="stable")] = np.arange(n_edges)
    best = np.full(n_nodes, n_edges, dtype=np.int64)  # rank of each node's best edge
    np.minimum.at(best, edges[0], rank)
    target = np.arange(n_nodes)
    is_best = rank == best[edges[0]]
    target[edges[0, is_best]] = edges[1, is_best]
    into = np.full(n_nodes, n_edges, dtype=np.int64)  # best rank of the best edges into a node
    connected = best < n_edges
    np.minimum.at(into, target[connected], best[connected])
    opened_by, reached = into[target], target
    for _ in range(max(1, n_nodes).bit_length()):
        opened_by = np.minimum(opened_by, opened_by[reached])
        reached = reached[reached]
    alone = np.flatnonzero(~connected)
    opened_by[alone] = n_edges + 1 + np.arange(len(alone))
    _, community_of = np.unique(opened_by, return_inverse=True)
    return Communities(community_of.astype(np.int64), _inner(edges, rank, opened_by))


def _inner(edges: IntArray, rank: IntArray, opened_by: IntArray) -> BoolArray:
    """Both ends in one community, or one the end that has left the other's community again."""
    into_of = np.full(len(rank) + 1, -1, dtype=np.int64)
    into_of[rank] = edges[1]  # by rank: the node that an edge leads to
    first, second = opened_by[edges[0]], opened_by[edges[1]]
    inner: BoolArray = (
        (first == second) | (into_of[first] == edges[1]) | (into_of[second] == edges[0])
    )
    return inner

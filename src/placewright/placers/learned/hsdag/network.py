"""HSDAG's network, layer by layer as in the released ``layer.py`` and ``model.py``.

Graph parsing: every node selects its best edge, and nodes on a path of these edges merge, as in the
released ``ParsingNet_GPU``, without its loop over communities. Each edge of the graph has a score
in each direction, and with dropout the two differ. Then three nodes or more may form a cycle, and a
community may be closed before the node that its best edge leads to is visited: that node then
leaves it for the community of its own best edge.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.nn import GCNConv
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import to_torch_csr_tensor

from placewright.core.arrays import BoolArray, FloatArray, IntArray

FIRST_DROPOUT = 3  # of a perceptron with normalised layers


@dataclass(frozen=True, eq=False)
class Links:
    """The edges of one or more copies of a graph, side by side."""

    # both directions of every edge, sorted by first node, then second, (2, n_edges)
    edges: IntArray
    adjacency: Tensor  # with self-loops, normalised as GCN does, sparse (n_nodes, n_nodes)
    copy_of: IntArray  # the copy that each node belongs to, shape (n_nodes,)

    @property
    def lone(self) -> IntArray:
        """Nodes that are alone in their copy."""
        lone: IntArray = np.flatnonzero(np.bincount(self.copy_of)[self.copy_of] == 1)
        return lone

    @classmethod
    def symmetric(cls, directed: IntArray, n_nodes: int, copies: int = 1) -> Links:
        """`copies` of a graph with distinct directed edges (2, n_edges), made symmetric.

        A + A^T, so that two nodes with an edge each way are joined twice; A where that is symmetric
        as it is.
        """
        swapped = directed[:, np.lexsort((directed[0], directed[1]))][::-1]
        ascending = directed[:, np.lexsort((directed[1], directed[0]))]
        edges = ascending
        if not np.array_equal(ascending, swapped):
            both = np.concatenate([directed, directed[::-1]], axis=1)
            edges = both[:, np.lexsort((both[1], both[0]))]
        every = np.tile(edges, copies) + n_nodes * np.repeat(np.arange(copies), edges.shape[1])
        copy_of = np.repeat(np.arange(copies), n_nodes)
        return cls(every, _normalised(every, n_nodes * copies), copy_of)

    def merged(self, community_of: IntArray, outer: IntArray, n_communities: int) -> Links:
        """The graph of communities, joined by the edges (2, n_edges) that were not inside one."""
        ends = community_of[outer]
        edges = np.unique(ends[:, ends[0] != ends[1]], axis=1).reshape(2, -1)
        copy_of = np.zeros(n_communities, dtype=np.int64)
        copy_of[community_of] = self.copy_of
        return Links(edges, _normalised(edges, n_communities), copy_of)


@dataclass(frozen=True, eq=False)
class Parsed:
    """Result of one pass through the network."""

    cluster_of: IntArray  # cluster of each node, shape (n_nodes,), int64
    embedding: Tensor  # of each cluster, shape (n_clusters, n_features)
    logits: Tensor  # of each cluster's device, shape (n_clusters, n_devices)


class Dropout(nn.Module):
    """Dropout that is always active, from 16 random bits per element: a quarter of torch's time.

    Args:
        probability: of an element becoming 0, rounded to a multiple of 1 / 65,536.
    """

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.dropped = min(65_535, round(probability * 65_536))  # one of them stays

    def forward(self, x: Tensor) -> Tensor:
        """x with elements dropped and the others scaled up, shape unchanged."""
        if self.dropped == 0:
            return x
        n_words = -(-x.numel() // 4)
        words = torch.empty(n_words, dtype=torch.int64).random_(-(2**63), None)  # all 64 bits
        bits = words.view(torch.int16)[: x.numel()].view(x.shape)
        mask = (bits >= self.dropped - 32_768).to(x.dtype)
        return x * mask.mul_(65_536 / (65_536 - self.dropped))


def mlp(
    widths: tuple[int, ...], dropout: float, *, normalised: bool, ends_active: bool
) -> nn.Sequential:
    """Linear layers, between them (LayerNorm,) ReLU and dropout, after the last if `ends_active`.

    Args:
        widths: of input, hidden layers and output.
        dropout: probability.
        normalised: with LayerNorm before each ReLU.
        ends_active: whether ReLU and dropout follow the last linear layer too.
    """
    layers: list[nn.Module] = []
    n_layers = len(widths) - 1
    for index in range(n_layers):
        layers.append(nn.Linear(widths[index], widths[index + 1]))
        if index < n_layers - 1 or ends_active:
            layers += [nn.LayerNorm(widths[index + 1])] if normalised else []
            layers += [nn.ReLU(), Dropout(dropout)]
    return nn.Sequential(*layers)


class Gnn(nn.Module):
    """Graph convolutions with ReLU and dropout, then LayerNorm of input plus output.

    Args:
        hidden: width.
        n_layers: number of convolutions.
        dropout: probability.
    """

    def __init__(self, hidden: int, n_layers: int, dropout: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            GCNConv(hidden, hidden, normalize=False) for _ in range(n_layers)
        )
        self.dropout = Dropout(dropout)
        self.norm = nn.LayerNorm(hidden)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        """(n_nodes, hidden) -> the same shape."""
        out = x
        for layer in self.layers:
            out = self.dropout(torch.relu(layer(out, adjacency)))
        normed: Tensor = self.norm(x + out)
        return normed


class Residual(nn.Module):
    """One layer of DeepSets: LayerNorm of x + Linear(x)."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(hidden, hidden), nn.LayerNorm(hidden)

    def forward(self, x: Tensor) -> Tensor:
        """(n, hidden) -> (n, hidden)."""
        normed: Tensor = self.norm(x + self.linear(x))
        return normed


class HsdagPolicy(nn.Module):
    """``GPN`` and the classifier of ``PPO``.

    Args:
        n_features: width of a node's state; cluster embeddings have the same width.
        hidden: width.
        dropout: probability, everywhere but in the residual layers and the classifier.
        parse_rounds: rounds of grouping; 0 repeats until nothing merges; -1 does not group.
    """

    def __init__(
        self, n_features: int, n_devices: int, hidden: int, dropout: float, parse_rounds: int
    ) -> None:
        super().__init__()
        self.parse_rounds = parse_rounds
        wide = (n_features, hidden, hidden)
        self.input_trans = mlp(wide, dropout, normalised=True, ends_active=True)
        self.gnn1, self.gnn2 = Gnn(hidden, 2, dropout), Gnn(hidden, 1, dropout)
        self.edge_score = mlp((hidden, hidden, 1), dropout, normalised=True, ends_active=False)
        self.before_sum, self.after_sum = Residual(hidden), Residual(hidden)
        wide = (hidden, hidden, n_features)
        self.output_trans = mlp(wide, dropout, normalised=False, ends_active=True)
        self.classifier = nn.Sequential(
            nn.Linear(n_features, hidden), nn.ReLU(), nn.Linear(hidden, n_devices)
        )

    def forward(self, state: Tensor, links: Links) -> Parsed:
        """Embed, group, classify; ``gnn1`` serves edge scores alone, ``gnn2`` what is pooled.

        Args:
            state: node features, shape (n_nodes, n_features); those of one copy if all copies start
                from the same.
        """
        n_nodes = links.adjacency.shape[0]
        # Up to the first dropout equal rows stay equal.
        first = self.input_trans[:FIRST_DROPOUT](state).repeat(n_nodes // len(state), 1)
        hidden = self.input_trans[FIRST_DROPOUT:](first)  # (nodes, hidden)
        cluster_of, rounds, merges = np.arange(n_nodes), 0, self.parse_rounds >= 0
        if not merges:
            hidden = self.after_sum(self.before_sum(self.gnn2(hidden, links.adjacency)))
        while merges:
            hidden, community_of, links = self.round(hidden, links)
            cluster_of, rounds = community_of[cluster_of], rounds + 1
            merges = len(hidden) < len(community_of) and rounds != self.parse_rounds
        embedding = self.output_trans(hidden)  # (clusters, features)
        return Parsed(cluster_of, embedding, self.classifier(embedding))

    def round(self, hidden: Tensor, links: Links) -> tuple[Tensor, IntArray, Links]:
        """One round of ``GPN.forward``: (n_nodes, hidden) -> (n_communities, hidden).

        Returns:
            The communities' embeddings, the community of each node, and the graph between them.
        """
        n_nodes = len(hidden)
        embedded = self.gnn1(hidden, links.adjacency)
        edges = torch.from_numpy(links.edges)
        score = torch.sigmoid(self.edge_score(embedded[edges[0]] * embedded[edges[1]])).squeeze(-1)
        parse = dominant_communities(links.edges, score.detach().numpy(), n_nodes)
        n = parse.n_communities
        members = torch.from_numpy(parse.community_of)
        nodes = self.before_sum(self.gnn2(hidden, links.adjacency))
        pooled = torch.zeros(n, nodes.shape[1], dtype=nodes.dtype).index_add(0, members, nodes)
        # Mean score of the inner edges times their number; 1 for a node without edges.
        inner = torch.from_numpy(np.flatnonzero(parse.inner))
        owner = members[edges[0, inner]]
        total = torch.zeros(n, dtype=score.dtype).index_add(0, owner, score[inner])
        factor = total + torch.ones_like(total).index_fill(0, owner, 0.0)
        out = self.after_sum(pooled) * factor[:, None]
        lone = torch.from_numpy(links.lone)
        out = out.index_copy(0, members[lone], hidden[lone])
        further = links.merged(parse.community_of, links.edges[:, ~parse.inner], n)
        return out, parse.community_of, further


def _normalised(edges: IntArray, n_nodes: int) -> Tensor:
    """D^-1/2 (A + I) D^-1/2 of symmetric edges (2, n_edges), repeated ones add up."""
    index, weight = gcn_norm(
        torch.from_numpy(np.ascontiguousarray(edges)),
        None,
        n_nodes,
        dtype=torch.get_default_dtype(),
    )
    with warnings.catch_warnings():  # that compressed rows are a beta feature of torch
        warnings.simplefilter("ignore", UserWarning)
        adjacency: Tensor = to_torch_csr_tensor(index, weight, size=(n_nodes, n_nodes))
    return adjacency


@dataclass(frozen=True, eq=False)
class Communities:
    """The communities of one parse."""

    # of each node, by falling score of the edge that opened it, nodes without edges last
    community_of: IntArray
    inner: BoolArray  # both ends of an edge were in one community when it was closed, (n_edges,)

    @property
    def n_communities(self) -> int:
        """Number of communities."""
        return int(self.community_of.max()) + 1


def dominant_communities(edges: IntArray, score: FloatArray, n_nodes: int) -> Communities:
    """Merge nodes along each node's best edge.

    Of all nodes, the one with the highest best edge a -> b opens a community of a, b and all nodes
    whose best edges lead to one of them; then the next of those that are left. So the community of
    a node is that of the highest-scored best edge which leads into the path of best edges that
    starts at the node: it is found by doubling the path.

    Args:
        edges: each edge in both directions, sorted by their first node, shape (2, n_edges).
        score: of each, shape (n_edges,). Of equal scores the first counts as higher.
    """
    n_edges = edges.shape[1]
    by_score = np.argsort(-score, kind="stable")
    rank = np.argsort(by_score)
    best = np.full(n_nodes, n_edges, dtype=np.int64)  # rank of each node's best edge
    np.minimum.at(best, edges[0], rank)
    connected = best < n_edges
    target = np.arange(n_nodes)  # where each node's best edge leads
    target[connected] = edges[1, by_score[best[connected]]]
    into = np.full(n_nodes, n_edges, dtype=np.int64)  # best rank of the best edges into a node
    np.minimum.at(into, target[connected], best[connected])
    opened_by, reached = into[target], target
    for _ in range(max(1, n_nodes).bit_length()):
        opened_by = np.minimum(opened_by, opened_by[reached])
        reached = reached[reached]
    # Inner: both ends in one community, or one is the end to which the edge leads that opened the
    # other's community, and has left it again.
    end_of = edges[1, by_score]  # by rank
    first, second = opened_by[edges[0]], opened_by[edges[1]]
    inner = (first == second) | (end_of[first] == edges[1]) | (end_of[second] == edges[0])
    opened_by[~connected] = n_edges + 1 + np.arange(np.count_nonzero(~connected))
    _, community_of = np.unique(opened_by, return_inverse=True)
    return Communities(community_of.astype(np.int64), inner)

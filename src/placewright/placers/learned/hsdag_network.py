"""HSDAG's network: node embedding, graph parsing, group embedding, device classifier."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor, nn
from torch_geometric.nn import GCNConv
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import to_torch_csr_tensor

from placewright.core.arrays import FloatArray, IntArray

DROPOUT_LAYER = 3  # of `input_trans`


@dataclass(frozen=True, eq=False)
class Copies:
    """The edges of one or more copies of a graph, side by side.

    Attributes:
        edges: undirected, each once with u < v, shape (2, n_edges).
        adjacency: both ways with self-loops, normalised as GCN does, sparse (n_nodes, n_nodes).
    """

    edges: Tensor
    adjacency: Tensor

    @classmethod
    def of(cls, edges: Tensor, n_nodes: int, copies: int) -> Copies:
        """`copies` of a graph of `n_nodes` nodes and undirected edges (2, n_edges)."""
        offset = n_nodes * torch.arange(copies).repeat_interleave(edges.shape[1])
        every = edges.repeat(1, copies) + offset
        both_ways = torch.cat([every, every.flip(0)], dim=1)
        size = n_nodes * copies
        index, weight = gcn_norm(both_ways, None, size, dtype=torch.get_default_dtype())
        with warnings.catch_warnings():  # that compressed rows are a beta feature of torch
            warnings.simplefilter("ignore", UserWarning)
            return cls(every, to_torch_csr_tensor(index, weight, size=(size, size)))


@dataclass(frozen=True, eq=False)
class Parsed:
    """One parse of the graph.

    Attributes:
        cluster_of: cluster of each node, shape (n_nodes,), int64.
        embedding: of each cluster, shape (n_clusters, features).
        logits: of each cluster's device, shape (n_clusters, n_devices).
    """

    cluster_of: IntArray
    embedding: Tensor
    logits: Tensor


class Dropout(nn.Module):
    """Dropout that never rests, from 16 random bits per element: torch's own takes 4 x as long.

    Args:
        probability: of an element becoming 0, rounded to a multiple of 1 / 65,536.
    """

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.dropped = round(probability * 65_536)

    def forward(self, x: Tensor) -> Tensor:
        """x with elements dropped and the others scaled up, shape unchanged."""
        if self.dropped == 0:
            return x
        n_words = -(-x.numel() // 4)
        words = torch.empty(n_words, dtype=torch.int64).random_(-(2**63), None)  # all 64 bits
        bits = words.view(torch.int16)[: x.numel()].view(x.shape)
        kept = (bits >= self.dropped - 32_768).to(x.dtype)
        return x * kept.mul_(65_536 / (65_536 - self.dropped))


class HsdagPolicy(nn.Module):
    """input_trans, gnn1, parsing, gnn2, DeepSets, output_trans, classifier, as in the code.

    Args:
        n_features: width of a node's state; group embeddings have the same width.
        n_devices: number of devices.
        hidden: width.
        dropout: probability.
        parse_rounds: rounds of grouping.
    """

    def __init__(
        self, n_features: int, n_devices: int, hidden: int, dropout: float, parse_rounds: int
    ) -> None:
        super().__init__()
        self.parse_rounds = parse_rounds
        self.input_trans = nn.Sequential(
            *_layer(n_features, hidden, dropout), *_layer(hidden, hidden, dropout)
        )
        self.gnn1 = nn.ModuleList(GCNConv(hidden, hidden, normalize=False) for _ in range(2))
        self.norm1 = nn.LayerNorm(hidden)
        self.parsing = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1))
        self.gnn2 = GCNConv(hidden, hidden, normalize=False)
        self.before_sum, self.after_sum = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden)
        self.norm2 = nn.LayerNorm(hidden)
        self.output_trans = nn.Sequential(
            *_layer(hidden, hidden, dropout), nn.Linear(hidden, n_features)
        )
        self.classifier = nn.Sequential(
            nn.Linear(n_features, hidden), nn.ReLU(), nn.Linear(hidden, n_devices)
        )
        self.dropout = Dropout(dropout)

    def forward(self, state: Tensor, links: Copies) -> Parsed:
        """Embed, group, classify.

        Args:
            state: node features, shape (n_nodes, n_features); those of one copy where all copies
                start from the same.
            links: the edges.
        """
        edges, both_ways = links.edges, links.adjacency
        # Up to the first dropout equal rows stay equal.
        first = self.input_trans[:DROPOUT_LAYER](state)
        first = first.repeat(both_ways.shape[0] // len(state), 1)
        first = self.input_trans[DROPOUT_LAYER:](first)  # (nodes, hidden)
        hidden = first
        for layer in self.gnn1:
            hidden = self.dropout(torch.relu(layer(hidden, both_ways)))
        hidden = self.norm1(first + hidden)
        cluster_of = np.arange(len(hidden))
        factor = torch.ones(len(hidden))
        rows = hidden
        for _ in range(self.parse_rounds):
            score = torch.sigmoid(self.parsing(rows[edges[0]] * rows[edges[1]])).squeeze(-1)
            label = dominant_clusters(edges.numpy(), score.detach().numpy(), len(rows))
            n_clusters = int(label.max()) + 1
            factor = _inner_score(edges, score, label, n_clusters)
            cluster_of = label[cluster_of]
            merged = torch.tensor(label)
            rows = torch.zeros(n_clusters, rows.shape[1]).index_add(0, merged, rows)
            edges = _links_between(edges, label)
            if edges.shape[1] == 0:
                break
        embedding = self._group_embedding(hidden, both_ways, cluster_of, factor)
        return Parsed(cluster_of, embedding, self.classifier(embedding))

    def _group_embedding(
        self, hidden: Tensor, both_ways: Tensor, cluster_of: IntArray, factor: Tensor
    ) -> Tensor:
        nodes = self.gnn2(hidden, both_ways)  # (nodes, hidden)
        shape = (len(factor), nodes.shape[1])
        members = torch.tensor(cluster_of)
        total = torch.zeros(shape).index_add(0, members, torch.relu(self.before_sum(nodes)))
        pooled = self.norm2(total + torch.relu(self.after_sum(total))) * factor[:, None]
        embedding: Tensor = self.output_trans(pooled)  # (clusters, features)
        return embedding


def dominant_clusters(edges: IntArray, score: FloatArray, n_nodes: int) -> IntArray:
    """Each node keeps its best incident edge; clusters are the components of those edges.

    Args:
        edges: shape (2, n_edges).
        score: shape (n_edges,).
        n_nodes: number of nodes.

    Returns:
        Cluster of each node, numbered by first member, shape (n_nodes,).
    """
    by_score = np.argsort(score, kind="stable")
    best = np.full(n_nodes, -1, dtype=np.int64)
    best[edges[:, by_score].T.ravel()] = np.repeat(by_score, 2)  # the last, best one stays
    kept = edges[:, np.unique(best[best >= 0])]
    matrix = coo_array((np.ones(kept.shape[1]), (kept[0], kept[1])), shape=(n_nodes, n_nodes))
    _, label = connected_components(matrix, directed=False)
    return np.asarray(label, dtype=np.int64)


def _inner_score(links: Tensor, score: Tensor, label: IntArray, n_clusters: int) -> Tensor:
    """Mean inner-edge score x number of inner edges = their sum; 1 without inner edges."""
    ends = label[links.numpy()]
    inner = torch.tensor(np.flatnonzero(ends[0] == ends[1]))
    cluster = torch.tensor(ends[0])[inner]
    total = torch.zeros(n_clusters).index_add(0, cluster, score[inner])
    empty = torch.ones(n_clusters).index_fill(0, cluster, 0.0)
    return total + empty


def _links_between(links: Tensor, label: IntArray) -> Tensor:
    ends = np.sort(label[links.numpy()], axis=0)
    ends = np.unique(ends[:, ends[0] != ends[1]], axis=1)
    return torch.tensor(ends.reshape(2, -1))


def _layer(inputs: int, outputs: int, dropout: float) -> list[nn.Module]:
    return [nn.Linear(inputs, outputs), nn.LayerNorm(outputs), nn.ReLU(), Dropout(dropout)]

"""Features and actions of a jointly trained grouper and placer, per op and per sampled group."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.sparse import coo_array

from placewright.core.arrays import FloatArray, IntArray
from placewright.core.grouping import Grouping
from placewright.core.problem import Problem
from placewright.placers.learned.shared.features import (
    group_edges,
    kind_counts,
    kind_vocabulary,
    output_shapes,
)
from placewright.placers.learned.shared.grouping import ActionSpace

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

        Shapes are as `features.output_shapes` returns them.
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

        Kind counts, summed output shapes, and edges to and from each other group; each row divided
        by its maximum + 1.
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

"""What the network sees of a node before anything is learned (paper, section on features)."""

from __future__ import annotations

import numpy as np

from placewright.core.arrays import FloatArray
from placewright.core.problem import Problem
from placewright.placers.learned.features import (
    fractal_dimension,
    one_hot_degrees,
    positional_encoding,
)
from placewright.placers.learned.hsdag.coarsening import CoarseGraph
from placewright.placers.learned.hsdag.graph_view import INPUT, OUTPUT, WEIGHT
from placewright.placers.learned.hsdag.presets import Choices

SHAPE_RANK = 4  # the released code pads shapes to four extents


def vocabulary_of(*problems: Problem) -> tuple[str, ...]:
    """All kinds of the problems' nodes, in alphabetical order."""
    kinds = {kind for problem in problems for kind in problem.unit_graph.op_kinds}
    return tuple(sorted(kinds | {WEIGHT, INPUT, OUTPUT}))


def node_features(graph: CoarseGraph, choices: Choices, vocabulary: tuple[str, ...]) -> FloatArray:
    """Feature rows of the coarse graph's nodes, shape (n_nodes, n_features)."""
    parts = [kind_shares(graph, vocabulary)]
    if choices.features == "released":
        if not choices.without_node_id:
            parts.append(graph.position[:, None].astype(np.float64))
    else:
        if not choices.without_degrees:
            parts.append(one_hot_degrees(graph.edges, graph.n_nodes))
        if not choices.without_fractal_dimension:
            parts.append(fractal_dimension(graph.edges, graph.n_nodes)[:, None])
        if not choices.without_node_id:
            parts.append(positional_encoding(graph.position))
        if not choices.without_output_shape:
            parts.append(output_shapes(graph, logarithmic=choices.normalised_features))
    rows = np.concatenate(parts, axis=1)
    return standardised(rows) if choices.normalised_features else rows


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
            kept = shape[-SHAPE_RANK:]
            rows[node] = 0.0
            rows[node, : len(kept)] = np.log1p(kept) if logarithmic else kept
    return rows


def standardised(rows: FloatArray) -> FloatArray:
    """Every column with mean 0 and standard deviation 1; constant ones become 0."""
    spread = rows.std(axis=0)
    scaled: FloatArray = (rows - rows.mean(axis=0)) / np.where(spread > 1e-12, spread, 1.0)
    return scaled

"""Where each box of the graph lies.

The inside of a group is drawn into the group's own box, scaled, so that opening one moves nothing
else and a browser has nothing to compute. Children stand in layers, producers above their readers
(longest path), and layers are wrapped into columns like the text of a newspaper.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from placewright.core.graph import ComputationGraph
from placewright.report.page.groups import Node

WIDTH, HEIGHT, SHAPE = 1600.0, 1000.0, 1.6
_GAP, _TITLE = 0.35, 0.12  # between boxes, in widths of one; a group's title, part of its height


@dataclass
class Layout:
    """Boxes of all nodes, groups first parent, then children.

    Attributes:
        names: of the groups; units have names of their own.
        parent: group of each node; -1 for the root.
        unit: of each node, -1 for groups.
        boxes: x, y, width and height of each node, in one common scale.
        edges: per node a list of (child, child) positions within its children.
        children: node numbers, per node.
    """

    names: list[str]
    parent: list[int]
    unit: list[int]
    boxes: list[tuple[float, float, float, float]]
    edges: list[list[tuple[int, int]]]
    children: list[list[int]]


def layout_of(graph: ComputationGraph, root: Node) -> Layout:
    """Lay out a tree of groups."""
    nodes, parent = _numbered(root)
    children: list[list[int]] = [[] for _ in nodes]
    for number, above in enumerate(parent):
        if above >= 0:
            children[above].append(number)
    edges = _sibling_edges(graph, nodes, parent)
    sizes = [_size(node) for node in nodes]
    boxes = [(0.0, 0.0, WIDTH, HEIGHT)] * len(nodes)
    for number in range(len(nodes)):
        if children[number]:
            placed = _inside([sizes[child] for child in children[number]], edges[number])
            for child, box in zip(children[number], _scaled(placed, boxes[number]), strict=True):
                boxes[child] = box
    return Layout(
        [node.name for node in nodes], parent, [n.unit for n in nodes], boxes, edges, children
    )


def _numbered(root: Node) -> tuple[list[Node], list[int]]:
    nodes, parent = [root], [-1]
    at = 0
    while at < len(nodes):
        for child in nodes[at].children:
            nodes.append(child)
            parent.append(at)
        at += 1
    return nodes, parent


def _size(node: Node) -> tuple[float, float]:
    """A unit is 1 wide; a group grows with the logarithm of what it holds."""
    width = 1.0 if node.unit >= 0 else 1.3 + 0.35 * math.log2(1 + len(node.units()))
    return width, width * (0.45 if node.unit >= 0 else 0.55)


def _sibling_edges(
    graph: ComputationGraph, nodes: list[Node], parent: list[int]
) -> list[list[tuple[int, int]]]:
    """Each edge between two units as one between the two siblings that hold them."""
    node_of = {node.unit: number for number, node in enumerate(nodes) if node.unit >= 0}
    depth, place = [0] * len(nodes), [0] * len(nodes)
    counts = [0] * len(nodes)
    for number, above in enumerate(parent):
        if above >= 0:
            depth[number] = depth[above] + 1
            place[number] = counts[above]
            counts[above] += 1
    found: list[dict[tuple[int, int], None]] = [{} for _ in nodes]
    successors = graph.successors
    rows, readers = successors.row_of_each().tolist(), successors.indices.tolist()
    for producer, reader in zip(rows, readers, strict=True):
        one, other = node_of[producer], node_of[reader]
        while depth[one] > depth[other]:
            one = parent[one]
        while depth[other] > depth[one]:
            other = parent[other]
        while parent[one] != parent[other]:
            one, other = parent[one], parent[other]
        found[parent[one]][place[one], place[other]] = None
    return [list(edges) for edges in found]


def _inside(
    sizes: list[tuple[float, float]], edges: list[tuple[int, int]]
) -> list[tuple[float, float, float, float]]:
    """Boxes of children around the origin."""
    rows = _rows(sizes, edges)
    heights = [max(sizes[i][1] for i in row) + _GAP for row in rows]
    widths = [sum(sizes[i][0] + _GAP for i in row) for row in rows]
    n_columns = max(1, round(math.sqrt(SHAPE * sum(heights) / max(widths))))
    limit = sum(heights) / n_columns * 1.001
    boxes = [(0.0, 0.0, 0.0, 0.0)] * len(sizes)
    columns: list[list[int]] = [[]]
    used = 0.0
    for at, height in enumerate(heights):
        if columns[-1] and used + height / 2 > limit:
            columns.append([])
            used = 0.0
        columns[-1].append(at)
        used += height
    left = 0.0
    for column in columns:
        width, top = max(widths[at] for at in column), 0.0
        for at in column:
            x = left + (width - widths[at]) / 2
            for child in rows[at]:
                boxes[child] = (x, top, *sizes[child])
                x += sizes[child][0] + _GAP
            top += heights[at]
        left += width + _GAP
    return boxes


def _rows(sizes: list[tuple[float, float]], edges: list[tuple[int, int]]) -> list[list[int]]:
    """Children by layer, in each by the mean place of what they read; wide layers are wrapped."""
    level, readers = [0] * len(sizes), defaultdict(list)
    before = defaultdict(list)
    for producer, reader in edges:
        if producer < reader:  # groups that need each other make cycles: the order of files holds
            readers[producer].append(reader)
            before[reader].append(producer)
    for child in range(len(sizes)):
        for reader in readers[child]:
            level[reader] = max(level[reader], level[child] + 1)
    layers: dict[int, list[int]] = defaultdict(list)
    for child, at in enumerate(level):
        layers[at].append(child)
    area = sum((w + _GAP) * (h + _GAP) for w, h in sizes)
    widest = max(4.0 * max(w for w, _ in sizes), math.sqrt(area * SHAPE))
    place = np.zeros(len(sizes))
    rows: list[list[int]] = []
    for at in sorted(layers):
        ordered = sorted(
            layers[at], key=lambda c: (np.mean([place[p] for p in before[c]] or [0.0]), c)
        )
        for number, child in enumerate(ordered):
            place[child] = (number + 0.5) / len(ordered)
        rows += _wrapped(ordered, sizes, widest)
    return rows


def _wrapped(layer: list[int], sizes: list[tuple[float, float]], widest: float) -> list[list[int]]:
    rows: list[list[int]] = [[]]
    used = 0.0
    for child in layer:
        if rows[-1] and used + sizes[child][0] > widest:
            rows.append([])
            used = 0.0
        rows[-1].append(child)
        used += sizes[child][0] + _GAP
    return rows


def _scaled(
    placed: list[tuple[float, float, float, float]], box: tuple[float, float, float, float]
) -> list[tuple[float, float, float, float]]:
    """Fit boxes into one below its title, as large as they can be, in its middle."""
    x, y, width, height = box
    title, margin = height * _TITLE, 0.03 * min(width, height)
    inner = (width - 2 * margin, height - title - 2 * margin)
    right = max(left + w for left, _, w, _ in placed)
    bottom = max(top + h for _, top, _, h in placed)
    scale = min(inner[0] / right, inner[1] / bottom)
    left = x + margin + (inner[0] - right * scale) / 2
    top = y + title + margin + (inner[1] - bottom * scale) / 2
    return [(left + a * scale, top + b * scale, w * scale, h * scale) for a, b, w, h in placed]

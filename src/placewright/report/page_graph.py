"""The picture of a graph: a tree of groups of units, and a box for each group and unit.

Each group has few children, so that a graph of any size first appears as a handful of boxes. Groups
follow the module paths. Without them, the topological order is cut at the places that the fewest
tensors cross: an articulation unit is crossed by one tensor.

The children of a group are drawn inside its box, to scale, so that opening a group moves nothing
else and a browser has nothing to compute. Children stand in layers, producers above their readers
(longest path), and layers are wrapped into columns like the text of a newspaper.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field

import numpy as np

from placewright.core.arrays import IntArray, positions_in
from placewright.core.graph import ComputationGraph

MOST_CHILDREN = 24
_FEWEST_WITH_MODULE = 0.5  # share of the units; below, module paths are not used
WIDTH, HEIGHT, SHAPE = 1600.0, 1000.0, 1.6
_GAP = 0.35  # between boxes, in widths of a unit
_TITLE = 0.12  # height of a group's title, as a share of the group


@dataclass
class Node:
    """A group of units, or one unit (`unit` >= 0, no children)."""

    name: str
    unit: int = -1
    children: list[Node] = field(default_factory=list)

    def units(self) -> list[int]:
        """All units in the group, in the order of the tree."""
        units, stack = [], [self]
        while stack:
            node = stack.pop()
            if node.unit >= 0:
                units.append(node.unit)
            stack.extend(reversed(node.children))
        return units


def group_tree(graph: ComputationGraph) -> Node:
    """Make the tree of all units of a graph, by module paths or by cuts of few tensors."""
    position = positions_in(graph.topological_order)
    paths = [tuple(p for p in re.split(r"[./]", path) if p) for path in graph.op_modules]
    with_path = sum(1 for path in paths if path)
    if with_path < _FEWEST_WITH_MODULE * graph.n_ops or len(set(paths)) < 2:
        paths = [()] * graph.n_ops
    root = _by_path(graph, paths)
    _shorten(root)
    _split_wide(root, graph, position)
    return root


def _by_path(graph: ComputationGraph, paths: list[tuple[str, ...]]) -> Node:
    root = Node("all")
    known: dict[tuple[str, ...], Node] = {(): root}
    for unit in graph.topological_order.tolist():
        path = paths[unit]
        for depth in range(1, len(path) + 1):
            if path[:depth] not in known:
                node = known[path[:depth]] = Node(path[depth - 1])
                known[path[: depth - 1]].children.append(node)
        known[path].children.append(Node(graph.op_names[unit], unit))
    return root


def _shorten(root: Node) -> None:
    """Join groups with their only child, so that no box holds a single box."""
    stack = [root]
    while stack:
        node = stack.pop()
        while len(node.children) == 1 and node.unit < 0:
            child = node.children[0]
            if child.unit >= 0 and node is root:
                break
            node.name = child.name if node is root else f"{node.name}.{child.name}"
            node.unit, node.children = child.unit, child.children
        stack.extend(node.children)


def _crossings(graph: ComputationGraph, units: list[int]) -> IntArray:
    """Number of tensors that cross the cut behind each unit but the last, (n - 1,).

    Args:
        units: in topological order, shape (n,).
    """
    at = {unit: place for place, unit in enumerate(units)}
    change = np.zeros(len(units) + 1, dtype=np.int64)
    for unit in units:
        for tensor in graph.op_outputs.row(unit).tolist():
            readers = graph.tensor_consumers.row(tensor).tolist()
            last = max((at[reader] for reader in readers if reader in at), default=-1)
            if last > at[unit]:
                change[at[unit]] += 1
                change[last] -= 1
    return np.cumsum(change)[: len(units) - 1]


def _split_wide(root: Node, graph: ComputationGraph, position: IntArray) -> None:
    """Split groups with many children into pieces of neighbours in topological order."""
    stack = [root]
    while stack:
        node = stack.pop()
        if len(node.children) > MOST_CHILDREN:
            firsts = {id(c): min(int(position[u]) for u in c.units()) for c in node.children}
            node.children.sort(key=lambda child: firsts[id(child)])
            node.children = _pieces(node.children, graph)
        stack.extend(node.children)


def _pieces(children: list[Node], graph: ComputationGraph) -> list[Node]:
    n_pieces = min(MOST_CHILDREN, max(2, round(len(children) ** 0.5)))
    if all(child.unit >= 0 for child in children):
        weight = _crossings(graph, [child.unit for child in children])
    else:
        weight = np.zeros(len(children) - 1, dtype=np.int64)
    size, bounds = len(children) / n_pieces, [0]
    for number in range(1, n_pieces):
        ideal = round(number * size)
        low = max(bounds[-1] + 1, ideal - max(1, int(size / 3)))
        high = min(len(children) - 1, ideal + max(1, int(size / 3)))
        places = range(low, max(low, high) + 1)
        bounds.append(min(places, key=lambda at: (weight[at - 1], abs(at - ideal))))
    bounds.append(len(children))
    pieces = []
    for low, high in itertools.pairwise(bounds):
        if high - low == 1:
            pieces.append(children[low])
        elif high > low:
            pieces.append(Node(_name(children[low:high], graph), children=children[low:high]))
    return pieces


def _name(children: list[Node], graph: ComputationGraph) -> str:
    """Name a piece by its first child and its most frequent kinds."""
    first = children[0].name
    units = [unit for child in children[:50] for unit in child.units()[:50]]
    kinds = Counter(graph.op_kinds[unit] for unit in units).most_common(2)
    return f"{first} … ({', '.join(kind for kind, _ in kinds)})"


@dataclass
class Layout:
    """Boxes of all nodes; a parent comes before its children."""

    names: list[str]  # of the nodes
    parent: list[int]  # group of each node; -1 for the root
    unit: list[int]  # unit of each node; -1 for groups
    # x, y, width and height of each node, in one common scale
    boxes: list[tuple[float, float, float, float]]
    edges: list[list[tuple[int, int]]]  # for each node, pairs of positions in its list of children


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
    return Layout([node.name for node in nodes], parent, [n.unit for n in nodes], boxes, edges)


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
    """Width and height of a box; the width of a group grows with the logarithm of its units."""
    width = 1.0 if node.unit >= 0 else 1.3 + 0.35 * math.log2(1 + len(node.units()))
    return width, width * (0.45 if node.unit >= 0 else 0.55)


def _sibling_edges(
    graph: ComputationGraph, nodes: list[Node], parent: list[int]
) -> list[list[tuple[int, int]]]:
    """Edges between the children of each node: edges of units, lifted to its children."""
    node_of = {node.unit: number for number, node in enumerate(nodes) if node.unit >= 0}
    depth, place = [0] * len(nodes), [0] * len(nodes)
    counts = [0] * len(nodes)
    for number, above in enumerate(parent):
        if above >= 0:
            depth[number] = depth[above] + 1
            place[number] = counts[above]
            counts[above] += 1
    siblings: list[dict[tuple[int, int], None]] = [{} for _ in nodes]
    successors = graph.successors
    rows, readers = successors.row_of_each().tolist(), successors.indices.tolist()
    for producer, reader in zip(rows, readers, strict=True):
        source, target = node_of[producer], node_of[reader]
        while depth[source] > depth[target]:
            source = parent[source]
        while depth[target] > depth[source]:
            target = parent[target]
        while parent[source] != parent[target]:
            source, target = parent[source], parent[target]
        siblings[parent[source]][place[source], place[target]] = None
    return [list(edges) for edges in siblings]


def _inside(
    sizes: list[tuple[float, float]], edges: list[tuple[int, int]]
) -> list[tuple[float, float, float, float]]:
    """Boxes of children, row below row, in columns from the origin."""
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
    """Rows of children: layers, ordered by mean position of producers; wide layers are wrapped."""
    level, readers = [0] * len(sizes), defaultdict(list)
    before = defaultdict(list)
    for producer, reader in edges:
        if producer < reader:  # groups may need each other: the order of the children decides
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
    """Scale boxes to fill a box below its title, and centre them."""
    x, y, width, height = box
    title, margin = height * _TITLE, 0.03 * min(width, height)
    inner = (width - 2 * margin, height - title - 2 * margin)
    right = max(left + w for left, _, w, _ in placed)
    bottom = max(top + h for _, top, _, h in placed)
    scale = min(inner[0] / right, inner[1] / bottom)
    left = x + margin + (inner[0] - right * scale) / 2
    top = y + title + margin + (inner[1] - bottom * scale) / 2
    return [(left + a * scale, top + b * scale, w * scale, h * scale) for a, b, w, h in placed]

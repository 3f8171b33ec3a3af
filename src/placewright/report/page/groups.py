"""Groups of units for the picture of a graph: by module path, or else by structure.

Groups form a tree with few children each, so that a graph of any size is first seen as a handful
of boxes. Where modules say nothing, the units in topological order are cut where the fewest
tensors cross: at articulation units one tensor does.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from placewright.core.arrays import IntArray
from placewright.core.graph import ComputationGraph

MOST_CHILDREN = 24
_FEWEST_WITH_MODULE = 0.5  # of all units, so that paths are used


@dataclass
class Node:
    """A group of units, or one unit (`unit` >= 0, no children)."""

    name: str
    unit: int = -1
    children: list[Node] = field(default_factory=list)

    def units(self) -> list[int]:
        """All units below, in the order of the tree."""
        found, stack = [], [self]
        while stack:
            node = stack.pop()
            if node.unit >= 0:
                found.append(node.unit)
            stack.extend(reversed(node.children))
        return found


def group_tree(graph: ComputationGraph) -> Node:
    """The root of the tree of all units."""
    position = np.empty(graph.n_ops, dtype=np.int64)
    position[graph.topological_order] = np.arange(graph.n_ops)
    paths = [tuple(p for p in re.split(r"[./]", path) if p) for path in graph.op_modules]
    with_path = sum(1 for path in paths if path)
    if with_path < _FEWEST_WITH_MODULE * graph.n_ops or len(set(paths)) < 2:
        paths = [()] * graph.n_ops
    root = _by_path(graph, paths)
    _shorten(root)
    crossing = _Crossing(graph, position)
    _split_wide(root, graph, crossing, position)
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
    """Join a group with its only child, so that no click opens a box with one box in it."""
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


class _Crossing:
    """How many tensors pass each place of a sequence of units."""

    def __init__(self, graph: ComputationGraph, position: IntArray) -> None:
        self.graph, self.position = graph, position

    def counts(self, units: list[int]) -> IntArray:
        """Tensors that pass behind each unit but the last, for units in topological order."""
        at = {unit: place for place, unit in enumerate(units)}
        change = np.zeros(len(units) + 1, dtype=np.int64)
        for unit in units:
            for tensor in self.graph.op_outputs.row(unit).tolist():
                readers = self.graph.tensor_consumers.row(tensor).tolist()
                last = max((at[reader] for reader in readers if reader in at), default=-1)
                if last > at[unit]:
                    change[at[unit]] += 1
                    change[last] -= 1
        return np.cumsum(change)[: len(units) - 1]


def _split_wide(
    root: Node, graph: ComputationGraph, crossing: _Crossing, position: IntArray
) -> None:
    """Divide groups with many children into pieces of neighbours in topological order."""
    stack = [root]
    while stack:
        node = stack.pop()
        if len(node.children) > MOST_CHILDREN:
            firsts = {id(c): min(int(position[u]) for u in c.units()) for c in node.children}
            node.children.sort(key=lambda child: firsts[id(child)])
            node.children = _pieces(node.children, graph, crossing)
        stack.extend(node.children)


def _pieces(children: list[Node], graph: ComputationGraph, crossing: _Crossing) -> list[Node]:
    n_pieces = min(MOST_CHILDREN, max(2, round(len(children) ** 0.5)))
    if all(child.unit >= 0 for child in children):
        weight = crossing.counts([child.unit for child in children])
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
    """What a piece mostly holds, and where it begins."""
    first = children[0].name
    units = [unit for child in children[:50] for unit in child.units()[:50]]
    kinds = Counter(graph.op_kinds[unit] for unit in units).most_common(2)
    return f"{first} … ({', '.join(kind for kind, _ in kinds)})"

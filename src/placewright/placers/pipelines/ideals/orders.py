"""Linear orders of items, and what PipeDream fuses before it splits one."""

from __future__ import annotations

import numpy as np

from placewright.core.arrays import Csr, IntArray, frozen_ints
from placewright.core.grouping import Grouping


def depth_first_order(successors: Csr) -> IntArray:
    """A topological order that follows chains: the item that became free last goes first.

    The order of the linearised program of Tarnawski et al. 2020; ties by highest index.

    >>> depth_first_order(Csr.from_rows([[2], [3], [], []])).tolist()
    [1, 3, 0, 2]
    """
    n = successors.n_rows
    waiting = np.bincount(successors.indices, minlength=n).tolist()
    free = [item for item in range(n) if waiting[item] == 0]
    order: list[int] = []
    while free:
        item = free.pop()
        order.append(item)
        for target in successors.row(item).tolist():
            waiting[target] -= 1
            if waiting[target] == 0:
                free.append(target)
    return frozen_ints(order)


def biconnected_tails(n_nodes: int, pairs: IntArray) -> Grouping:
    """Fuse the tails of the edges of every biconnected component.

    What remains is a chain of articulation points as PipeDream expects one (Tarnawski et al. 2020,
    section 6, the PipeDream baseline).

    Args:
        n_nodes: number of nodes.
        pairs: directed edges (tail, head), shape (n_edges, 2).

    Returns:
        Node -> fused node.
    """
    component = _biconnected_components(n_nodes, pairs)
    first: dict[int, int] = {}
    parent = list(range(n_nodes))

    def root(node: int) -> int:
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for tail, label in zip(pairs[:, 0].tolist(), component, strict=True):
        one, other = root(first.setdefault(label, tail)), root(tail)
        parent[max(one, other)] = min(one, other)
    return Grouping.from_labels([root(node) for node in range(n_nodes)])


def _biconnected_components(n_nodes: int, pairs: IntArray) -> list[int]:
    """Component of each edge of the undirected graph: Hopcroft and Tarjan 1973, without recursion.

    Parallel edges (a pair in both directions) share the component.
    """
    around: list[list[tuple[int, int]]] = [[] for _ in range(n_nodes)]
    for edge, (one, other) in enumerate(pairs.tolist()):
        around[one].append((other, edge))
        around[other].append((one, edge))
    entry, low = [-1] * n_nodes, [0] * n_nodes
    component = [-1] * len(pairs)
    clock = n_components = 0
    for start in range(n_nodes):
        if entry[start] >= 0:
            continue
        entry[start] = low[start] = clock
        clock += 1
        branch = [(start, -1, iter(around[start]))]
        trail: list[int] = []  # edges whose component is not closed
        while branch:
            node, via, rest = branch[-1]
            step = next(rest, None)
            if step is None:
                branch.pop()
                if branch:
                    above = branch[-1][0]
                    low[above] = min(low[above], low[node])
                    if low[node] >= entry[above]:
                        n_components += 1
                        while component[via] < 0:
                            component[trail.pop()] = n_components - 1
                continue
            target, edge = step
            if edge == via or component[edge] >= 0 or edge in trail[-1:]:
                continue
            if entry[target] < 0:
                entry[target] = low[target] = clock
                clock += 1
                trail.append(edge)
                branch.append((target, edge, iter(around[target])))
            elif entry[target] < entry[node]:
                trail.append(edge)
                low[node] = min(low[node], entry[target])
    return component

"""Sets of colocation classes that are worth moving together.

Branches between a fork and a join are subtrees of the dominator tree (what can only be reached
through a unit) or of the post-dominator tree (what only leads to a unit); stages are contiguous
runs of a depth-first topological order. K. D. Cooper, T. J. Harvey, K. Kennedy, "A Simple, Fast
Dominance Algorithm", 2001.
"""

from __future__ import annotations

import numpy as np

from placewright.core.arrays import Csr, IntArray
from placewright.core.problem import Problem
from placewright.simulation.compiled import compiled


def branch_by_branch_order(problem: Problem) -> IntArray:
    """A topological order that finishes a branch before it begins the next, shape (n_units,)."""
    graph = problem.unit_graph
    missing = np.diff(graph.predecessors.indptr)
    return np.asarray(_depth_first(graph.successors.indptr, graph.successors.indices, missing))


@compiled
def _depth_first(indptr: IntArray, successors: IntArray, missing: IntArray) -> IntArray:
    n_units, done, height = len(missing), 0, 0
    order, stack = np.empty(n_units, np.int64), np.empty(n_units, np.int64)
    for unit in range(n_units - 1, -1, -1):
        if missing[unit] == 0:
            stack[height] = unit
            height += 1
    while height > 0:
        height -= 1
        unit = stack[height]
        order[done] = unit
        done += 1
        for at in range(indptr[unit + 1] - 1, indptr[unit] - 1, -1):
            missing[successors[at]] -= 1
            if missing[successors[at]] == 0:
                stack[height] = successors[at]
                height += 1
    return order


def branches(problem: Problem) -> list[IntArray]:
    """Distinct subtrees of both dominator trees with 2 .. n_units - 1 units, smallest first."""
    graph = problem.unit_graph
    order = graph.topological_order
    found: dict[bytes, IntArray] = {}
    for predecessors, forward in ((graph.predecessors, order), (graph.successors, order[::-1])):
        for units in _subtrees(predecessors, forward):
            if 2 <= len(units) < problem.n_units:
                found.setdefault(units.tobytes(), units)
    return sorted(found.values(), key=lambda units: (len(units), units.tolist()))


def _subtrees(predecessors: Csr, order: IntArray) -> list[IntArray]:
    """Members of each subtree of the dominator tree; a virtual root stands before all sources."""
    n_units = len(order)
    root = n_units
    parent = np.full(n_units + 1, root, dtype=np.int64)
    depth = np.zeros(n_units + 1, dtype=np.int64)
    for unit in order.tolist():
        before = predecessors.row(unit).tolist()
        common = before[0] if before else root
        for other in before[1:]:
            while common != other:
                if depth[common] >= depth[other]:
                    common = int(parent[common])
                else:
                    other = int(parent[other])
        parent[unit], depth[unit] = common, depth[common] + 1
    members: list[list[int]] = [[] for _ in range(n_units + 1)]
    for unit in order[::-1].tolist():
        members[unit].append(unit)
        if parent[unit] != root and len(members[unit]) < n_units:
            members[int(parent[unit])].extend(members[unit])
    return [np.array(sorted(units), dtype=np.int64) for units in members[:-1]]

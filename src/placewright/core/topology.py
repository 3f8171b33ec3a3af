"""Orders and cycles of a directed graph in compressed sparse rows."""

from __future__ import annotations

import heapq

import numpy as np

from placewright.core.arrays import Csr, IntArray, frozen_ints


def topological_order(successors: Csr) -> IntArray:
    """All nodes, predecessors first, smallest index first among the free ones.

    Shorter than ``successors.n_rows`` exactly when the graph has a cycle.
    """
    n = successors.n_rows
    waiting = np.bincount(successors.indices, minlength=n).tolist()
    starts, targets = successors.indptr.tolist(), successors.indices.tolist()
    free = [node for node in range(n) if waiting[node] == 0]
    order: list[int] = []
    while free:
        node = heapq.heappop(free)
        order.append(node)
        for target in targets[starts[node] : starts[node + 1]]:
            waiting[target] -= 1
            if waiting[target] == 0:
                heapq.heappush(free, target)
    return frozen_ints(order)


def find_cycle(successors: Csr) -> list[int]:
    """Nodes of one cycle, the first repeated at the end; empty when the graph is acyclic."""
    state = [0] * successors.n_rows  # 0 unseen, 1 on the path, 2 done
    for root in range(successors.n_rows):
        if state[root]:
            continue
        path, pending = [root], [iter(successors.row(root).tolist())]
        state[root] = 1
        while path:
            target = next(pending[-1], None)
            if target is None:
                state[path.pop()] = 2
                pending.pop()
            elif state[target] == 1:
                return [*path[path.index(target) :], target]
            elif state[target] == 0:
                state[target] = 1
                path.append(target)
                pending.append(iter(successors.row(target).tolist()))
    return []

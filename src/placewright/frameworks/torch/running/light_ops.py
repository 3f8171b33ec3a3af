"""Units of a library that fuses nothing: light ops join a heavy neighbour.

A graph of PyTorch calls has thousands of views, element-wise functions and updates that take
microseconds each. Placing one of them away from its neighbours never pays. Each joins one
neighbour: a heavy op whose only consumer it is, else its only consumer, else its only producer. The
edge to an only neighbour can be contracted without making a cycle. Neighbours in the other pass do
not count, since nothing of the backward pass or the update feeds the forward pass: of a forward op
only forward consumers count, of other ops only producers outside the forward pass.
"""

from __future__ import annotations

import numpy as np

from placewright.core.arrays import BoolArray, Csr, FloatArray
from placewright.core.graph import FORWARD, UPDATE, ComputationGraph
from placewright.core.grouping import Grouping

_FLOPS_PER_BYTE = 1.0  # ops below it wait for memory: a softmax has 0.6, a matrix product more


def light_ops_joined(graph: ComputationGraph) -> Grouping:
    """Group at most one heavy op with the light ops around it.

    No group has ops of two colocation classes, or forward ops and others. The updates of a
    parameter are in one group, perhaps with ops that make its gradient.
    """
    joining = _Joining(graph)
    joining.join_updates()
    order = graph.topological_order.tolist()
    # Against the order, so that each heavy op takes the sum to which it is added. The gradient of a
    # weight that many steps share is then summed up step by step, and no step's part waits.
    for op in reversed(order):
        joining.take_consumers(op)
    # Against the order: consumers have joined before, so that chains end at one op.
    for op in reversed(order):
        joining.join_consumer(op)
    for op in order:
        joining.join_producer(op)
    return joining.grouping()


def is_heavy(graph: ComputationGraph) -> BoolArray:
    """True where an op computes more than one operation per byte that it moves, shape (n_ops,)."""
    moved = graph.op_weight_bytes + _sums(graph.op_inputs, graph) + _sums(graph.op_outputs, graph)
    result: BoolArray = graph.op_flops > _FLOPS_PER_BYTE * moved
    return result


def _sums(tensors: Csr, graph: ComputationGraph) -> FloatArray:
    sizes = graph.tensor_bytes[tensors.indices]
    sums = np.bincount(tensors.row_of_each(), weights=sizes, minlength=graph.n_ops)
    return sums.astype(np.float64)


class _Joining:
    """Groups as a forest, with the members, class, pass and weight class of each root's group."""

    def __init__(self, graph: ComputationGraph) -> None:
        self.graph = graph
        self.parent = list(range(graph.n_ops))
        self.members = [[op] for op in range(graph.n_ops)]
        self.heavy = is_heavy(graph).tolist()
        self.colocation = graph.op_colocation.tolist()
        self.is_forward = (graph.op_phases == FORWARD).tolist()

    def root(self, op: int) -> int:
        """The op that represents the group of `op`."""
        while self.parent[op] != op:
            self.parent[op] = self.parent[self.parent[op]]
            op = self.parent[op]
        return op

    def join_updates(self) -> None:
        """Join updates that pass tensors to each other; nothing else reads from them."""
        graph = self.graph
        for op in np.flatnonzero(graph.op_phases == UPDATE).tolist():
            for reader in graph.successors.row(op).tolist():
                self._join(self.root(op), self.root(reader))

    def take_consumers(self, op: int) -> None:
        """Join light groups to the heavy group of `op` while a single group consumes from it."""
        mine = self.root(op)
        while self.heavy[mine]:
            consumers = self._consumers(mine)
            if len(consumers) != 1 or self.heavy[consumers[0]]:
                return
            if not self._fit(mine, consumers[0]):
                return
            self._join(mine, consumers[0])
            mine = consumers[0]

    def join_consumer(self, op: int) -> None:
        """Join the group of `op` to the only group that consumes from it."""
        mine = self.root(op)
        self._join_only(mine, self._consumers(mine))

    def join_producer(self, op: int) -> None:
        """Join the group of `op` to the only group from which it consumes."""
        mine = self.root(op)
        producers = self._neighbours(mine, self.graph.predecessors)
        if not self.is_forward[mine]:
            producers = [other for other in producers if not self.is_forward[other]]
        self._join_only(mine, producers)

    def _consumers(self, mine: int) -> list[int]:
        others = self._neighbours(mine, self.graph.successors)
        return [other for other in others if self.is_forward[other] or not self.is_forward[mine]]

    def _neighbours(self, mine: int, edges: Csr) -> list[int]:
        ends = [end for op in self.members[mine] for end in edges.row(op).tolist()]
        roots = dict.fromkeys(self.root(end) for end in ends)
        roots.pop(mine, None)
        return list(roots)

    def _join_only(self, mine: int, others: list[int]) -> None:
        if len(others) == 1 and not self.heavy[mine] and self._fit(mine, others[0]):
            self._join(mine, others[0])

    def _fit(self, mine: int, other: int) -> bool:
        classes = (self.colocation[mine], self.colocation[other])
        apart = min(classes) >= 0 and classes[0] != classes[1]
        return not apart and self.is_forward[mine] == self.is_forward[other]

    def _join(self, mine: int, other: int) -> None:
        if mine == other:
            return
        self.parent[mine] = other
        self.members[other] += self.members[mine]
        self.heavy[other] = self.heavy[other] or self.heavy[mine]
        self.colocation[other] = max(self.colocation[mine], self.colocation[other])

    def grouping(self) -> Grouping:
        """The groups, numbered by their first op."""
        return Grouping.from_labels([self.root(op) for op in range(self.graph.n_ops)])

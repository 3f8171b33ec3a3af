"""The graph as HSDAG reads it: weights, graph inputs and graph outputs are nodes too.

HSDAG takes one node per ``<layer>`` of an OpenVINO file. Our graphs keep constants as the weights
of the ops that read them, so the nodes are made again from those: on the models of the zoo their
number and their edges equal those of the file. The view is of units, which a runtime cannot split;
where every unit is one op, as with catalogue costs, it is the file's own graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from placewright.core.arrays import Csr, FloatArray, IntArray
from placewright.core.graph import ComputationGraph

WEIGHT, INPUT, OUTPUT = "Const", "Parameter", "Result"  # the kinds of OpenVINO's files


@dataclass(frozen=True, eq=False)
class GraphView:
    """Nodes are numbered: units, weights, graph inputs, graph outputs.

    Attributes:
        kinds: of each node, length n_nodes.
        n_units: nodes below it are units.
        edges: distinct, (producer, consumer), in ascending order, shape (2, n_edges).
        shapes: extents of each node's largest output, () where unknown; of a weight its number of
            bytes, since graphs do not keep the shapes of weights; length n_nodes.
    """

    kinds: tuple[str, ...]
    n_units: int
    edges: IntArray
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, graph: ComputationGraph) -> GraphView:
        """The view of a graph of units."""
        n, n_weights = graph.n_ops, len(graph.weight_bytes)
        inputs = np.flatnonzero(graph.tensor_producers < 0)
        outputs = np.flatnonzero(graph.tensor_is_output)
        first_input = n + n_weights
        first_output = first_input + len(inputs)
        node_of_producer = np.array(graph.tensor_producers)
        node_of_producer[inputs] = first_input + np.arange(len(inputs))
        reads = node_of_producer[graph.tensor_consumers.row_of_each()]
        edges = [
            np.stack([reads, graph.tensor_consumers.indices]),
            np.stack([n + graph.op_weights.indices, graph.op_weights.row_of_each()]),
            np.stack([node_of_producer[outputs], first_output + np.arange(len(outputs))]),
        ]
        others = [WEIGHT] * n_weights + [INPUT] * len(inputs) + [OUTPUT] * len(outputs)
        shapes = [*largest_output_shapes(graph)]
        shapes += [(int(size),) for size in graph.weight_bytes.tolist()]
        shapes += [graph.tensor_shapes[tensor] for tensor in inputs.tolist()]
        shapes += [()] * len(outputs)
        distinct = np.unique(np.concatenate(edges, axis=1), axis=1).astype(np.int64)
        return cls((*graph.op_kinds, *others), n, distinct, tuple(shapes))

    @property
    def n_nodes(self) -> int:
        """Number of nodes."""
        return len(self.kinds)

    @cached_property
    def successors(self) -> Csr:
        """Distinct consumers of each node, in ascending order."""
        return Csr.from_pairs(self.edges[0], self.edges[1], self.n_nodes)

    @cached_property
    def visits(self) -> IntArray:
        """All nodes in topological order, generation by generation, shape (n_nodes,).

        The order of NetworkX, in which the released code visits them: first what reads nothing,
        then each node when the last of what it reads has been visited.
        """
        missing = np.bincount(self.edges[1], minlength=self.n_nodes).tolist()
        order = [node for node in range(self.n_nodes) if not missing[node]]
        for node in order:  # grows while it is read
            for reader in self.successors.row(node).tolist():
                missing[reader] -= 1
                if not missing[reader]:
                    order.append(reader)
        return np.array(order, dtype=np.int64)


def largest_output_shapes(graph: ComputationGraph) -> list[tuple[int, ...]]:
    """Extents of each op's largest output, () where it has none, length n_ops."""
    shapes: list[tuple[int, ...]] = [()] * graph.n_ops
    largest: FloatArray = np.full(graph.n_ops, -1.0)
    for tensor in np.flatnonzero(graph.tensor_producers >= 0).tolist():
        op = int(graph.tensor_producers[tensor])
        if graph.tensor_bytes[tensor] > largest[op]:
            largest[op] = graph.tensor_bytes[tensor]
            shapes[op] = graph.tensor_shapes[tensor]
    return shapes

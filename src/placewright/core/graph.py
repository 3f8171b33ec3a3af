"""The computation graph: operators that pass tensors, as a struct of arrays."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import ne

import numpy as np

from placewright.core.arrays import BoolArray, Csr, FloatArray, IntArray, frozen_ints
from placewright.errors import GraphError

FORWARD, BACKWARD, UPDATE = 0, 1, 2
PHASE_NAMES = ("forward", "backward", "update")
# Floating-point operations per byte made. Convolutions and matrix products of real models do
# hundreds; element-wise ops, pooling and concatenation at most a few.
_COMPUTE_BOUND = 20.0


@dataclass(frozen=True, eq=False)
class ComputationGraph:
    """A directed acyclic graph of operators. Build one with `GraphBuilder`.

    Ops, tensors and weights are integers. An edge is a pair of a tensor that an op produces and a
    consumer.

    Attributes:
        op_names: unique names, length n_ops.
        op_kinds: for example ``"MatMul"``, length n_ops.
        op_flops: floating-point operations, shape (n_ops,), float64.
        op_phases: FORWARD, BACKWARD or UPDATE, shape (n_ops,), int64.
        op_modules: path of the module an op came from ("" where unknown), length n_ops.
        op_colocation: ops of one class >= 0 share a device, -1 is free; shape (n_ops,), int64.
        op_weights: weights that each op keeps resident, rows are ops.
        weight_bytes: shape (n_weights,), float64; a weight that several ops share is one entry.
        tensor_bytes: shape (n_tensors,), float64.
        tensor_producers: producing op, -1 for a graph input; shape (n_tensors,), int64.
        tensor_consumers: consuming ops in ascending order without repetition, rows are tensors.
        tensor_is_output: True where the tensor is a graph output; shape (n_tensors,), bool.
        tensor_shapes: dimensions, length n_tensors; () where unknown or scalar.
        tensor_dtypes: for example ``"f32"``, length n_tensors; "" where unknown.
        consumers_as_read: the rows of `tensor_consumers` in the order of the file, where a method
            depends on it; None where that is the ascending order or unknown.
        weight_dtypes: for example ``"f16"``, length n_weights, "" where unknown; an empty tuple if
            all are unknown.

    Raises:
        GraphError: no ops, a column of the wrong length, a duplicate name, an index out of range,
            a negative, infinite or NaN size, a cycle.
    """

    op_names: tuple[str, ...]
    op_kinds: tuple[str, ...]
    op_flops: FloatArray
    op_phases: IntArray
    op_modules: tuple[str, ...]
    op_colocation: IntArray
    op_weights: Csr
    weight_bytes: FloatArray
    tensor_bytes: FloatArray
    tensor_producers: IntArray
    tensor_consumers: Csr
    tensor_is_output: BoolArray
    tensor_shapes: tuple[tuple[int, ...], ...]
    tensor_dtypes: tuple[str, ...]
    consumers_as_read: Csr | None = None
    weight_dtypes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._check_lengths()
        self._check_names()
        self._check_sizes()
        self._check_indices()
        if len(self.topological_order) < self.n_ops:
            cycle = _find_cycle(self.successors)
            path = " -> ".join(f"'{self.op_names[op]}'" for op in cycle)
            raise GraphError(f"the graph has a cycle: {path}; a computation graph must be acyclic")

    @property
    def n_ops(self) -> int:
        """Number of operators."""
        return len(self.op_names)

    @property
    def n_tensors(self) -> int:
        """Number of tensors."""
        return len(self.tensor_bytes)

    @property
    def n_edges(self) -> int:
        """Number of edges: (tensor, consumer) pairs without those of graph inputs."""
        produced = self.tensor_producers[self.tensor_consumers.row_of_each()] >= 0
        return int(np.count_nonzero(produced))

    @cached_property
    def op_outputs(self) -> Csr:
        """Tensors that each op produces, in ascending order."""
        produced = np.flatnonzero(self.tensor_producers >= 0)
        return Csr.from_pairs(self.tensor_producers[produced], produced, self.n_ops)

    @cached_property
    def op_inputs(self) -> Csr:
        """Tensors that each op consumes (graph inputs too), in ascending order."""
        return self.tensor_consumers.transposed(self.n_ops)

    @cached_property
    def successors(self) -> Csr:
        """Distinct consumer ops of each op, in ascending order."""
        tensors = self.tensor_consumers.row_of_each()
        producers = self.tensor_producers[tensors]
        inner = producers >= 0
        keys = np.unique(producers[inner] * self.n_ops + self.tensor_consumers.indices[inner])
        return Csr.from_pairs(keys // max(1, self.n_ops), keys % max(1, self.n_ops), self.n_ops)

    @cached_property
    def predecessors(self) -> Csr:
        """Distinct producer ops of each op's inputs, in ascending order."""
        return self.successors.transposed(self.n_ops)

    @cached_property
    def topological_order(self) -> IntArray:
        """All ops, producers first; of the ops that could come next, the smallest index."""
        return _topological_order(self.successors)

    @cached_property
    def op_weight_bytes(self) -> FloatArray:
        """Bytes of all weights of each op, shape (n_ops,), shared weights counted for each."""
        sizes = self.weight_bytes[self.op_weights.indices]
        rows = self.op_weights.row_of_each()
        return np.asarray(np.bincount(rows, weights=sizes, minlength=self.n_ops), dtype=np.float64)

    @cached_property
    def op_index(self) -> dict[str, int]:
        """Name -> op."""
        return {name: op for op, name in enumerate(self.op_names)}

    def _check_lengths(self) -> None:
        n_ops, n_tensors = self.n_ops, self.n_tensors
        per_op = (self.op_kinds, self.op_flops, self.op_phases, self.op_modules, self.op_colocation)
        per_tensor = (
            self.tensor_producers,
            self.tensor_is_output,
            self.tensor_shapes,
            self.tensor_dtypes,
        )
        if n_ops == 0:
            raise GraphError("the graph has no ops; give a model with at least one operator")
        if any(len(column) != n_ops for column in per_op) or self.op_weights.n_rows != n_ops:
            raise GraphError(f"every op column must have {n_ops} entries")
        rows = self.tensor_consumers.n_rows
        if any(len(column) != n_tensors for column in per_tensor) or rows != n_tensors:
            raise GraphError(f"every tensor column must have {n_tensors} entries")
        if self.weight_dtypes and len(self.weight_dtypes) != len(self.weight_bytes):
            raise GraphError(f"weight dtypes must have {len(self.weight_bytes)} entries, or none")

    def _check_names(self) -> None:
        if len(self.op_index) < self.n_ops:
            first: dict[str, int] = {}
            for op, name in enumerate(self.op_names):
                if name in first:
                    raise GraphError(
                        f"op name '{name}' is used twice (ops {first[name]} and {op}); "
                        "names must be unique"
                    )
                first[name] = op

    def _check_sizes(self) -> None:
        columns = (
            ("flops", self.op_flops),
            ("weight bytes", self.weight_bytes),
            ("tensor bytes", self.tensor_bytes),
        )
        for what, values in columns:
            wrong = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
            if len(wrong):
                index = int(wrong[0])
                name = f"op '{self.op_names[index]}'" if what == "flops" else f"entry {index}"
                raise GraphError(f"{name}: {what} must be finite and >= 0, got {values[index]}")

    def _check_indices(self) -> None:
        producers, consumers = self.tensor_producers, self.tensor_consumers.indices
        if len(producers) and (producers.min() < -1 or producers.max() >= self.n_ops):
            raise GraphError(f"a tensor names a producer outside 0..{self.n_ops - 1}")
        if len(consumers) and (consumers.min() < 0 or consumers.max() >= self.n_ops):
            raise GraphError(f"a tensor names a consumer outside 0..{self.n_ops - 1}")
        if self.consumers_as_read is not None:
            rows = range(self.n_tensors)
            as_read = (sorted(self.consumers_as_read.row(t).tolist()) for t in rows)
            ascending = (self.tensor_consumers.row(t).tolist() for t in rows)
            if self.consumers_as_read.n_rows != self.n_tensors or any(map(ne, as_read, ascending)):
                raise GraphError("consumers_as_read must hold the consumers of every tensor")
        weights = self.op_weights.indices
        if len(weights) and (weights.min() < 0 or weights.max() >= len(self.weight_bytes)):
            raise GraphError(f"an op names a weight outside 0..{len(self.weight_bytes) - 1}")


def consumers_as_read(rows: Sequence[Sequence[int]]) -> Csr | None:
    """Value of `ComputationGraph.consumers_as_read`: None if all rows are in ascending order."""
    ascending = all(
        reader < next_reader for row in rows for reader, next_reader in itertools.pairwise(row)
    )
    return None if ascending else Csr.from_rows(rows)


def is_compute_bound(flops: FloatArray, size: FloatArray) -> BoolArray:
    """True for tensors whose producer does at least 20 floating-point operations per byte.

    The framework stores such a tensor in a memory layout that suits its producer.

    Args:
        flops: floating-point operations of each tensor's producer, an op or a unit.
        size: bytes of each tensor.
    """
    return np.asarray((flops >= _COMPUTE_BOUND * size) & (flops > 0), dtype=np.bool_)


def compute_bound_tensors(graph: ComputationGraph) -> BoolArray:
    """True for tensors of a compute-bound producer, see `is_compute_bound`; shape (n_tensors,).

    Graph inputs have no producer: False.
    """
    producers = graph.tensor_producers
    flops = np.where(producers >= 0, graph.op_flops[producers], 0.0)
    return is_compute_bound(flops, graph.tensor_bytes)


def _topological_order(successors: Csr) -> IntArray:
    """All nodes, predecessors first; of the nodes that could come next, the smallest index.

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


def _find_cycle(successors: Csr) -> list[int]:
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

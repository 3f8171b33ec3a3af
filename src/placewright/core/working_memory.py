"""Memory that a unit takes while it runs, beside the tensors at its boundary."""

from __future__ import annotations

import numpy as np

from placewright.core.arrays import FloatArray
from placewright.core.graph import ComputationGraph
from placewright.core.grouping import Grouping


def working_bytes(graph: ComputationGraph, grouping: Grouping) -> FloatArray:
    """Bytes beyond its inputs and outputs that each group needs at one time, shape (n_groups,).

    The ops of a group run in topological order and each of their tensors takes memory of its own,
    from its op to its last reader. What the group alone reads is free after its last reader, too.

    Args:
        graph: the ops.
        grouping: of its ops.
    """
    group_of = grouping.group_of
    consumer_groups = group_of[graph.tensor_consumers.indices]
    tensors = graph.tensor_consumers.row_of_each()
    first = np.full(graph.n_tensors, -1, dtype=np.int64)
    first[tensors[::-1]] = consumer_groups[::-1]
    shared = np.zeros(graph.n_tensors, dtype=np.bool_)
    shared[tensors[consumer_groups != first[tensors]]] = True
    shared |= graph.tensor_is_output
    position = np.empty(graph.n_ops, dtype=np.int64)
    position[graph.topological_order] = np.arange(graph.n_ops)
    last = np.full(graph.n_tensors, -1, dtype=np.int64)
    np.maximum.at(last, tensors, position[graph.tensor_consumers.indices])
    found = np.zeros(grouping.n_groups)
    for group in range(grouping.n_groups):
        ops = grouping.members.row(group)
        if len(ops) > 1:
            ordered = ops[np.argsort(position[ops])].tolist()
            found[group] = _peak(graph, group_of, ordered, (position, first, shared, last))
    return found


def _peak(
    graph: ComputationGraph,
    group_of: np.ndarray,
    ops: list[int],
    tables: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
) -> float:
    """Largest bytes of own tensors, less the inputs that are gone, less all outputs."""
    position, first, shared, last = tables
    group = int(group_of[ops[0]])
    size = graph.tensor_bytes
    in_use = peak = outputs = 0.0
    for op in ops:
        own = graph.op_outputs.row(op).tolist()
        in_use += float(size[own].sum())
        peak = max(peak, in_use)
        for tensor in own:
            leaves = shared[tensor] or (first[tensor] >= 0 and first[tensor] != group)
            if leaves:
                outputs += float(size[tensor])
            elif last[tensor] < 0:  # nobody reads it
                in_use -= float(size[tensor])
        for tensor in graph.op_inputs.row(op).tolist():
            ends_here = last[tensor] == position[op]
            if ends_here and not shared[tensor] and first[tensor] == group:
                in_use -= float(size[tensor])
    return max(0.0, peak - outputs)

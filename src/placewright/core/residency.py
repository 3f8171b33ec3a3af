"""Terms of a device's memory, each defined once.

Two kinds of terms. *Kept* bytes stay at all times, and each entry counts once on a device, however
many of its units need it: weights, and under max-load the tensors of the samples in flight. *Live*
bytes come and go with the ops of one sample: the tensors of the unit graph, to which the working
bytes of units belong; execution model `event` simulates when (design, section 3).

Code that counts memory takes one of the views of `Kept`: kernels and programs its rows and sizes,
constructive placers the bytes of labelled units. A new term is an entry of `kept_of`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from placewright.core.arrays import Csr, FloatArray, IntArray, frozen_floats
from placewright.core.execution_models import ExecutionModel, MaxLoad
from placewright.core.graph import ComputationGraph
from placewright.core.grouping import Grouping


@dataclass(frozen=True, eq=False)
class Kept:
    """Entries that devices keep for the units that they run."""

    of_units: Csr  # entries that each unit needs; rows are units
    sizes: FloatArray  # bytes of each entry, shape (n_entries,)

    @cached_property
    def units(self) -> Csr:
        """Units that need each entry, in ascending order; rows are entries."""
        return self.of_units.transposed(len(self.sizes))

    @cached_property
    def total(self) -> float:
        """Bytes of all entries: those that one device keeps if it runs everything."""
        return float(self.sizes.sum())

    @cached_property
    def unit_bytes(self) -> FloatArray:
        """Bytes that each unit alone needs, shape (n_units,)."""
        rows, sizes = self.of_units.row_of_each(), self.sizes[self.of_units.indices]
        return frozen_floats(np.bincount(rows, sizes, minlength=self.of_units.n_rows))

    def bytes_by_label(self, label: IntArray) -> FloatArray:
        """Bytes of the distinct entries of each label's units, shape (n_labels,).

        Args:
            label: of each unit, 0, 1, ..., shape (n_units,).
        """
        n_entries = max(1, len(self.sizes))
        keys = np.unique(label[self.of_units.row_of_each()] * n_entries + self.of_units.indices)
        sizes = self.sizes[keys % n_entries]
        total = np.bincount(keys // n_entries, sizes, int(label.max()) + 1)
        return np.asarray(total, dtype=np.float64)


def first_keepers(graph: ComputationGraph, units: Grouping) -> Csr:
    """Weights by the unit that holds the first op, by index, that keeps them; rows are units.

    Devices that share their weights hold each once. It counts where that op runs, and nowhere else,
    whatever the units are.
    """
    kept, first = np.unique(graph.op_weights.indices, return_index=True)
    keepers = graph.op_weights.row_of_each()[first]  # rows ascend, so the first is the lowest op
    return Csr.from_pairs(units.group_of[keepers], kept, units.n_groups)


def kept_of(graph: ComputationGraph, model: ExecutionModel, weights: Csr) -> Kept:
    """The entries that devices keep for the units of a graph.

    Args:
        model: under max-load the tensors of its samples in flight stay, on every device that makes
            or reads them; nothing is freed within a sample, since no order of ops is known.
        weights: that count where each unit runs; rows are units.
    """
    samples = model.samples_in_flight if isinstance(model, MaxLoad) else 0
    if samples == 0:
        return Kept(weights, graph.weight_bytes)
    terms = [
        (weights, graph.weight_bytes),
        (tensors_of_ops(graph), samples * graph.tensor_bytes),
    ]
    rows, entries, n_entries = [], [], 0
    for of_units, sizes in terms:
        rows.append(of_units.row_of_each())
        entries.append(of_units.indices + n_entries)
        n_entries += len(sizes)
    of_units = Csr.from_pairs(np.concatenate(rows), np.concatenate(entries), graph.n_ops)
    return Kept(of_units, frozen_floats(np.concatenate([sizes for _, sizes in terms])))


def tensors_of_ops(graph: ComputationGraph) -> Csr:
    """Tensors that each op makes or reads, each once, in ascending order; rows are ops."""
    ops = [rows.row_of_each() for rows in (graph.op_inputs, graph.op_outputs)]
    tensors = [rows.indices for rows in (graph.op_inputs, graph.op_outputs)]
    width = max(1, graph.n_tensors)
    keys = np.unique(np.concatenate(ops) * width + np.concatenate(tensors))
    return Csr.from_pairs(keys // width, keys % width, graph.n_ops)


def working_bytes(
    graph: ComputationGraph, grouping: Grouping, of_ops: FloatArray | None = None
) -> FloatArray:
    """Bytes beyond its inputs and outputs that each group needs at one time, shape (n_groups,).

    The ops of a group run in topological order and each of their tensors takes memory of its own,
    from its op to its last reader. What the group alone reads is free after its last reader, too.

    Args:
        of_ops: bytes that each op takes beside its inputs and outputs while it runs, shape
            (n_ops,); None where that is not known.
    """
    besides = np.zeros(graph.n_ops) if of_ops is None else of_ops
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
    tables = (position, first, shared, last, besides)
    for group in range(grouping.n_groups):
        ops = grouping.members.row(group)
        if len(ops) > 1:
            ordered = ops[np.argsort(position[ops])].tolist()
            found[group] = _peak(graph, group_of, ordered, tables)
        else:
            found[group] = besides[ops[0]]
    return found


def _peak(
    graph: ComputationGraph,
    group_of: np.ndarray,
    ops: list[int],
    tables: tuple[np.ndarray, ...],
) -> float:
    """Largest bytes of own tensors, less the inputs that are gone, less all outputs."""
    position, first, shared, last, besides = tables
    group = int(group_of[ops[0]])
    size = graph.tensor_bytes
    in_use = peak = outputs = 0.0
    for op in ops:
        own = graph.op_outputs.row(op).tolist()
        in_use += float(size[own].sum())
        peak = max(peak, in_use + float(besides[op]))
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

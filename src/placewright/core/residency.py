"""Terms of a device's memory, each defined once.

Two kinds of terms. *Kept* bytes stay at all times, and each entry counts once on a device, however
many of its units need it: weights, and under max-load the tensors of the samples in flight. *Live*
bytes come and go with the ops of one sample: the tensors of the unit graph, to which the working
bytes of units belong; execution model `event` simulates when (design, section 3).

Code that counts memory takes one of the views of `Kept`: kernels and programs its rows and sizes,
constructive placers the bytes of labelled units. A new term is an entry of `kept_of`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property

import numpy as np

from placewright.core.arrays import (
    Csr,
    FloatArray,
    IntArray,
    frozen_bools,
    frozen_floats,
    frozen_ints,
)
from placewright.core.execution_models import ExecutionModel, MaxLoad
from placewright.core.graph import ComputationGraph
from placewright.core.grouping import Grouping, Quotient
from placewright.core.source import ModelSource
from placewright.errors import CostError, InputError, UnknownNameError

_MERGED_BYTES = 8192.0  # of constants that exporters merge: at most 1024 elements
_WITH_PARAMETERS = ("addmm", "bmm", "embedding", "embedding_bag", "gather", "gemm", "linear",
                    "matmul", "mm")  # fmt: skip


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


def check_working_bytes(
    graph: ComputationGraph, of_ops: FloatArray | None, *, inner_tensors: bool
) -> None:
    """Check the bytes that each op takes beside its inputs and outputs while it runs.

    Raises:
        CostError: they are not one number >= 0 for each op, or units are one kernel each.
    """
    if of_ops is None:
        return
    is_right = of_ops.shape == (graph.n_ops,) and bool(np.isfinite(of_ops).all())
    if not is_right or (of_ops < 0).any() or not inner_tensors:
        raise CostError(
            f"op_working_bytes needs inner_tensors and {graph.n_ops} finite numbers, one per op, "
            "none below 0"
        )


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


def inputs_named(
    names: Sequence[str], graph: ComputationGraph, source: ModelSource | None
) -> tuple[int, ...]:
    """Tensors of graph inputs by the model's own names, or ``input_0`` ..., ascending.

    Args:
        names: or patterns of names, such as ``past_*``.

    Raises:
        UnknownNameError: there is no such input; the message lists the known ones.
    """
    known, found = _names(graph, source), set[int]()
    for name in names:
        fits = (
            [name]
            if name in known
            else [candidate for candidate in known if fnmatchcase(candidate, name)]
        )
        if not fits:
            raise UnknownNameError("model input", name, list(dict.fromkeys(known)))
        found |= {known[candidate] for candidate in fits}
    return tuple(sorted(found))


def input_names(
    inputs: Sequence[int], graph: ComputationGraph, source: ModelSource | None
) -> list[str]:
    """The first name of each of these tensors."""
    first: dict[int, str] = {}
    for name, tensor in _names(graph, source).items():
        first.setdefault(tensor, name)
    return [first[tensor] for tensor in inputs]


def _names(graph: ComputationGraph, source: ModelSource | None) -> dict[str, int]:
    signature = None if source is None else source.signature
    if signature is not None:
        ports = signature.inputs
        own = {port.name: port.tensor for port in ports}
        return own | {
            name: port.tensor for port in ports for name in port.other_names if name not in own
        }
    entering = np.flatnonzero(graph.tensor_producers < 0).tolist()
    return {f"input_{number}": tensor for number, tensor in enumerate(entering)}


def check_resident(graph: ComputationGraph, inputs: Sequence[int]) -> None:
    """Check that tensors can stay where they are used.

    Raises:
        InputError: a tensor is no graph input, or leaves the graph as an output, too.
    """
    for tensor in inputs:
        if not 0 <= tensor < graph.n_tensors or graph.tensor_producers[tensor] >= 0:
            raise InputError(f"resident input {tensor} is no input of the graph")
        if graph.tensor_is_output[tensor]:
            raise InputError(
                f"resident input {tensor} is an output of the graph, too: it ends at the host"
            )


def with_resident_inputs(graph: ComputationGraph, inputs: Sequence[int]) -> Quotient:
    """The same ops, with each of `inputs` as a weight of its readers instead of a tensor.

    Nothing transfers a weight, and its bytes count once on each device that has a reader.

    Args:
        inputs: tensors of it that no op produces.
    """
    if not inputs:
        return Quotient(graph, frozen_ints(np.arange(graph.n_tensors)))
    gone = np.zeros(graph.n_tensors, dtype=np.bool_)
    gone[list(inputs)] = True
    staying = np.flatnonzero(~gone)
    new_index = np.cumsum(~gone) - 1
    tensors, readers = graph.tensor_consumers.row_of_each(), graph.tensor_consumers.indices
    stays = ~gone[tensors]
    n_weights = len(graph.weight_bytes)
    weight_of = n_weights + np.cumsum(gone) - 1
    rows = np.concatenate([graph.op_weights.row_of_each(), readers[~stays]])
    weights = np.concatenate([graph.op_weights.indices, weight_of[tensors[~stays]]])
    as_read = graph.consumers_as_read
    added = tuple(graph.tensor_dtypes[tensor] for tensor in np.flatnonzero(gone))
    changed = replace(
        graph,
        op_weights=Csr.from_pairs(rows, weights, graph.n_ops),
        weight_bytes=frozen_floats(np.concatenate([graph.weight_bytes, graph.tensor_bytes[gone]])),
        tensor_bytes=frozen_floats(graph.tensor_bytes[staying]),
        tensor_producers=frozen_ints(graph.tensor_producers[staying]),
        tensor_consumers=Csr.from_pairs(new_index[tensors[stays]], readers[stays], len(staying)),
        tensor_is_output=frozen_bools(graph.tensor_is_output[staying]),
        tensor_shapes=tuple(graph.tensor_shapes[tensor] for tensor in staying),
        tensor_dtypes=tuple(graph.tensor_dtypes[tensor] for tensor in staying),
        consumers_as_read=None
        if as_read is None
        else Csr.from_rows([as_read.row(int(tensor)) for tensor in staying]),
        weight_dtypes=(*(graph.weight_dtypes or ("",) * n_weights), *added),
    )
    return Quotient(changed, frozen_ints(staying))


def tied_ops(graph: ComputationGraph, state: Sequence[str]) -> list[list[int]]:
    """Ops that read one parameter of several modules, such as an embedding and its head.

    Products and lookups count. A module has as many parameters and buffers of its own as paths in
    `state` lie directly in it. One whose ops read more is given some of them, such as a table of
    relative positions, and counts for none. Small constants do not count either, since exporters of
    ONNX store equal ones once.

    Args:
        state: paths of the model's parameters and buffers.

    Returns:
        For each such parameter its readers, in ascending order.
    """
    n_own = Counter(path.rpartition(".")[0] for path in state)
    read: dict[str, set[int]] = {}
    for op, module in enumerate(graph.op_modules):
        read.setdefault(module, set()).update(graph.op_weights.row(op).tolist())
    readers: dict[int, list[int]] = {}
    for op, module in enumerate(graph.op_modules):
        kind = graph.op_kinds[op].lower()
        computes = kind in _WITH_PARAMETERS or kind.startswith("conv")
        if not computes or len(read[module]) > n_own[module]:
            continue
        for weight in graph.op_weights.row(op).tolist():
            if graph.weight_bytes[weight] > _MERGED_BYTES:
                readers.setdefault(weight, []).append(op)
    return [ops for ops in readers.values() if len({graph.op_modules[op] for op in ops}) > 1]

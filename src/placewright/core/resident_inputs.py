"""Resident inputs: graph inputs that stay where they are used, such as a key/value cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

import numpy as np

from placewright.core.arrays import Csr, frozen_bools, frozen_floats, frozen_ints
from placewright.core.graph import ComputationGraph
from placewright.core.grouping import Quotient
from placewright.core.source import ModelSource
from placewright.errors import InputError, UnknownNameError


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

"""Graph files: a computation graph and its model source as JSON columns."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from placewright.core.arrays import Csr, frozen_bools, frozen_floats, frozen_ints
from placewright.core.graph import PHASE_NAMES, ComputationGraph, consumers_as_read
from placewright.core.source import NO_TENSOR, ModelSource, Port, Signature
from placewright.errors import FileFormatError
from placewright.files.schema import Float, Int, Strict, validated
from placewright.io.json_text import json_number, read_json_object
from placewright.io.written import write_text

GRAPH_FORMAT = "placewright.graph/1"


class PortDocument(Strict):
    """One input or output; see `core.source.Port`."""

    name: str
    shape: list[Int]
    dtype: str
    tensor: int
    other_names: list[str] = Field(default_factory=list)
    value: list[int | float] | None = None


class SignatureDocument(Strict):
    """Inputs and outputs in the model's own order."""

    inputs: list[PortDocument]
    outputs: list[PortDocument]


class SourceDocument(Strict):
    """A model source; see `core.source.ModelSource`."""

    path: str
    sha256: str
    format: str
    shapes: dict[str, list[Int]] = Field(default_factory=dict)
    reader_version: str = ""
    native_names: dict[str, str] = Field(default_factory=dict)
    options: dict[str, str] = Field(default_factory=dict)
    signature: SignatureDocument | None = None
    state: list[str] = Field(default_factory=list)


class OpColumns(Strict):
    """One list per property, one entry per op."""

    name: list[str]
    kind: list[str]
    flops: list[Float]
    phase: list[str]
    module: list[str]
    colocation: list[Int]
    weights: list[list[Int]]


class TensorColumns(Strict):
    """One list per property, one entry per tensor; producer -1 is a graph input."""

    bytes: list[Float]
    producer: list[Int]
    consumers: list[list[Int]]
    is_output: list[bool]
    shape: list[list[Int]]
    dtype: list[str]


class GraphColumns(Strict):
    """A whole computation graph."""

    ops: OpColumns
    tensors: TensorColumns
    weight_bytes: list[Float]
    weight_dtypes: list[str] = Field(default_factory=list)


class GraphDocument(Strict):
    """The whole file."""

    format: Literal["placewright.graph/1"]
    source: SourceDocument | None
    graph: GraphColumns


def write_graph(path: Path | str, graph: ComputationGraph, source: ModelSource | None) -> None:
    """Write a graph file that `read_graph` reads back.

    Raises:
        InputError: the file cannot be written; an earlier one stays intact.
    """
    data = {"format": GRAPH_FORMAT, "source": source_data(source), "graph": graph_data(graph)}
    write_text(path, json.dumps(data, default=json_number))


def read_graph(path: Path | str) -> tuple[ComputationGraph, ModelSource | None]:
    """Read a graph file.

    Raises:
        InputError: the file cannot be read.
        FileFormatError: it is not a graph file, or a field is wrong.
        GraphError: the columns do not form a valid graph.
    """
    document = validated(GraphDocument, read_json_object(path), path, GRAPH_FORMAT)
    graph = graph_of(document.graph, path)
    return graph, source_of(document.source, graph, path)


def graph_data(graph: ComputationGraph) -> dict[str, Any]:
    """The graph as plain lists."""
    return {
        "ops": {
            "name": list(graph.op_names),
            "kind": list(graph.op_kinds),
            "flops": graph.op_flops.tolist(),
            "phase": [PHASE_NAMES[phase] for phase in graph.op_phases.tolist()],
            "module": list(graph.op_modules),
            "colocation": graph.op_colocation.tolist(),
            "weights": rows_of(graph.op_weights),
        },
        "tensors": {
            "bytes": graph.tensor_bytes.tolist(),
            "producer": graph.tensor_producers.tolist(),
            "consumers": rows_of(graph.consumers_as_read or graph.tensor_consumers),
            "is_output": graph.tensor_is_output.tolist(),
            "shape": [list(shape) for shape in graph.tensor_shapes],
            "dtype": list(graph.tensor_dtypes),
        },
        "weight_bytes": graph.weight_bytes.tolist(),
        **({"weight_dtypes": list(graph.weight_dtypes)} if graph.weight_dtypes else {}),
    }


def graph_of(columns: GraphColumns, path: object) -> ComputationGraph:
    """The graph of columns.

    Raises:
        FileFormatError: a phase is unknown, or a number has more than 64 bits.
        GraphError: the columns do not form a valid graph.
    """
    try:
        phases = [PHASE_NAMES.index(phase) for phase in columns.ops.phase]
    except ValueError:
        raise FileFormatError(f"file '{path}': phases are {', '.join(PHASE_NAMES)}") from None
    try:
        return _graph_of(columns, phases)
    except OverflowError:
        raise FileFormatError(f"file '{path}': a number of an op or tensor is too large") from None


def _graph_of(columns: GraphColumns, phases: list[int]) -> ComputationGraph:
    ops, tensors = columns.ops, columns.tensors
    return ComputationGraph(
        op_names=tuple(ops.name),
        op_kinds=tuple(ops.kind),
        op_flops=frozen_floats(ops.flops),
        op_phases=frozen_ints(phases),
        op_modules=tuple(ops.module),
        op_colocation=frozen_ints(ops.colocation),
        op_weights=Csr.from_rows([list(dict.fromkeys(row)) for row in ops.weights]),
        weight_bytes=frozen_floats(columns.weight_bytes),
        tensor_bytes=frozen_floats(tensors.bytes),
        tensor_producers=frozen_ints(tensors.producer),
        tensor_consumers=Csr.from_rows([sorted(dict.fromkeys(row)) for row in tensors.consumers]),
        tensor_is_output=frozen_bools(tensors.is_output),
        tensor_shapes=tuple(tuple(shape) for shape in tensors.shape),
        tensor_dtypes=tuple(tensors.dtype),
        consumers_as_read=consumers_as_read(
            [list(dict.fromkeys(row)) for row in tensors.consumers]
        ),
        weight_dtypes=tuple(columns.weight_dtypes),
    )


def source_data(source: ModelSource | None) -> dict[str, Any] | None:
    """The model source as plain data."""
    if source is None:
        return None
    data: dict[str, Any] = {
        "path": source.path,
        "sha256": source.sha256,
        "format": source.format,
        "shapes": {name: list(shape) for name, shape in source.shapes.items()},
        "reader_version": source.reader_version,
        "native_names": dict(source.native_names),
        "options": dict(source.options),
    }
    if source.signature is not None:
        data["signature"] = {
            "inputs": [_port_data(port) for port in source.signature.inputs],
            "outputs": [_port_data(port) for port in source.signature.outputs],
        }
    if source.state:
        data["state"] = list(source.state)
    return data


def _port_data(port: Port) -> dict[str, Any]:
    data: dict[str, Any] = {
        "name": port.name,
        "shape": list(port.shape),
        "dtype": port.dtype,
        "tensor": port.tensor,
        "other_names": list(port.other_names),
    }
    return data if port.value is None else {**data, "value": list(port.value)}


def source_of(
    document: SourceDocument | None, graph: ComputationGraph, path: object
) -> ModelSource | None:
    """The model source of a document.

    Raises:
        FileFormatError: its inputs or outputs differ from those of the graph, or have no shape.
    """
    if document is None:
        return None
    return ModelSource(
        path=document.path,
        sha256=document.sha256,
        format=document.format,
        shapes={name: tuple(shape) for name, shape in document.shapes.items()},
        reader_version=document.reader_version,
        native_names=document.native_names,
        options=document.options,
        signature=_signature_of(document.signature, graph, path),
        state=tuple(document.state),
    )


def _signature_of(
    document: SignatureDocument | None, graph: ComputationGraph, path: object
) -> Signature | None:
    if document is None:
        return None
    inputs = tuple(_port_of(port, path) for port in document.inputs)
    outputs = tuple(_port_of(port, path) for port in document.outputs)
    entering = np.flatnonzero(graph.tensor_producers < 0).tolist()
    leaving = np.flatnonzero(graph.tensor_is_output).tolist()
    named = sorted({port.tensor for port in outputs} - {NO_TENSOR})
    if sorted(port.tensor for port in inputs) != entering or named != leaving:
        raise FileFormatError(
            f"file '{path}': the signature names other inputs or outputs than the graph has"
        )
    return Signature(inputs, outputs)


def _port_of(document: PortDocument, path: object) -> Port:
    if any(extent < 0 for extent in document.shape):
        raise FileFormatError(f"file '{path}': port '{document.name}' has shape {document.shape}")
    if document.value is not None and len(document.value) not in (1, math.prod(document.shape)):
        raise FileFormatError(
            f"file '{path}': input '{document.name}' {document.shape} has {len(document.value)} "
            "values; expected one, or one for each element"
        )
    return Port(
        document.name,
        tuple(document.shape),
        document.dtype,
        document.tensor,
        tuple(document.other_names),
        None if document.value is None else tuple(document.value),
    )


def rows_of(csr: Csr) -> list[list[int]]:
    """Compressed rows as a list of lists."""
    flat, starts = csr.indices.tolist(), csr.indptr.tolist()
    return [flat[a:b] for a, b in itertools.pairwise(starts)]

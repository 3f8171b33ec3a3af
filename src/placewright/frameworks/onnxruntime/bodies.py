"""The graphs inside ONNX nodes: branches of a choice, bodies of loops and scans."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from placewright.frameworks.onnxruntime.flops import NodeShapes, Shape, flops_of

_MOST_ITERATIONS = 2**31  # a loop that ends by its condition alone says 2**63 - 1


def bodies_of(node: Any) -> Iterator[Any]:
    """The graphs that a node holds, in the order of its attributes."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def captured(node: Any) -> Iterator[str]:
    """Values of the surrounding graph that the node's bodies read."""
    for graph in bodies_of(node):
        own = {value.name for value in (*graph.input, *graph.initializer)}  # membership only
        for inner in graph.node:
            for name in (*inner.input, *captured(inner)):
                if name and name not in own:
                    yield name
            own.update(inner.output)
        yield from (value.name for value in graph.output if value.name not in own)


@dataclass(frozen=True)
class Values:
    """What is known of the values around a node.

    Attributes:
        shape: of a value; ``()`` where it is unknown.
        number: of a constant with one integer; None of any other.
    """

    shape: Callable[[str], Shape]
    number: Callable[[str], int | None]


def node_flops(onnx: Any, node: Any, values: Values) -> float:
    """Operations of a node and of its bodies.

    Of two branches the more expensive counts; a body counts as often as it runs, once where only
    running it tells.
    """
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    inputs = [values.shape(name) for name in node.input if name]
    outputs = [values.shape(name) for name in node.output if name]
    own = flops_of(NodeShapes(node.op_type, attributes, inputs, outputs))
    inside = [_graph_flops(onnx, graph, values) for graph in bodies_of(node)]
    return own + max(inside, default=0.0) * _iterations(node, attributes, values)


def _graph_flops(onnx: Any, graph: Any, outer: Values) -> float:
    types = {v.name: v.type.tensor_type for v in (*graph.input, *graph.value_info, *graph.output)}
    initializers = {tensor.name: tensor for tensor in graph.initializer}
    numbers = constant_numbers(onnx, graph)

    def shape(name: str) -> Shape:
        if name in initializers:
            return tuple(initializers[name].dims)
        return extents(types[name]) if name in types else outer.shape(name)

    def number(name: str) -> int | None:
        return numbers[name] if name in numbers else outer.number(name)

    return sum(node_flops(onnx, node, Values(shape, number)) for node in graph.node)


def extents(tensor_type: Any) -> Shape:
    """Dimensions of a type; an open one is 1."""
    return tuple(d.dim_value if d.HasField("dim_value") else 1 for d in tensor_type.shape.dim)


def constant_numbers(onnx: Any, graph: Any) -> dict[str, int]:
    """Values of a graph that are one integer each, known before it runs."""
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    numbers = {}
    for node in graph.node:
        for attribute in node.attribute if node.op_type == "Constant" else ():
            if attribute.name == "value":
                tensors[node.output[0]] = attribute.t
            elif attribute.name == "value_int":
                numbers[node.output[0]] = int(attribute.i)
    integers = (onnx.TensorProto.INT64, onnx.TensorProto.INT32)
    for name, tensor in tensors.items():
        is_inside = tensor.data_location != onnx.TensorProto.EXTERNAL
        if tensor.data_type in integers and list(tensor.dims) in ([], [1]) and is_inside:
            numbers[name] = int(onnx.numpy_helper.to_array(tensor).reshape(-1)[0])
    return numbers


def _iterations(node: Any, attributes: Mapping[str, Any], values: Values) -> int:
    count = None
    if node.op_type == "Loop" and node.input and node.input[0]:
        count = values.number(node.input[0])
    elif node.op_type == "Scan":
        n_scanned = int(attributes.get("num_scan_inputs", 0))
        shape = values.shape(node.input[-n_scanned]) if 0 < n_scanned <= len(node.input) else ()
        axis = next(iter(attributes.get("scan_input_axes", [])), 0)
        count = shape[axis] if -len(shape) <= axis < len(shape) else None
    return 1 if count is None or not 0 <= count < _MOST_ITERATIONS else count

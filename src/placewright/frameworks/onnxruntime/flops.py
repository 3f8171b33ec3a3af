"""Floating-point operations of an ONNX node, and the graphs inside nodes.

Branches of a choice and bodies of loops and scans are graphs that a node holds as attributes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from placewright.frameworks import flops

Shape = tuple[int, ...]
_DOMAINS = ("", "ai.onnx", "com.microsoft")  # whose operators are counted by their names
_MOST_ITERATIONS = 2**31 - 1  # a loop that only its condition ends has this or 2**63 - 1


@dataclass(frozen=True)
class NodeShapes:
    """Type and attributes of a node, and the shapes of its inputs and outputs."""

    kind: str
    attributes: Mapping[str, Any]
    inputs: Sequence[Shape]
    outputs: Sequence[Shape]

    @property
    def output(self) -> Shape:
        """Shape of the first output."""
        return self.outputs[0] if self.outputs else (0,)


def flops_of(node: NodeShapes) -> float:
    """Count operations by the rules of `frameworks.flops`; 0 if a shape that counts is unknown."""
    try:
        return _counted(node)
    except (IndexError, ValueError):
        return 0.0


def _counted(node: NodeShapes) -> float:
    special = _SPECIAL.get(node.kind)
    if special is not None:
        return special(node)
    if node.kind in _NONE or not node.outputs:
        return 0.0
    if node.kind.startswith(_REDUCTIONS):
        return flops.elementwise(node.inputs[0])
    return _BY_OUTPUT.get(node.kind, flops.elementwise)(node.output)


def _convolution(kernel: int = 1, most: int = 2) -> Callable[[NodeShapes], float]:
    """The count of a convolution, which has a bias if it has more than `most` inputs.

    Args:
        kernel: input of the kernel, which is (outputs, inputs per group, ...).
    """

    def of_node(node: NodeShapes) -> float:
        _, inputs, *window = node.inputs[kernel]
        return flops.convolution(node.output, window, inputs, bias=len(node.inputs) > most)

    return of_node


def _transposed_convolution(node: NodeShapes) -> float:
    kernel = node.inputs[1]  # (inputs, outputs per group, ...)
    return flops.transposed_convolution(node.inputs[0], kernel[2:], kernel[1])


def _matmul(node: NodeShapes) -> float:
    left = node.inputs[0]
    inner = -2 if node.attributes.get("transA") else -1  # only FusedMatMul has it
    return flops.matmul(node.output, left[inner] if left else 1)


def _einsum(node: NodeShapes) -> float:
    return flops.einsum(node.attributes["equation"].decode(), node.inputs)


def _gemm(node: NodeShapes) -> float:
    inner = node.inputs[0][0 if node.attributes.get("transA") else 1]
    # Each tensor of a QGemm has a scale and a zero point, the bias none.
    has_bias = len(node.inputs) % 2 if node.kind == "QGemm" else len(node.inputs) > 2
    return flops.matmul(node.output, inner) + has_bias * flops.elementwise(node.output)


def _projected_attention(node: NodeShapes) -> float:
    """Attention of `com.microsoft`, which computes query, key and value itself."""
    batch, steps, width = node.inputs[0]
    projected = (batch, steps, node.inputs[1][1])
    products = flops.matmul(projected, width) + flops.elementwise(projected)
    return products + _attention_of_heads(node, steps)


def _attention_of_heads(node: NodeShapes, steps: int = 0) -> float:
    """Attention of `com.microsoft`, whose heads have the width of the output's.

    Args:
        steps: number of keys if the node returns none.
    """
    batch, queries, hidden = node.output
    heads = int(node.attributes["num_heads"])
    if not steps and len(node.inputs[0]) == 5:  # (batch, keys, heads, 3, width) holds all three
        steps = node.inputs[0][1]
    returned = len(node.outputs) > 1 and len(node.outputs[1]) > 2  # (..., keys, width)
    read = () if returned or steps else node.inputs[1]
    packed = len(read) == 5  # (batch, keys, heads, 2, width) holds keys and values
    keys = node.outputs[1][-2] if returned else steps or read[1 if packed else -2]
    return flops.attention((batch * heads, queries, hidden // heads), keys, hidden // heads)


def _attention(node: NodeShapes) -> float:
    if "num_heads" in node.attributes:
        return _projected_attention(node)
    query, key, value = node.inputs[:3]
    if len(query) == 3:  # (batch, sequence, heads x width): the products are the same
        heads = int(node.attributes.get("q_num_heads", 1))
        query = (query[0] * heads, query[1], query[2] // heads)
        value = (*value[:-1], value[-1] // int(node.attributes.get("kv_num_heads", heads)))
    returned = len(node.outputs) > 1 and len(node.outputs[1]) == 4  # keys with those of the past
    keys = node.outputs[1][-2] if returned else key[-2]
    return flops.attention(query, keys, value[-1])


def _pooling(node: NodeShapes) -> float:
    return flops.pooling(node.output, node.attributes.get("kernel_shape", ()))


def _recurrent(
    count: Callable[[int, int, int, int], float],
) -> Callable[[NodeShapes], float]:
    """X is (steps, batch, inputs), R is (directions, gates x hidden, hidden)."""

    def of_node(node: NodeShapes) -> float:
        first, second, inputs = node.inputs[0]
        by_batch = bool(node.attributes.get("layout"))
        batch, steps = (first, second) if by_batch else (second, first)
        directions, _, hidden = node.inputs[2]
        hidden = int(node.attributes.get("hidden_size", hidden))  # quantized, R is transposed
        return directions * count(batch, steps, inputs, hidden)

    return of_node


_SPECIAL: Mapping[str, Callable[[NodeShapes], float]] = flops.by_operator(
    {
        _convolution(): "Conv FusedConv",
        _convolution(most=3): "DeformConv",  # with offsets
        _convolution(most=4): "ConvInteger",  # with two zero points, and never a bias
        _convolution(3, most=8): "QLinearConv",  # each tensor has a scale and a zero point
        _transposed_convolution: "ConvTranspose",
        _matmul: """MatMul FusedMatMul MatMulInteger MatMulIntegerToFloat MatMulNBits
            DynamicQuantizeMatMul QLinearMatMul""",
        _einsum: "Einsum",
        _gemm: "Gemm FusedGemm QGemm",
        _attention: "Attention",
        _projected_attention: "QAttention",
        _attention_of_heads: "MultiHeadAttention GroupQueryAttention",
        _pooling: "MaxPool AveragePool QLinearAveragePool LpPool",
        _recurrent(flops.lstm): "LSTM DynamicQuantizeLSTM",
        _recurrent(flops.gru): "GRU",
        _recurrent(flops.rnn): "RNN",
    }
)

# Nodes that count by the shape of their output alone.
_BY_OUTPUT: Mapping[str, Callable[[Shape], float]] = flops.by_operator(
    {
        flops.softmax: "Softmax QLinearSoftmax LogSoftmax",
        flops.normalisation: """LayerNormalization InstanceNormalization GroupNormalization LRN
            RMSNormalization LpNormalization MeanVarianceNormalization
            SimplifiedLayerNormalization SkipLayerNormalization
            SkipSimplifiedLayerNormalization EmbedLayerNormalization""",
        flops.batch_normalisation: "BatchNormalization",
    }
)

# Beginnings of names of nodes that count by the shape of their first input.
_REDUCTIONS = ("Reduce", "QLinearReduce", "ArgMax", "ArgMin", "Global", "QLinearGlobal")

# Nodes that move, select or describe data.
_NONE = frozenset(
    {
        *("Constant", "ConstantOfShape", "Shape", "Size", "Range", "Identity", "Cast", "CastLike"),
        *("Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose", "Concat", "Split", "Slice"),
        *("Pad", "Tile", "Expand", "Gather", "GatherElements", "GatherND", "ScatterElements"),
        *("ScatterND", "DepthToSpace", "SpaceToDepth", "OneHot", "NonZero", "ReverseSequence"),
        *("QLinearConcat", "GatherBlockQuantized"),
        *("EyeLike", "Compress", "Trilu", "If", "Loop", "Scan"),
    }
)


def bodies_of(node: Any) -> Iterator[Any]:
    """Yield the graphs that a node holds, in the order of its attributes."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def constants_inside(node: Any) -> Iterator[Any]:
    """Yield the tensors that the bodies of a node hold, and the bodies of their nodes."""
    for graph in bodies_of(node):
        yield from graph.initializer
        for held in graph.sparse_initializer:
            yield from (held.values, held.indices)
        for inner in graph.node:
            if inner.op_type == "Constant":
                yield from (a.t for a in inner.attribute if a.name == "value")
            yield from constants_inside(inner)


def initializer_names(graph: Any) -> set[str]:
    """Names of the weights that a graph holds, sparse ones too; for membership only."""
    sparse = (held.values for held in graph.sparse_initializer)
    return {held.name for held in (*graph.initializer, *sparse)}


def values_read(node: Any) -> Iterator[str]:
    """Yield the values that a node reads, including those that its bodies take from around it."""
    yield from filter(None, node.input)
    for graph in bodies_of(node):
        own = {value.name for value in graph.input} | initializer_names(graph)  # membership only
        for inner in graph.node:
            for name in values_read(inner):
                if name not in own:
                    yield name
            own.update(inner.output)
        yield from (value.name for value in graph.output if value.name not in own)


def needed_readers(graph: Any) -> Counter[str]:
    """Value -> number of nodes that read its elements for an output; an output counts as one.

    ONNX Runtime removes all other nodes.
    """
    readers = Counter(value.name for value in graph.output)
    for node in reversed(graph.node):
        if any(name in readers for name in node.output):
            count = 0 if node.op_type == "Shape" else 1  # ONNX Runtime folds it
            readers.update(dict.fromkeys(values_read(node), count))
    return readers


@dataclass(frozen=True)
class Values:
    """Shapes and numbers of the values around a node."""

    shape: Callable[[str], Shape]  # value name -> its shape; ``()`` if that is unknown
    # value name -> its number, for constants with one integer; None for others
    number: Callable[[str], int | None]


def node_flops(onnx: Any, node: Any, values: Values) -> float:
    """Count the operations of a node and of its bodies.

    Of two branches the more expensive counts. A body counts as often as it runs, and once if that
    is known only at run time.
    """
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    inputs = [values.shape(name) for name in node.input if name]
    outputs = [values.shape(name) for name in node.output if name]
    # A function of the model's own may have any name.
    kind = node.op_type if node.domain in _DOMAINS else ""
    own = flops_of(NodeShapes(kind, attributes, inputs, outputs))
    inside = [graph_flops(onnx, graph, values) for graph in bodies_of(node)]
    return own + max(inside, default=0.0) * _iterations(node, attributes, values)


def graph_flops(onnx: Any, graph: Any, outer: Values) -> float:
    """Count the operations of all nodes of a graph; `outer` tells of the values around it."""
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
    """Dimensions of a type, open ones 1."""
    return tuple(d.dim_value if d.HasField("dim_value") else 1 for d in tensor_type.shape.dim)


def constant_numbers(onnx: Any, graph: Any) -> dict[str, int]:
    """Value name -> number, for constants of a graph that hold one integer."""
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

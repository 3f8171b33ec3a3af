"""Floating-point operations of an ONNX node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from placewright.core import flops

Shape = tuple[int, ...]


@dataclass(frozen=True)
class NodeShapes:
    """What counting needs of a node: its type, attributes and the shapes around it."""

    kind: str
    attributes: Mapping[str, Any]
    inputs: Sequence[Shape]
    outputs: Sequence[Shape]

    @property
    def output(self) -> Shape:
        """Shape of the first output."""
        return self.outputs[0] if self.outputs else (0,)


def flops_of(node: NodeShapes) -> float:
    """Operations by the rules of `core.flops`; 0 where a shape that counts is unknown."""
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
    if node.kind.startswith("Reduce"):
        return flops.elementwise(node.inputs[0])
    if node.kind in _NORMALISATIONS:
        return flops.normalisation(node.output)
    return flops.elementwise(node.output)


def _convolution(node: NodeShapes) -> float:
    kernel = node.inputs[1]  # (outputs, inputs per group, ...)
    return flops.convolution(node.output, kernel[2:], kernel[1], bias=len(node.inputs) > 2)


def _transposed_convolution(node: NodeShapes) -> float:
    kernel = node.inputs[1]  # (inputs, outputs per group, ...)
    return flops.transposed_convolution(node.inputs[0], kernel[2:], kernel[1])


def _matmul(node: NodeShapes) -> float:
    left = node.inputs[0]
    return flops.matmul(node.output, left[-1] if left else 1)


def _gemm(node: NodeShapes) -> float:
    inner = node.inputs[0][0 if node.attributes.get("transA") else 1]
    bias = flops.elementwise(node.output) if len(node.inputs) > 2 else 0.0
    return flops.matmul(node.output, inner) + bias


def _attention(node: NodeShapes) -> float:
    query, key, value = node.inputs[:3]
    if len(query) == 3:  # (batch, sequence, heads x width): the products are the same
        heads = int(node.attributes.get("q_num_heads", 1))
        query = (query[0] * heads, query[1], query[2] // heads)
        value = (*value[:-1], value[-1] // heads)
    return flops.attention(query, key[-2], value[-1])


def _pooling(node: NodeShapes) -> float:
    return flops.pooling(node.output, node.attributes.get("kernel_shape", ()))


def _of_input(node: NodeShapes) -> float:
    return flops.elementwise(node.inputs[0])


def _softmax(node: NodeShapes) -> float:
    return flops.softmax(node.output)


def _batch_normalisation(node: NodeShapes) -> float:
    return flops.batch_normalisation(node.output)


def _recurrent(
    count: Callable[[int, int, int, int], float],
) -> Callable[[NodeShapes], float]:
    """X is (steps, batch, inputs), R is (directions, gates x hidden, hidden)."""

    def of_node(node: NodeShapes) -> float:
        first, second, inputs = node.inputs[0]
        by_batch = bool(node.attributes.get("layout"))
        batch, steps = (first, second) if by_batch else (second, first)
        directions, _, hidden = node.inputs[2]
        return directions * count(batch, steps, inputs, hidden)

    return of_node


_SPECIAL: Mapping[str, Callable[[NodeShapes], float]] = {
    "Conv": _convolution,
    "ConvTranspose": _transposed_convolution,
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Attention": _attention,
    "MaxPool": _pooling,
    "AveragePool": _pooling,
    "GlobalAveragePool": _of_input,
    "GlobalMaxPool": _of_input,
    "Softmax": _softmax,
    "LogSoftmax": _softmax,
    "BatchNormalization": _batch_normalisation,
    "LSTM": _recurrent(flops.lstm),
    "GRU": _recurrent(flops.gru),
    "RNN": _recurrent(flops.rnn),
}

_NORMALISATIONS = frozenset(
    {
        *("LayerNormalization", "InstanceNormalization", "GroupNormalization", "LRN"),
        *("RMSNormalization", "LpNormalization", "MeanVarianceNormalization"),
    }
)

# Nodes that move, select or describe data.
_NONE = frozenset(
    {
        *("Constant", "ConstantOfShape", "Shape", "Size", "Range", "Identity", "Cast", "CastLike"),
        *("Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose", "Concat", "Split", "Slice"),
        *("Pad", "Tile", "Expand", "Gather", "GatherElements", "GatherND", "ScatterElements"),
        *("ScatterND", "DepthToSpace", "SpaceToDepth", "OneHot", "NonZero", "ReverseSequence"),
        *("EyeLike", "Compress", "Trilu", "If", "Loop", "Scan"),
    }
)

"""Floating-point operations of an OpenVINO node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from placewright.frameworks import flops

Shape = tuple[int, ...]


def flops_of(node: Any) -> float:
    """Count the operations of an ``openvino.Node`` by the rules of `frameworks.flops`.

    The count is 0 if it needs a shape that depends on data.
    """
    try:
        return _counted(node)
    except (IndexError, ValueError):
        return 0.0


def _counted(node: Any) -> float:
    kind = node.get_type_name()
    if kind in _NONE:
        return 0.0
    special = _SPECIAL.get(kind)
    if special is not None:
        return special(node)
    if kind.startswith(("Reduce", "Adaptive")):
        return flops.elementwise(_input(node, 0))
    count = _BY_OUTPUT.get(kind, flops.elementwise)
    return count(_output(node)) if node.get_output_size() else 0.0


def static_shape(partial: Any) -> Shape:
    """Dimensions of a shape; an open one is its upper bound, or 1 without one."""
    if partial.rank.is_dynamic:
        return ()
    return tuple(_extent(dimension) for dimension in partial)


def _extent(dimension: Any) -> int:
    if dimension.is_static:
        return int(dimension.get_length())
    upper = int(dimension.get_max_length())
    return upper if 0 < upper < 2**31 else 1


def _output(node: Any, index: int = 0) -> Shape:
    return static_shape(node.get_output_partial_shape(index))


def _input(node: Any, index: int) -> Shape:
    return static_shape(node.get_input_partial_shape(index))


def _convolution(kernel: int = 1, groups: int = 0) -> Callable[[Any], float]:
    """The count of a convolution.

    Args:
        kernel: input of the kernel, which is (outputs, inputs, ...) of one group.
        groups: dimensions before those of one group.
    """

    def of_node(node: Any) -> float:
        _, inputs, *window = _input(node, kernel)[groups:]
        return flops.convolution(_output(node), window, inputs)

    return of_node


def _transposed_convolution(groups: int = 0) -> Callable[[Any], float]:
    """The kernel is (inputs, outputs, ...) of one group, after `groups` other dimensions."""

    def of_node(node: Any) -> float:
        _, outputs, *window = _input(node, 1)[groups:]
        return flops.transposed_convolution(_input(node, 0), window, outputs)

    return of_node


def _matmul(node: Any) -> float:
    left = _input(node, 0)
    if len(left) < 2:
        return flops.matmul(_output(node), left[0] if left else 1)
    return flops.matmul(_output(node), left[-2 if node.get_attributes()["transpose_a"] else -1])


def _attention(node: Any) -> float:
    query, key, value = (_input(node, index) for index in range(3))
    return flops.attention(query, key[-2], value[-1])


def _pooling(node: Any) -> float:
    return flops.pooling(_output(node), node.get_attributes()["kernel"])


def _cell(count: Callable[[int, int, int, int], float]) -> Callable[[Any], float]:
    """Cells read x as (batch, inputs) and h as (batch, hidden)."""

    def of_node(node: Any) -> float:
        (batch, inputs), hidden = _input(node, 0), _input(node, 1)[-1]
        return count(batch, 1, inputs, hidden)

    return of_node


def _sequence(count: Callable[[int, int, int, int], float]) -> Callable[[Any], float]:
    """Sequences read x as (batch, steps, inputs) and h as (batch, directions, hidden)."""

    def of_node(node: Any) -> float:
        (batch, steps, inputs), state = _input(node, 0), _input(node, 1)
        return state[1] * count(batch, steps, inputs, state[2])

    return of_node


def bodies_of(node: Any) -> tuple[Any, ...]:
    """Models inside a node: a loop's body, both branches of a choice."""
    kind = node.get_type_name()
    if kind in ("Loop", "TensorIterator"):
        return (node.get_function(),)
    return (node.get_then_body(), node.get_else_body()) if kind == "If" else ()


def _body_flops(node: Any) -> list[float]:
    return [sum(map(flops_of, body.get_ordered_ops())) for body in bodies_of(node)]


def _loop(node: Any) -> float:
    """The body's operations times the iterations; 1 if these are known only at run time."""
    return float(_body_flops(node)[0] * max(1, node.get_num_iterations()))


def _choice(node: Any) -> float:
    """Operations of the more expensive branch."""
    return max(_body_flops(node))


def _einsum(node: Any) -> float:
    inputs = [_input(node, index) for index in range(node.get_input_size())]
    return flops.einsum(node.get_attributes()["equation"], inputs)


_SPECIAL: Mapping[str, Callable[[Any], float]] = flops.by_operator(
    {
        _convolution(): "Convolution",
        _convolution(groups=1): "GroupConvolution",
        _convolution(2): "DeformableConvolution",  # behind the offsets
        _transposed_convolution(): "ConvolutionBackpropData",
        _transposed_convolution(groups=1): "GroupConvolutionBackpropData",
        _matmul: "MatMul",
        _einsum: "Einsum",
        _attention: "ScaledDotProductAttention",
        _pooling: "MaxPool AvgPool",
        _cell(flops.lstm): "LSTMCell",
        _cell(flops.gru): "GRUCell",
        _cell(flops.rnn): "RNNCell",
        _sequence(flops.lstm): "LSTMSequence",
        _sequence(flops.gru): "GRUSequence",
        _sequence(flops.rnn): "RNNSequence",
        _loop: "Loop TensorIterator",
        _choice: "If",
    }
)

# Ops that count by the shape of their output alone.
_BY_OUTPUT: Mapping[str, Callable[[Shape], float]] = flops.by_operator(
    {
        flops.softmax: "Softmax LogSoftmax",
        flops.normalisation: """MVN NormalizeL2 GroupNormalization RMS RMSNorm LRN
            LayerNormalization""",
        flops.batch_normalisation: "BatchNormInference",
    }
)

# Ops that move, select or describe data.
_NONE = frozenset(
    {
        *("Parameter", "Constant", "Result", "ReadValue", "Assign", "ShapeOf", "Range"),
        *("Reshape", "Squeeze", "Unsqueeze", "Transpose", "Concat", "Split", "VariadicSplit"),
        *("Slice", "StridedSlice", "Pad", "Tile", "Broadcast", "Gather", "GatherElements"),
        *("GatherND", "ScatterUpdate", "ScatterElementsUpdate", "ScatterNDUpdate", "Reverse"),
        *("ReverseSequence", "DepthToSpace", "SpaceToDepth", "SpaceToBatch", "BatchToSpace"),
        *("ShuffleChannels", "OneHot", "Roll", "Identity", "Convert", "NonZero"),
    }
)

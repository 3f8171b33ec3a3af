"""Bytes that OpenVINO keeps of a constant that operators read through a decompression.

Integers of 4 or 8 bits are stored with a scale and sometimes a zero point. OpenVINO's CPU plugin
keeps the integers if its kernels can multiply them. Else it unpacks them to f32 when it compiles.
The rules follow its compiled models (2026.0, x86-64), with which
``tests/frameworks/openvino/test_openvino_weights.py`` compares them.
"""

from __future__ import annotations

import math
from typing import Any

from placewright.frameworks.openvino.flops import static_shape

_UNPACKS = ("Multiply", "Subtract", "Convert", "Reshape", "Transpose")
_KEEPS_PACKED = ("MatMul", "Gather")  # their kernels unpack while they read
_MULTIPLIES_INTEGERS = ("MatMul", "Convolution", "GroupConvolution")  # of integers by integers
_PASSES_INTEGERS = (*_UNPACKS, "Relu", "MaxPool", "Squeeze", "Unsqueeze", "Split", "VariadicSplit")
_LONGEST_CHAIN = 16
_ACTIVATIONS, _DATA, _WEIGHTS = 0, 0, 1  # inputs
_MOST_LEVELS = 256
_QUANTIZED = "i8"  # what a `FakeQuantize` of weights becomes


def port_bytes(port: Any) -> float:
    """Bytes of an output: packed types such as i4 count their bits."""
    bits = port.get_element_type().bitwidth
    return float(math.ceil(math.prod(static_shape(port.get_partial_shape())) * bits / 8))


def kept_weight(value: Any) -> tuple[float, str]:
    """Bytes that stay in memory for a constant, and their dtype.

    Args:
        value: an ``openvino.Output`` of a folded node, which at least one op reads.
    """
    unpacked = port_bytes(value), str(value.get_element_type().get_type_name())
    readers = [(target.get_node(), target.get_index()) for target in value.get_target_inputs()]
    source, others = _packed(value)
    if source is None:
        return unpacked
    if source.get_node().get_type_name() == "Constant":
        is_kept = all(_keeps(source, *reader) for reader in readers)
        dtype = str(source.get_element_type().get_type_name())
        return (port_bytes(source) + others, dtype) if is_kept else unpacked
    is_kept = all(_takes_integers(*reader) for reader in readers)
    elements = float(math.prod(static_shape(value.get_partial_shape())))
    return (elements, _QUANTIZED) if is_kept else unpacked


def _packed(value: Any) -> tuple[Any | None, float]:
    """The integers behind a decompression, and the bytes of its scales and zero points.

    A ``FakeQuantize`` of weights becomes integers of 8 bits when the model is compiled.
    """
    others = 0.0
    for _ in range(_LONGEST_CHAIN):
        node = value.get_node()
        kind = node.get_type_name()
        if kind == "Constant":
            element = value.get_element_type()
            return (value, others) if element.is_integral() and element.bitwidth <= 8 else (None, 0)
        if kind == "FakeQuantize":
            is_small = int(node.get_attributes()["levels"]) <= _MOST_LEVELS
            return (value if is_small else None), 0.0
        if kind not in _UNPACKS:
            break
        if kind in ("Multiply", "Subtract"):
            others += port_bytes(node.input_value(1))
        value = node.input_value(0)
    return None, 0.0


def _keeps(source: Any, reader: Any, index: int) -> bool:
    """True if `reader` computes with the integers of `source`, its input `index`."""
    kind = reader.get_type_name()
    if kind in _KEEPS_PACKED:
        return index == (_DATA if kind == "Gather" else _WEIGHTS)
    return source.get_element_type().bitwidth == 8 and _takes_integers(reader, index)


def _takes_integers(reader: Any, index: int) -> bool:
    """True if `reader` multiplies quantized activations by its weights, its input `index`."""
    if reader.get_type_name() not in _MULTIPLIES_INTEGERS or index != _WEIGHTS:
        return False
    value = reader.input_value(_ACTIVATIONS)
    for _ in range(_LONGEST_CHAIN):
        node = value.get_node()
        if node.get_type_name() == "FakeQuantize":
            return int(node.get_attributes()["levels"]) <= _MOST_LEVELS
        if node.get_type_name() not in _PASSES_INTEGERS:
            return False
        value = node.input_value(0)
    return False

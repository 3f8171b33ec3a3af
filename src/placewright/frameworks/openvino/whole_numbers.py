"""The readers of an ``openvino.Model``'s whole numbers, which say what numbers suit an input."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from placewright.execution.inputs import Use

# Kind -> positions of the inputs whose numbers the outputs hold.
_PASSES = {
    **dict.fromkeys(("Reshape", "Squeeze", "Unsqueeze", "Transpose", "Broadcast", "Tile"), (0,)),
    **dict.fromkeys(("Slice", "StridedSlice", "Split", "VariadicSplit", "Pad"), (0,)),
    "Select": (1, 2),
}
# Kind -> positions of an indexed table, of its indices, and of the axis; None for an attribute.
_INDEXES = {
    "Gather": (0, 1, 2),
    "GatherElements": (0, 1, None),
    "ScatterUpdate": (0, 1, 3),
    "ScatterElementsUpdate": (0, 1, 3),
}
_READS_NO_NUMBER = ("ShapeOf", "FakeQuantize", "Result")
_COMPARES = ("Equal", "Less", "LessEqual", "Greater", "GreaterEqual", "NotEqual")


def number_uses(value: Any) -> Iterator[Use[Any] | None]:
    """Yield the uses of a value, see `whole_numbers`.

    Args:
        value: an ``openvino.Output``.
    """
    for target in value.get_target_inputs():
        yield _use(target.get_node(), target.get_index())


def _use(node: Any, position: int) -> Use[Any] | None:
    kind = node.get_type_name()
    passed = Use(passed_to=tuple(node.outputs()))
    if kind in _READS_NO_NUMBER:
        return Use()
    if kind == "Convert":
        return passed if node.get_output_element_type(0).is_integral() else Use()
    if kind in _COMPARES:
        return Use(_numbers_compared(node.input_value(1 - position)) if kind == "Equal" else None)
    if kind == "OneHot" and position == 0:
        depth = _constant(node.input_value(1))
        return None if depth is None else Use(int(depth.reshape(-1)[0]))
    if kind in _INDEXES:
        return _index(node, *_INDEXES[kind]) if position == _INDEXES[kind][1] else passed
    return passed if kind == "Concat" or position in _PASSES.get(kind, ()) else None


def _index(node: Any, table: int, _: int, axis_input: int | None) -> Use[Any] | None:
    shape = node.get_input_partial_shape(table)
    if axis_input is None:
        axis = int(node.get_attributes()["axis"])
    else:
        held = _constant(node.input_value(axis_input))
        if held is None:
            return None
        axis = int(held.reshape(-1)[0])
    if shape.rank.is_dynamic:
        return None
    size = shape[axis % len(shape)]
    return None if size.is_dynamic else Use(size.get_length())


def _numbers_compared(value: Any) -> int | None:
    """The size of the table that a comparison with 0, 1, 2, ... makes; None for one number."""
    numbers = _constant(value)
    if numbers is None or numbers.size < 2 or not np.issubdtype(numbers.dtype, np.integer):
        return None
    return int(numbers.max()) + 1


def _constant(value: Any) -> Any | None:
    """The numbers of a constant, or of the constant whose numbers it repeats."""
    node = value.get_node()
    while _PASSES.get(node.get_type_name()) == (0,):
        node = node.input_value(0).get_node()
    return node.get_data() if node.get_type_name() == "Constant" else None

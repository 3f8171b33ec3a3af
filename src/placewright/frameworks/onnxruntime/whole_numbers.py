"""The readers of an ``.onnx`` model's whole numbers, which say what numbers suit an input."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.execution.inputs import Use, size_compared
from placewright.frameworks.onnxruntime.flops import values_read

if TYPE_CHECKING:
    from placewright.frameworks.onnxruntime.segments import OnnxParts

# Operators whose outputs hold all numbers of their first input, and no others.
_REPEATS = ("Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose", "Expand",
            "Tile")  # fmt: skip
# Kind -> positions of the inputs whose numbers the outputs hold.
_PASSES = {
    **dict.fromkeys((*_REPEATS, "Slice", "Split", "Pad"), (0,)),
    **{"Where": (1, 2), "Concat": None},  # None: all
}
_INDEXES = ("Gather", "GatherElements", "ScatterElements")  # their input 1, along `axis`
_READS_NO_NUMBER = ("Shape", "Size", "DequantizeLinear", "QLinearConv", "ConvInteger",
                    "MatMulInteger", "QLinearMatMul", "DynamicQuantizeLinear")  # fmt: skip
_COMPARES = ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")


def _kind(node: Any) -> str:
    """Type of a standard operator; empty for others, whose names may mean anything."""
    return str(node.op_type) if node.domain in ("", "ai.onnx") else ""


class NumberReaders:
    """The uses of each value of a model, see `whole_numbers`."""

    def __init__(self, parts: OnnxParts) -> None:
        self._parts = parts
        self._readers: dict[str, list[Any]] = defaultdict(list)
        for node in parts.nodes:
            for name in dict.fromkeys(values_read(node)):
                self._readers[name].append(node)
        self._makers = {name: node for node in parts.nodes for name in node.output if name}

    def __call__(self, value: str) -> Iterator[Use[str] | None]:
        """Yield the uses of a value."""
        for node in self._readers[value]:
            positions = [at for at, name in enumerate(node.input) if name == value]
            if not positions:  # a body reads it
                yield None
            for position in positions:
                yield self._use(node, position)

    def _use(self, node: Any, position: int) -> Use[str] | None:
        kind = _kind(node)
        if kind in _READS_NO_NUMBER:
            return Use()
        if kind == "Cast":
            return Use(passed_to=tuple(node.output)) if self._is_integer(node.output[0]) else Use()
        if kind in _COMPARES:
            other = self._constant(node.input[1 - position]) if kind == "Equal" else None
            return Use(size_compared(other))
        if kind == "OneHot" and position == 0:
            depth = self._constant(node.input[1])
            return None if depth is None else Use(int(depth.reshape(-1)[0]))
        if kind in _INDEXES and position == 1:
            return self._index(node)
        if kind in _INDEXES or (kind in _PASSES and position in (_PASSES[kind] or (position,))):
            return Use(passed_to=tuple(filter(None, node.output)))
        return None

    def _index(self, node: Any) -> Use[str] | None:
        shape = self._shape(node.input[0])
        axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
        return None if shape is None else Use(shape[axis])

    def _is_integer(self, value: str) -> bool:
        number = self._parts.element_type(value)
        if not number:
            return True
        return np.issubdtype(self._parts.onnx.helper.tensor_dtype_to_np_dtype(number), np.integer)

    def _shape(self, value: str) -> Sequence[int] | None:
        held = self._parts.initializers.get(value)
        return self._parts.static_shape(value) if held is None else tuple(held.dims)

    def _constant(self, value: str) -> Any | None:
        """The numbers of a constant, or of the constant whose numbers it repeats."""
        while (maker := self._makers.get(value)) is not None and _kind(maker) in _REPEATS:
            value = maker.input[0]
        if value in self._parts.shared_arrays:
            return self._parts.shared_arrays[value]
        held = self._parts.initializers.get(value)
        return None if held is None else self._parts.onnx.numpy_helper.to_array(held)

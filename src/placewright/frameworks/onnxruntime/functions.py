"""Calls of a model's own functions, written out so that their work can be counted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from placewright.frameworks.onnxruntime.flops import (
    Values,
    constants_inside,
    graph_flops,
    values_read,
)
from placewright.frameworks.onnxruntime.value_types import with_inferred_types
from placewright.io.model_parts import FunctionKey, function_key, with_bodies

_FEW = 1 << 10  # bytes of a weight that may tell a shape


class Functions:
    """The functions of an ``onnx.ModelProto``, which readers have found to be of bounded size.

    Args:
        types: value name -> its tensor type.
        constants: value name -> the tensor of a weight.
    """

    def __init__(
        self, onnx: Any, model: Any, types: Mapping[str, Any], constants: Mapping[str, Any]
    ) -> None:
        self._onnx = onnx
        self._model = model
        self._types, self._constants = types, constants
        self._by_key = {
            function_key(held.domain, held.name, held): held for held in model.functions
        }
        self._counted: dict[bytes, tuple[float, list[Any]]] = {}

    def counted(self, node: Any, values: Values) -> tuple[float, list[Any]] | None:
        """Count what a call does, and list the tensors that its function holds.

        A node whose bodies hold calls counts as one.

        Returns:
            None for a node without calls.
        """
        needed = self._needed(node) if self._by_key else []
        if not needed:
            return None
        call = self._call(node)
        text = call.SerializeToString(deterministic=True)
        if text not in self._counted:
            self._counted[text] = self._count(call, needed, values)
        return self._counted[text]

    def draws(self, node: Any, kinds: tuple[str, ...]) -> bool:
        """True if a node, its bodies or what they call hold an operator of these kinds.

        Args:
            kinds: beginnings of their names.
        """
        rows = [[node], *(self._by_key[key].node for key in self._needed(node))]
        return any(one.op_type.startswith(kinds) for row in rows for one in with_bodies(row))

    def _count(
        self, call: Any, needed: list[FunctionKey], values: Values
    ) -> tuple[float, list[Any]]:
        import onnx.inliner

        model = self._onnx.ModelProto(ir_version=self._model.ir_version, graph=call)
        model.opset_import.extend(self._model.opset_import)
        model.functions.extend(self._by_key[key] for key in needed)
        try:
            whole = with_inferred_types(
                self._onnx, onnx.inliner.inline_local_functions(model), computes=False
            )
        except Exception:  # both libraries' parts raise what they like
            whole = model
        holder = self._onnx.NodeProto()
        holder.attribute.add(name="body").g.CopyFrom(whole.graph)
        passed = {value.name for value in call.initializer}  # membership only
        held = [tensor for tensor in constants_inside(holder) if tensor.name not in passed]
        return graph_flops(self._onnx, whole.graph, values), held

    def _call(self, node: Any) -> Any:
        """A graph of the call alone, with the types of what it reads; equal for equal calls."""
        graph = self._onnx.GraphProto(name="call")
        called = graph.node.add()
        called.CopyFrom(node)
        called.ClearField("name")
        own = {name: f"value {at}" for at, name in enumerate((*node.input, *node.output)) if name}
        for names in (called.input, called.output):
            names[:] = [own.get(name, "") for name in names]
        for name in dict.fromkeys(values_read(node)):
            held = self._constants.get(name)
            if held is not None and held.ByteSize() <= _FEW:
                graph.initializer.add().CopyFrom(held)
                graph.initializer[-1].name = own.get(name, name)
            elif name in self._types or held is not None:
                graph.input.add(name=own.get(name, name)).type.tensor_type.CopyFrom(
                    self._type(name)
                )
        for name in filter(None, node.output):
            graph.output.add(name=own[name])
            if name in self._types:
                graph.output[-1].type.tensor_type.CopyFrom(self._types[name])
        return graph

    def _type(self, name: str) -> Any:
        if name in self._types:
            return self._types[name]
        held = self._constants[name]
        make = self._onnx.helper.make_tensor_type_proto
        return make(held.data_type, list(held.dims)).tensor_type

    def _needed(self, node: Any) -> list[FunctionKey]:
        """The functions that a node calls, itself, in its bodies, or through others."""
        found: dict[FunctionKey, None] = {}
        left = list(with_bodies([node]))
        while left:
            one = left.pop()
            key = function_key(one.domain, one.op_type, one)
            if key in self._by_key and key not in found:
                found[key] = None
                left.extend(with_bodies(self._by_key[key].node))
        return list(found)

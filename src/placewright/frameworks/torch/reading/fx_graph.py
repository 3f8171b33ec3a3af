"""Conversion of a ``torch.fx`` graph of ATen operators to ops, tensors and weights.

Every call becomes an op, except ``getitem`` (it only names one output of an op) and assertions. The
nodes must carry example values in ``meta["val"]``, as those of ``torch.export`` do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from placewright.core.builder import GraphBuilder
from placewright.core.graph import FORWARD
from placewright.core.signature import NO_TENSOR, Port, Signature, distinct
from placewright.execution.exported_program import module_of
from placewright.frameworks.torch.reading.calls import (
    extent_of,
    is_item,
    is_scalar,
    kind_of,
    sources,
)
from placewright.frameworks.torch.reading.flops import flops_of

if TYPE_CHECKING:
    from torch.fx import Graph, Node

_DTYPES = {
    "float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16", "int64": "i64",
    "int32": "i32", "int16": "i16", "int8": "i8", "uint8": "u8", "bool": "boolean",
}  # fmt: skip
_NO_OPS = ("_assert", "sym_constrain_range")


def _forward(node: Node) -> int:
    return FORWARD


def _free(node: Node) -> int:
    return -1


@dataclass(frozen=True)
class FxRules:
    """Rules by which nodes become ops."""

    # placeholder or attribute name -> weight of the builder; other placeholders are graph inputs
    weights: Mapping[str, int] = field(default_factory=dict)
    # nodes that depend only on weights (or on nothing) become weights too; right for inference,
    # wrong if weights change
    fold_constants: bool = True
    phase_of: Callable[[Node], int] = _forward  # the phase of a call
    colocation_of: Callable[[Node], int] = _free  # the colocation class of a call, -1 if it is free
    # names of calls whose value lies in a weight's memory and never leaves its device; their
    # tensors have no bytes of their own
    resident: Container[str] = ()
    # placeholders of weights that change; no call that reads one is folded
    changing: Container[str] = ()


@dataclass(frozen=True)
class FxOps:
    """Ops and tensors of the nodes, by node name."""

    op_of: dict[str, int]  # the op of each call that became an op
    # tensors of a node's value: one for a tensor, several for a tuple, none for a constant
    tensors_of: dict[str, list[int]]


def add_fx_graph(builder: GraphBuilder, graph: Graph, rules: FxRules) -> FxOps:
    """Add all nodes of `graph` to `builder`.

    The caller marks graph outputs (``builder.mark_output``) among the tensors of the result.
    """
    adding = _Adding(builder, rules)
    for node in graph.nodes:
        adding.add(node)
    return FxOps(adding.op_of, adding.tensors)


def signature_of(
    graph: Graph,
    ops: FxOps,
    inputs: Sequence[tuple[str, str]],
    outputs: Sequence[tuple[str, str]],
) -> Signature:
    """Make a signature from pairs (name, node) of inputs and outputs in the model's own order."""
    values = {node.name: node.meta.get("val") for node in graph.nodes}

    def port(name: str, node: str) -> Port:
        tensors, value = ops.tensors_of.get(node, []), values[node]
        return Port(name, shape_of(value), dtype_of(value), tensors[0] if tensors else NO_TENSOR)

    return Signature(
        distinct(port(*pair) for pair in inputs), distinct(port(*pair) for pair in outputs)
    )


def tensor_values(value: Any) -> list[Any]:
    """Tensors of ``meta["val"]``, which is a tensor or a tuple; None for other entries."""
    if isinstance(value, list | tuple):
        return [entry if hasattr(entry, "element_size") else None for entry in value]
    return [value if hasattr(value, "element_size") else None]


def shape_of(value: Any) -> tuple[int, ...]:
    """Dimensions of a (fake) tensor; a dimension known only at run time is 1."""
    return tuple(extent_of(extent) for extent in value.shape)


def bytes_of(value: Any) -> float:
    """Bytes of a (fake) tensor's elements."""
    return float(math.prod(shape_of(value)) * value.element_size())


def dtype_of(value: Any) -> str:
    """``torch.float32`` -> ``"f32"``."""
    name = str(value.dtype).removeprefix("torch.")
    return _DTYPES.get(name, name)


class _Adding:
    """State of a walk over a graph's nodes."""

    def __init__(self, builder: GraphBuilder, rules: FxRules) -> None:
        self.builder = builder
        self.rules = rules
        self.op_of: dict[str, int] = {}
        self.tensors: dict[str, list[int]] = {}
        self.constants: dict[str, list[int]] = {}  # node name -> weights that stand for its value

    def add(self, node: Node) -> None:
        """Add a node."""
        if node.op in ("placeholder", "get_attr"):
            self._add_source(node)
        elif is_scalar(node):
            return  # every op that reads the number computes it again
        elif is_item(node):
            self._add_item(node)
        elif node.op == "call_function" and not kind_of(node).startswith(_NO_OPS):
            if self.rules.fold_constants and self._is_constant(node):
                self.constants[node.name] = self._constant_weights(node)
            else:
                self._add_op(node)

    def _add_source(self, node: Node) -> None:
        name, value = node.name, node.meta.get("val")
        weight = self.rules.weights.get(str(node.target), self.rules.weights.get(name))
        if weight is not None:
            self.constants[name] = [weight]
        elif node.op == "get_attr":
            self.constants[name] = self._new_weights(value)
        else:
            self.tensors[name] = [
                self.builder.add_input(bytes_of(v), shape=shape_of(v), dtype=dtype_of(v))
                for v in tensor_values(value)
                if v is not None
            ]

    def _add_item(self, node: Node) -> None:
        source, index = node.args[0], node.args[1]
        name = source.name  # type: ignore[union-attr]
        for held in (self.tensors, self.constants):
            if name in held:
                entries = held[name]
                held[node.name] = [entries[index]] if len(entries) > 1 else entries  # type: ignore[index]

    def _is_constant(self, node: Node) -> bool:
        tags = [str(tag) for tag in getattr(node.target, "tags", ())]
        if any("nondeterministic" in tag for tag in tags):
            return False
        return all(
            source.name in self.constants and source.name not in self.rules.changing
            for source in sources(node)
        )

    def _constant_weights(self, node: Node) -> list[int]:
        """Weights of a folded call: a view of a weight is that weight, other values are new."""
        if getattr(node.target, "is_view", False) and len(node.all_input_nodes) == 1:
            weights = self.constants[node.all_input_nodes[0].name]
            if len(weights) == 1:
                return weights * len(tensor_values(node.meta.get("val")))
        return self._new_weights(node.meta.get("val"))

    def _new_weights(self, value: Any) -> list[int]:
        return [
            self.builder.add_weight(bytes_of(v), dtype=dtype_of(v))
            if v is not None
            else self.builder.add_weight(0.0)
            for v in tensor_values(value)
        ]

    def _add_op(self, node: Node) -> None:
        inputs = _concatenated(self.tensors, sources(node))
        op = self.builder.add_op(
            node.name,
            kind_of(node),
            inputs=inputs,
            flops=flops_of(node),
            phase=self.rules.phase_of(node),
            module=module_of(node),
            colocation=self.rules.colocation_of(node),
            weights=_concatenated(self.constants, sources(node)),
        )
        self.op_of[node.name] = op
        own = node.name not in self.rules.resident
        self.tensors[node.name] = [
            self._tensor(op, value, own) for value in tensor_values(node.meta.get("val"))
        ]

    def _tensor(self, op: int, value: Any, own: bool) -> int:
        if value is None:
            return self.builder.add_tensor(op, 0.0)
        size = bytes_of(value) if own else 0.0
        return self.builder.add_tensor(op, size, shape=shape_of(value), dtype=dtype_of(value))


def _concatenated(held: Mapping[str, list[int]], nodes: Iterable[Node]) -> list[int]:
    return [entry for node in nodes for entry in held.get(node.name, ())]

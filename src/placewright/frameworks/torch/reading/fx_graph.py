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
from placewright.core.source import NO_TENSOR, Port, Signature, distinct
from placewright.execution.exported_program import module_of
from placewright.frameworks import flops
from placewright.frameworks.torch.reading.calls import (
    extent_of,
    is_item,
    is_scalar,
    kind_of,
    sources,
)

if TYPE_CHECKING:
    from torch.fx import Graph, Node


_DTYPES = {
    "float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16", "int64": "i64",
    "int32": "i32", "int16": "i16", "int8": "i8", "uint8": "u8", "bool": "boolean",
    "uint16": "u16", "uint32": "u32", "uint64": "u64",
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


Shape = tuple[int, ...]


def flops_of(node: Node) -> float:
    """Count the operations of a call by the rules of `frameworks.flops`.

    Of two branches the more expensive counts. A body counts as often as it runs, and once if that
    is known only at run time. The count is 0 if it needs a shape that depends on data.
    """
    try:
        return _counted(node)
    except (IndexError, ValueError):
        return 0.0


def _counted(node: Node) -> float:
    kind = kind_of(node)
    special = _SPECIAL.get(kind)
    if special is not None:
        return special(node)
    if getattr(node.target, "is_view", False) or kind in _NONE:
        return 0.0
    inner = [m for m in map(_subgraph, node.all_input_nodes) if m is not None]
    if inner:
        counts = [sum(map(flops_of, _calls(module.graph))) for module in inner]
        return max(counts) if kind == "cond" else sum(counts) * _iterations(node)
    if kind in _REDUCTIONS:
        return flops.elementwise(_input(node, 0))
    return _BY_OUTPUT.get(kind, flops.elementwise)(_output(node))


def _subgraph(node: Node) -> Any:
    """The graph module of an attribute node; None for other nodes."""
    if node.op != "get_attr":
        return None
    value = getattr(node.graph.owning_module, str(node.target), None)
    return value if hasattr(value, "graph") else None


def _calls(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if node.op == "call_function" and not is_item(node)]


def _iterations(node: Node) -> int:
    """Runs of a call's body: one for each row of what it maps or scans."""
    over = _ROWS_OF.get(kind_of(node))
    return 1 if over is None else _input(node, over)[0]


def _shape(value: Any) -> Shape:
    if isinstance(value, list | tuple):
        value = next((entry for entry in value if hasattr(entry, "shape")), None)
    return shape_of(value) if hasattr(value, "shape") else (0,)


def _output(node: Node) -> Shape:
    return _shape(node.meta.get("val"))


def _input(node: Node, index: int) -> Shape:
    source = _argument(node, index)
    if isinstance(source, list | tuple):
        source = source[0] if source else None
    return _shape(source.meta.get("val")) if hasattr(source, "meta") else (0,)


def _argument(node: Node, index: int) -> Any:
    return node.args[index] if index < len(node.args) else None


def _convolution(node: Node) -> float:
    kernel = _input(node, 1)  # (outputs, inputs per group, ...), transposed (inputs, outputs, ...)
    bias = _argument(node, 2) is not None
    if kind_of(node) == "convolution" and _argument(node, 6):
        return flops.transposed_convolution(_input(node, 0), kernel[2:], kernel[1])
    return flops.convolution(_output(node), kernel[2:], kernel[1], bias=bias)


def _transposed_convolution(node: Node) -> float:
    kernel = _input(node, 1)
    return flops.transposed_convolution(_input(node, 0), kernel[2:], kernel[1])


def _convolution_backward(node: Node) -> float:
    """Gradients of input and weight cost a forward pass each, that of the bias one sum."""
    gradient, kernel = _input(node, 0), _input(node, 2)
    transposed, mask = bool(_argument(node, 7)), _argument(node, 10) or (True, True, True)
    if transposed:
        once = flops.transposed_convolution(_input(node, 1), kernel[2:], kernel[1])
    else:
        once = flops.convolution(gradient, kernel[2:], kernel[1])
    return once * (bool(mask[0]) + bool(mask[1])) + math.prod(gradient) * bool(mask[2])


def _linear(node: Node) -> float:
    output = _output(node)
    bias = _argument(node, 2) is not None
    return flops.matmul(output, _input(node, 1)[-1]) + math.prod(output) * bias


def _product(node: Node) -> float:
    return flops.matmul(_output(node), _input(node, 0)[-1])


def _grouped_product(node: Node) -> float:
    left, right = _input(node, 0), _input(node, 1)
    if len(left) == len(right) == 2:  # groups of columns, each multiplied with its own rows
        return flops.matmul((left[0], right[-1]), left[-1])
    return _product(node)


def _sum_of_products(node: Node) -> float:
    """A product for each of a batch, all added to the first argument."""
    output, left = _output(node), _input(node, 1)
    return flops.matmul(output, left[0] * left[-1]) + math.prod(output)


def _einsum(node: Node) -> float:
    operands = [_shape(operand.meta.get("val")) for operand in _argument(node, 1)]
    return flops.einsum(str(_argument(node, 0)), operands)


def _contraction(node: Node) -> float:
    left = _input(node, 0)
    return flops.matmul(_output(node), math.prod(left[axis] for axis in _argument(node, 2)))


def _bilinear(node: Node) -> float:
    return flops.matmul(_output(node), math.prod(_input(node, 2)[1:]))


def _product_and_sum(node: Node) -> float:
    output = _output(node)
    return flops.matmul(output, _input(node, 1)[-1]) + math.prod(output)


def _attention(node: Node) -> float:
    return flops.attention(_input(node, 0), _input(node, 1)[-2], _input(node, 2)[-1])


def _attention_backward(node: Node) -> float:
    """Five products where the forward pass has two (Dao et al. 2022, arXiv 2205.14135)."""
    query, keys, width = _input(node, 1), _input(node, 2)[-2], _input(node, 3)[-1]
    return 2.5 * flops.attention(query, keys, width)


def _pooling(node: Node) -> float:
    kernel = _argument(node, 1)
    extents = [int(extent) for extent in kernel] if isinstance(kernel, list | tuple) else [kernel]
    spatial = len(_input(node, 0)) - 2
    if len(extents) == 1:
        extents *= max(1, spatial)
    return flops.pooling(_output(node), extents)


def _normalisation_backward(node: Node) -> float:
    """Twice the forward pass: two sums and a combination per element."""
    return 2 * flops.normalisation(_input(node, 0))


def _recurrent(count: Callable[[int, int, int, int], float]) -> Callable[[Node], float]:
    """Arguments are x, state(s), weights, bias, layers, dropout, train, both ways, batch first."""

    def of_node(node: Node) -> float:
        x, states = _input(node, 0), _argument(node, 1)
        # An LSTM has a cell, too; its state is narrower than that if it is projected.
        cell = states[-1] if isinstance(states, list | tuple) else states
        state, hidden = _input(node, 1)[-1], _shape(cell.meta.get("val"))[-1]
        layers, directions = int(_argument(node, 4) or 1), 2 if _argument(node, 7) else 1
        batch, steps = (x[0], x[1]) if _argument(node, 8) else (x[1], x[0])
        projected = flops.matmul((batch, steps, state), hidden) if state != hidden else 0.0
        first = count(batch, steps, x[2] + state - hidden, hidden)
        upper = count(batch, steps, directions * state + state - hidden, hidden)
        return directions * (first + (layers - 1) * upper + layers * projected)

    return of_node


_SPECIAL: Mapping[str, Callable[[Node], float]] = flops.by_operator(
    {
        _convolution: "conv1d conv2d conv3d convolution",
        _transposed_convolution: "conv_transpose1d conv_transpose2d conv_transpose3d",
        _convolution_backward: "convolution_backward",
        _linear: "linear",
        _product: """mm bmm matmul mv dot inner cdist linalg_matmul linalg_vecdot _int_mm
            _scaled_mm""",
        _grouped_product: "_grouped_mm _scaled_grouped_mm",
        _einsum: "einsum",
        _contraction: "tensordot",
        _bilinear: "bilinear",
        _product_and_sum: "addmm baddbmm addmv",
        _sum_of_products: "addbmm",
        _attention: """scaled_dot_product_attention _scaled_dot_product_flash_attention
            _scaled_dot_product_flash_attention_for_cpu
            _scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention""",
        _attention_backward: """_scaled_dot_product_flash_attention_backward
            _scaled_dot_product_flash_attention_for_cpu_backward
            _scaled_dot_product_efficient_attention_backward""",
        _pooling: """max_pool1d max_pool2d max_pool3d max_pool2d_with_indices avg_pool1d
            avg_pool2d avg_pool3d""",
        _normalisation_backward: """native_layer_norm_backward native_batch_norm_backward
            native_group_norm_backward""",
        _recurrent(flops.lstm): "lstm",
        _recurrent(flops.gru): "gru",
        _recurrent(flops.rnn): "rnn_tanh rnn_relu",
    }
)

# Calls that count by the shape of their output alone.
_BY_OUTPUT: Mapping[str, Callable[[Shape], float]] = flops.by_operator(
    {
        flops.softmax: "softmax _softmax log_softmax _log_softmax",
        flops.normalisation: """layer_norm native_layer_norm group_norm native_group_norm rms_norm
            instance_norm native_batch_norm _native_batch_norm_legit
            _native_batch_norm_legit_functional""",
        flops.batch_normalisation: "batch_norm _native_batch_norm_legit_no_training",
    }
)

# Loops -> position of the values whose rows they go through, one at a time.
_ROWS_OF: Mapping[str, int] = {"map_impl": 1, "scan": 2}

_REDUCTIONS = frozenset(
    {"sum", "mean", "amax", "amin", "max", "min", "prod", "var", "std", "var_mean", "argmax",
     "argmin", "logsumexp", "norm", "cumsum", "nll_loss_forward", "any", "all", "topk", "sort",
     "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "_adaptive_avg_pool1d",
     "_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d",
     "adaptive_max_pool3d"}
)  # fmt: skip

# Calls that move, select, describe or make data.
_NONE = frozenset(
    {"cat", "stack", "clone", "copy", "contiguous", "_to_copy", "to", "embedding", "gather",
     "index", "index_select", "index_put", "scatter", "slice_scatter", "select_scatter", "reshape",
     "constant_pad_nd", "pad", "repeat", "flip", "roll", "zeros", "ones", "full", "arange", "empty",
     "zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full",
     "new_empty", "lift_fresh_copy", "_unsafe_view", "scalar_tensor", "one_hot", "tril", "triu",
     "select_backward", "slice_backward", "sym_size", "dropout", "flatten"}
)  # fmt: skip

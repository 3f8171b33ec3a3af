"""Segments of a functional PyTorch graph, each as a graph module.

A segment's module takes the tensors that enter it, then the state that it reads. It returns the
tensors that leave it, then the new state that a later segment writes. State is written in place as
soon as the last reader of its old value has run.

A graph is exported on the processor. PyTorch then takes the processor's own kernels of attention,
and a `view` where the processor's kernels leave strides that allow one. Segments get forms of these
operators that every device can run.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from placewright.core.cluster import Device
from placewright.errors import RuntimeFailure
from placewright.execution.runtime import OpSegment
from placewright.frameworks.torch.reading.calls import is_scalar, sources
from placewright.frameworks.torch.reading.state import in_place_form
from placewright.frameworks.torch.running.nodes import NodeMap, n_values

_ATEN = torch.ops.aten
_OPERATORS: Any = torch.library.Library("placewright", "DEF")  # type: ignore[no-untyped-call]


def portable(target: Any) -> Any:
    """The form of a call's target for devices other than the processor."""
    return _FORMS.get(target, target)


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``_scaled_dot_product_flash_attention_for_cpu`` by matrix products.

    Returns:
        Output, shape (batch, heads, queries, width), and logarithms of the sums of exponentials,
        shape (batch, heads, queries).
    """
    scores = _scores(query, key, is_causal, attn_mask, scale)
    sums = scores.logsumexp(-1)
    sums = sums.masked_fill(sums == -math.inf, 0.0)  # nothing is seen, and the output is 0
    shares = torch.exp(scores - sums.unsqueeze(-1))
    return (shares @ value.to(shares.dtype)).to(query.dtype), sums


def attention_backward(
    grad_out: torch.Tensor,
    *forward: Any,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of query, key and value, by the operator's backward on the processor.

    Args:
        forward: query, key, value, output, logarithms of sums, share that is dropped (0), and
            whether a query sees only the keys before it.
    """
    query, key, value, out, logsumexp, _, is_causal = forward
    scores = _scores(query, key, is_causal, attn_mask, scale)
    shares = torch.exp(scores - logsumexp.unsqueeze(-1))
    grad = grad_out.to(shares.dtype)
    of_shares = grad @ value.to(shares.dtype).transpose(-2, -1)
    mean = (grad * out).sum(-1, keepdim=True)
    of_scores = shares * (of_shares - mean) * _scale(query, scale)
    grads = (
        of_scores @ key.to(shares.dtype),
        of_scores.transpose(-2, -1) @ query.to(shares.dtype),
        shares.transpose(-2, -1) @ grad,
    )
    of_query, of_key, of_value = (gradient.to(query.dtype) for gradient in grads)
    return of_query, of_key, of_value


def _scores(
    query: torch.Tensor,
    key: torch.Tensor,
    is_causal: bool,
    attn_mask: torch.Tensor | None,
    scale: float | None,
) -> torch.Tensor:
    """Products of queries and keys in f32 at least, with what may not be seen at -inf."""
    kind = torch.promote_types(query.dtype, torch.float32)
    scores = query.to(kind) @ key.to(kind).transpose(-2, -1) * _scale(query, scale)
    if is_causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
        scores = scores.masked_fill(~seen, -math.inf)
    return scores if attn_mask is None else scores + attn_mask


def _scale(query: torch.Tensor, scale: float | None) -> float:
    return 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale


def _own(kernel: Any, function: Callable[..., object]) -> Any:
    """Register `function` as an operator with the arguments of a kernel of the processor."""
    name = function.__name__
    _OPERATORS.define(f"{name}{str(kernel._schema).partition(kernel._schema.name)[2]}")
    _OPERATORS.impl(name, function, "CompositeExplicitAutograd")
    return getattr(torch.ops.placewright, name).default


_FORMS: dict[Any, Any] = {
    _ATEN.view.default: _ATEN.reshape.default,
    _ATEN._scaled_dot_product_flash_attention_for_cpu.default: _own(
        _ATEN._scaled_dot_product_flash_attention_for_cpu.default, attention
    ),
    _ATEN._scaled_dot_product_flash_attention_for_cpu_backward.default: _own(
        _ATEN._scaled_dot_product_flash_attention_for_cpu_backward.default, attention_backward
    ),
}


_DEVICE_ARGUMENT = "device"
_COPY = _ATEN.clone.default


@dataclass(frozen=True)
class StateWrites:
    """State that a segment writes.

    Attributes:
        inside: (position in the segment, state placeholder, graph tensor), each written right after
            the op at that position.
        held: (state placeholder, graph tensor), returned behind the outputs for a later segment.
        after: state placeholders whose held value is written when the segment has run.
    """

    inside: tuple[tuple[int, str, int], ...] = ()
    held: tuple[tuple[str, int], ...] = ()
    after: tuple[str, ...] = ()


@dataclass(frozen=True)
class SegmentModule:
    """A segment as a graph module."""

    module: GraphModule  # placeholders of inputs, then of state; one list of outputs
    n_inputs: int  # number of tensors that enter
    state: tuple[str, ...]  # names in `NodeMap.constants`, in the order of the placeholders


def planned_writes(
    nodes: NodeMap, segments: Sequence[OpSegment], devices: Sequence[Device]
) -> tuple[StateWrites, ...]:
    """Plan the writes of state of each segment.

    Raises:
        RuntimeFailure: readers of a state that changes are on several devices.
    """
    at = {op: (s, p) for s, one in enumerate(segments) for p, op in enumerate(one.ops)}
    inside: list[list[tuple[int, str, int]]] = [[] for _ in segments]
    held: list[list[tuple[str, int]]] = [[] for _ in segments]
    after: list[list[str]] = [[] for _ in segments]
    graph, readers = nodes.graph, nodes.readers_of_state(nodes.updates)
    direct = nodes.direct_readers(nodes.updates)
    for name, tensor in nodes.updates.items():
        producer = int(graph.tensor_producers[tensor])
        if producer not in at:
            continue
        made = at[producer]
        home = segments[made[0]].device
        for op in direct[name]:
            if op in at and segments[at[op][0]].device != home:
                other = devices[segments[at[op][0]].device].name
                raise RuntimeFailure(
                    f"'{name}' changes in this step, but op '{graph.op_names[op]}' reads it on "
                    f"'{other}' and its new value is made on '{devices[home].name}'; ops that "
                    "share a parameter must be on one device"
                )
        local = [at[op] for op in readers[name] if op in at and segments[at[op][0]].device == home]
        last = made if producer in nodes.in_place else max([made, *local])
        if last[0] == made[0]:
            inside[last[0]].append((last[1], name, tensor))
        else:
            held[made[0]].append((name, tensor))
            after[last[0]].append(name)
    return tuple(
        StateWrites(tuple(inside[s]), tuple(held[s]), tuple(after[s])) for s in range(len(segments))
    )


def copied_tensors(nodes: NodeMap, segments: Sequence[OpSegment]) -> tuple[tuple[int, ...], ...]:
    """Tensors of each segment that are copied as soon as they are made.

    - Outputs that share memory with state that changes, and that another device or the host reads.
    - Parts of a larger tensor, if one of its parts leaves the segment: it would keep all of it.
    """
    graph = nodes.graph
    device_of = {op: segment.device for segment in segments for op in segment.ops}
    rows = []
    for segment in segments:
        row, cut = [], set()
        for tensor in segment.outputs:
            readers = graph.tensor_consumers.row(tensor).tolist()
            far = any(device_of.get(op, segment.device) != segment.device for op in readers)
            if (far or graph.tensor_is_output[tensor]) and any(
                name in nodes.updates for name in nodes.shares_state(tensor)
            ):
                row.append(tensor)
            cut.add(nodes.part_of(tensor))
        made = (t for op in segment.ops for t in graph.op_outputs.row(op).tolist())
        cut.discard(None)
        row += [tensor for tensor in made if cut and nodes.part_of(tensor) in cut]
        rows.append(tuple(row))
    return tuple(rows)


def segment_module(
    nodes: NodeMap,
    segment: OpSegment,
    device: torch.device,
    writes: StateWrites,
    copies: Sequence[int] = (),
) -> SegmentModule:
    """Build the graph module of a segment; factory calls make their tensors on `device`."""
    return _Building(nodes, segment, device).build(writes, copies)


class _Building:
    """State of building a segment's graph."""

    def __init__(self, nodes: NodeMap, segment: OpSegment, device: torch.device) -> None:
        self.nodes, self.segment, self.device = nodes, segment, device
        self.graph = Graph()
        self.of_tensor: dict[int, Node] = {}
        self.of_state: dict[str, Node] = {}
        self.of_scalar: dict[Node, Node] = {}
        self.tuples: dict[int, tuple[Node, int]] = {}  # tensor -> call that returns it, position

    def build(self, writes: StateWrites, copies: Sequence[int]) -> SegmentModule:
        casts = {}
        for number, tensor in enumerate(self.segment.inputs):
            self.of_tensor[tensor] = self.graph.placeholder(f"x{number}")
            if self.nodes.graph.tensor_producers[tensor] < 0:
                casts[tensor] = self.of_tensor[tensor]
        self._add_state(writes)
        for tensor, node in casts.items():
            self._cast_from_host(tensor, node)
        due = {position: [(n, t) for p, n, t in writes.inside if p == position]
               for position, _, _ in writes.inside}  # fmt: skip
        copied: dict[int, Node] = {}
        for position, op in enumerate(self.segment.ops):
            self._add_op(op)
            # A later write of state would change what shares its memory.
            for tensor in self.nodes.graph.op_outputs.row(op).tolist():
                if tensor in copies:
                    copied[tensor] = self.graph.call_function(_COPY, (self._value(tensor),))
                    if self.nodes.part_of(tensor) is not None:
                        self.of_tensor[tensor] = copied[tensor]
            for name, tensor in due.get(position, ()):
                self._write(name, tensor)
        results = [
            copied[tensor] if tensor in copied else self._value(tensor)
            for tensor in self.segment.outputs
        ]
        results += [self._value(tensor) for _, tensor in writes.held]
        self.graph.output(results)
        module = GraphModule(torch.nn.Module(), self.graph)
        return SegmentModule(module, len(self.segment.inputs), tuple(self.of_state))

    def _add_state(self, writes: StateWrites) -> None:
        names: dict[str, None] = {}
        for op in self.segment.ops:
            node = self.nodes.node_of_op[op]
            for source in sources(node):
                if source not in self.nodes.tensor_of:
                    names[source.name] = None
        for _, name, _ in writes.inside:
            names[name] = None
        for number, name in enumerate(names):
            self.of_state[name] = self.graph.placeholder(f"w{number}")

    def _cast_from_host(self, tensor: int, node: Node) -> None:
        """Cast a bfloat16 input, which comes as float32 because NumPy has no bfloat16."""
        if self.nodes.graph.tensor_dtypes[tensor] == "bf16":
            cast = torch.ops.aten._to_copy.default
            self.of_tensor[tensor] = self.graph.call_function(
                cast, (node,), {"dtype": torch.bfloat16}
            )

    def _add_op(self, op: int) -> None:
        original = self.nodes.node_of_op[op]
        node = self.graph.node_copy(original, self._argument)
        node.meta = {"val": original.meta.get("val"), "op": op}
        if op in self.nodes.in_place:
            node.target = in_place_form(original)
        if self.device.type != "cpu":
            node.target = portable(node.target)
        self._direct(node)
        row = self.nodes.graph.op_outputs.row(op).tolist()
        if isinstance(original.meta.get("val"), list | tuple):
            for position, tensor in enumerate(row):
                self.tuples[tensor] = (node, position)
        else:
            self.of_tensor[row[0]] = node

    def _argument(self, source: Node) -> Any:
        """The new node of an argument; a tuple that is passed on whole becomes its entries."""
        if is_scalar(source):
            return self._scalar(source)
        held = self.nodes.tensor_of.get(source)
        if held is None:
            return self.of_state[source.name]
        if n_values(source) == 1 and not isinstance(source.meta.get("val"), list | tuple):
            return self._value(held[0])
        return [self._value(tensor) for tensor in held]

    def _scalar(self, source: Node) -> Node:
        """Compute a number that an op reads in the op's own segment, from the same tensors."""
        if source not in self.of_scalar:
            node = self.graph.node_copy(source, self._argument)
            node.meta = {"val": source.meta.get("val")}
            self.of_scalar[source] = node
        return self.of_scalar[source]

    def _value(self, tensor: int) -> Node:
        if tensor not in self.of_tensor:
            call, position = self.tuples[tensor]
            self.of_tensor[tensor] = self.graph.call_function(operator.getitem, (call, position))
        return self.of_tensor[tensor]

    def _write(self, name: str, tensor: int) -> None:
        target = torch.ops.aten.copy_.default
        self.graph.call_function(target, (self.of_state[name], self._value(tensor)))

    def _direct(self, node: Node) -> None:
        """Make a factory call create its tensor where the segment runs."""
        schema = getattr(node.target, "_schema", None)
        arguments = () if schema is None else schema.arguments
        if node.kwargs.get(_DEVICE_ARGUMENT) is not None or (
            self.device.type != "cpu"
            and not node.all_input_nodes
            and any(argument.name == _DEVICE_ARGUMENT for argument in arguments)
        ):
            node.update_kwarg(_DEVICE_ARGUMENT, self.device)

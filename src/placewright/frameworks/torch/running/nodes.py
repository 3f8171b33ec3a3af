"""Nodes of a functional PyTorch graph behind the ops and tensors of the graph read from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.fx import Interpreter, Node

from placewright.core.graph import ComputationGraph
from placewright.core.source import ModelSource
from placewright.errors import InputError, StalePlanError
from placewright.execution.runtime import graph_inputs, require_same_kind
from placewright.frameworks.torch.reading.calls import (
    is_item,
    is_scalar,
    kind_of,
    sources,
    unstated_aliases,
)
from placewright.frameworks.torch.reading.fx_program import FxProgram


class NodeMap:
    """Nodes behind ops and tensors, and values that depend only on state.

    Args:
        program: made by the reader.
        source: has the native name of each op, which is the name of its node.

    Raises:
        StalePlanError: the graph was read from another program, or a parameter trains that did not.
        InputError: an updated value is not computed by an op.

    Attributes:
        node_of_op: of each op.
        tensor_of: node -> graph tensors of its value, one for each entry of a tuple.
        constants: node name -> value, of state and of nodes folded into it.
        updates: state placeholder -> graph tensor that holds its new value.
        in_place: op -> state placeholder into whose memory it writes.
    """

    def __init__(self, program: FxProgram, graph: ComputationGraph, source: ModelSource) -> None:
        self.graph = graph
        nodes = {node.name: node for node in program.module.graph.nodes}
        self.node_of_op = [self._node(nodes, op, source) for op in range(graph.n_ops)]
        self.tensor_of = self._tensors(nodes, program)
        self.in_place = {
            op: program.in_place[node.name]
            for op, node in enumerate(self.node_of_op)
            if node.name in program.in_place
        }
        self.constants = _constants(program, self.tensor_of)
        self.aliased_state = self._aliases(program)
        self._origins = self._calls_behind(program)
        self.updates: dict[str, int] = {}
        for name, value in program.updates.items():
            held = self.tensor_of.get(nodes[value], ())
            if program.step is not None and nodes[value].op == "call_function" and not held:
                path = program.step.paths.get(name, (name,))[0].removeprefix("model.")
                raise StalePlanError(
                    f"model '{source.path}' has changed: '{path}' trains now and did not; place it "
                    "again"
                )
            if len(held) != 1 or graph.tensor_producers[held[0]] < 0:
                raise InputError(
                    f"the new value of '{name}' is node '{value}', which no op computes"
                )
            self.updates[name] = held[0]

    def readers_of_state(self, names: Iterable[str]) -> dict[str, list[int]]:
        """State placeholder -> ops that read its memory, directly or through a view, ascending."""
        readers: dict[str, dict[int, None]] = {name: {} for name in names}
        for op, node in enumerate(self.node_of_op):
            for source in sources(node):
                for name in self.aliased_state.get(source, ()):
                    if name in readers:
                        readers[name][op] = None
        return {name: list(ops) for name, ops in readers.items()}

    def direct_readers(self, names: Iterable[str]) -> dict[str, list[int]]:
        """State placeholder -> ops that take it as an argument, ascending."""
        readers: dict[str, list[int]] = {name: [] for name in names}
        for op, node in enumerate(self.node_of_op):
            for name in dict.fromkeys(source.name for source in sources(node)):
                if name in readers:
                    readers[name].append(op)
        return readers

    def shares_state(self, tensor: int) -> tuple[str, ...]:
        """State placeholders whose memory a graph tensor may share."""
        producer = int(self.graph.tensor_producers[tensor])
        if producer < 0:
            return ()
        return tuple(self.aliased_state.get(self.node_of_op[producer], ()))

    def part_of(self, tensor: int) -> Node | None:
        """The call in whose larger value a tensor lies as a view of a part; None if in none."""
        producer = int(self.graph.tensor_producers[tensor])
        if producer < 0:
            return None
        origin = self._origins[self.node_of_op[producer]]
        is_smaller = self.graph.tensor_bytes[tensor] < self._bytes(origin)
        return origin if is_smaller else None

    def _node(self, nodes: Mapping[str, Node], op: int, source: ModelSource) -> Node:
        graph = self.graph
        name, kind = graph.op_names[op], graph.op_kinds[op]
        node = nodes.get(source.native_name(name))
        require_same_kind(source, name, kind, None if node is None else kind_of(node))
        assert node is not None
        return node

    def _tensors(
        self, nodes: Mapping[str, Node], program: FxProgram
    ) -> dict[Node, tuple[int, ...]]:
        graph = self.graph
        inputs = graph_inputs(graph)
        if len(inputs) != len(program.inputs):
            raise StalePlanError(
                f"the model has changed: it has {len(program.inputs)} inputs, the graph "
                f"{len(inputs)}; profile and place again"
            )
        tensors: dict[Node, tuple[int, ...]] = {
            nodes[name]: (t,) for name, t in zip(program.inputs, inputs, strict=True)
        }
        for op, node in enumerate(self.node_of_op):
            row = tuple(graph.op_outputs.row(op).tolist())
            if len(row) != n_values(node):
                raise StalePlanError(
                    f"the model has changed: op '{graph.op_names[op]}' has {n_values(node)} "
                    f"outputs, not {len(row)}; profile and place again"
                )
            tensors[node] = row
        for node in program.module.graph.nodes:
            if is_item(node) and node.args[0] in tensors:
                tensors[node] = (tensors[node.args[0]][node.args[1]],)
        return tensors

    def _aliases(self, program: FxProgram) -> dict[Node, dict[str, None]]:
        """Node -> state placeholders whose memory its value may share."""
        first_of = {id(value): name for name, value in reversed(list(program.state.items()))}
        shared: dict[Node, dict[str, None]] = {}
        for node in program.module.graph.nodes:
            if node.op in ("placeholder", "get_attr") and node.name in program.state:
                # Tied placeholders are one tensor: a reader of one reads all.
                owner = first_of[id(program.state[node.name])]
                names = [n for n, v in program.state.items() if first_of[id(v)] == owner]
                shared[node] = dict.fromkeys(names)
            elif node.op == "call_function":
                merged: dict[str, None] = {}
                if node.name in program.in_place:
                    merged[program.in_place[node.name]] = None
                for source in _may_alias(node):
                    merged.update(shared.get(source, {}))
                if merged:
                    shared[node] = merged
        return shared

    def _calls_behind(self, program: FxProgram) -> dict[Node, Node | None]:
        """Node -> the call that made the memory of its value, the node itself if it shares none.

        It is None where that may be memory of state or of a graph input, and everywhere if a call
        counts its elements from the start of that memory, as ``as_strided`` does.
        """
        origins: dict[Node, Node | None] = {}
        nodes = program.module.graph.nodes
        counts_from_start = any(node.target is torch.ops.aten.as_strided.default for node in nodes)
        for node in nodes:
            shared = [origins[source] for source in _may_alias(node)]
            is_kept = node.op in ("placeholder", "get_attr") or node.name in program.in_place
            if is_kept or counts_from_start:
                origins[node] = None
            elif not shared or (is_item(node) and shared == [node.args[0]]):
                origins[node] = node
            else:
                origins[node] = None if None in shared else max(shared, key=self._bytes)
        return origins

    def _bytes(self, node: Node | None) -> float:
        """Bytes of a call's only value; 0 for calls that return several."""
        held = () if node is None else self.tensor_of.get(node, ())
        return float(self.graph.tensor_bytes[held[0]]) if len(held) == 1 else 0.0


def n_values(node: Node) -> int:
    """Number of tensors that a call returns, undefined ones included."""
    value = node.meta.get("val")
    return len(value) if isinstance(value, list | tuple) else 1


def _may_alias(node: Node) -> list[Node]:
    """Arguments whose memory the result of a call may share, by the operator's schema."""
    if is_item(node):
        return [node.all_input_nodes[0]]
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return list(node.all_input_nodes)
    if unstated := unstated_aliases(node):
        return unstated
    if not any(result.alias_info is not None for result in schema.returns):
        return []
    aliases: list[Node] = []
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is None:
            continue
        value = node.args[position] if position < len(node.args) else None
        value = node.kwargs.get(argument.name, value)
        entries = value if isinstance(value, list | tuple) else [value]
        aliases += [entry for entry in entries if isinstance(entry, Node)]
    return aliases


def _called(node: Node, values: Mapping[Node, Any]) -> Any:
    """Compute a call; numbers among its arguments are computed first."""

    def value_of(source: Node) -> Any:
        return _called(source, values) if is_scalar(source) else values[source]

    args = torch.fx.node.map_arg(node.args, value_of)
    kwargs = torch.fx.node.map_arg(node.kwargs, value_of)
    target: Any = node.target
    return target(*args, **kwargs)


def _constants(program: FxProgram, computed: Mapping[Node, Any]) -> dict[str, Any]:
    """Values of state, and of calls that became no ops because they depend only on state."""
    values: dict[Node, Any] = {}
    module, state = program.module, program.state
    interpreter = Interpreter(module)
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        for node in module.graph.nodes:
            if node.name in state:
                value = state[node.name]  # the same object, by which models share its copies
                values[node] = value.detach() if value.requires_grad else value
            elif node.op == "get_attr":
                values[node] = interpreter.get_attr(node.target, (), {})
            elif (
                node.op == "call_function"
                and node not in computed
                and isinstance(node.target, torch._ops.OpOverload)
                and not is_scalar(node)
                and all(source in values for source in sources(node))
            ) or (is_item(node) and node.args[0] in values):
                values[node] = _called(node, values)
    return {node.name: value for node, value in values.items()}


def signature_of(node: Any) -> object:
    """Kind, arguments, shapes, dtypes and strides of a call, on which its time depends."""

    def described(value: Any) -> object:
        if isinstance(value, torch.fx.Node):
            held = value.meta.get("val")
            rows = held if isinstance(held, list | tuple) else [held]
            return [
                (tuple(map(str, row.shape)), str(row.dtype), tuple(map(str, row.stride())))
                if isinstance(row, torch.Tensor)
                else repr(row)
                for row in rows
            ]
        if isinstance(value, list | tuple):
            return [described(entry) for entry in value]
        return repr(value)

    arguments = [described(value) for value in node.args]
    named = sorted((key, described(value)) for key, value in node.kwargs.items())
    return (kind_of(node), str(node.target), arguments, named)

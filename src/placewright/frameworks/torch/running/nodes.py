"""Which nodes of a functional PyTorch graph stand behind the ops and tensors of a graph read from
it, and which of them may share memory with state."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node

from placewright.core.graph import ComputationGraph
from placewright.core.source import ModelSource
from placewright.errors import InputError, StalePlanError
from placewright.execution.runtime import graph_inputs
from placewright.frameworks.torch.reading.calls import is_scalar, sources
from placewright.frameworks.torch.running.program import TorchProgram

# They return their input itself in evaluation mode, which their schemas do not tell.
_IDENTITY_IN_EVALUATION = ("aten::dropout", "aten::feature_dropout", "aten::alpha_dropout")


class NodeMap:
    """Nodes behind ops and tensors, and the values that depend on state alone.

    Args:
        program: as the reader made it.
        graph: read from the same program.
        source: op name -> node name.

    Raises:
        StalePlanError: the graph was read from another program.
        InputError: an updated value is not computed by an op.

    Attributes:
        node_of_op: of each op.
        tensor_of: node -> graph tensors that stand for its value, one for each entry of a tuple.
        constants: node name -> value, of state and of what was folded into it.
        updates: state placeholder -> graph tensor that holds its new value.
    """

    def __init__(self, program: TorchProgram, graph: ComputationGraph, source: ModelSource) -> None:
        self.graph = graph
        nodes = {node.name: node for node in program.module.graph.nodes}
        self.node_of_op = [self._node(nodes, op, source) for op in range(graph.n_ops)]
        self.tensor_of = self._tensors(nodes, program)
        self.constants = _constants(program.module, program.state, self.tensor_of)
        self.aliased_state = self._aliases(program)
        self.updates: dict[str, int] = {}
        for name, value in program.updates.items():
            held = self.tensor_of.get(nodes[value], ())
            if len(held) != 1 or graph.tensor_producers[held[0]] < 0:
                raise InputError(
                    f"the new value of '{name}' is node '{value}', which no op computes"
                )
            self.updates[name] = held[0]

    def readers_of_state(self, names: Iterable[str]) -> dict[str, list[int]]:
        """State placeholder -> ops that read its memory, directly or through a view, ascending."""
        found: dict[str, dict[int, None]] = {name: {} for name in names}
        for op, node in enumerate(self.node_of_op):
            for source in sources(node):
                for name in self.aliased_state.get(source, ()):
                    if name in found:
                        found[name][op] = None
        return {name: list(ops) for name, ops in found.items()}

    def direct_readers(self, name: str) -> list[int]:
        """Ops that take a state placeholder as an argument, ascending."""
        return [
            op
            for op, node in enumerate(self.node_of_op)
            if any(source.name == name for source in sources(node))
        ]

    def shares_state(self, tensor: int) -> tuple[str, ...]:
        """State placeholders whose memory a graph tensor may share."""
        producer = int(self.graph.tensor_producers[tensor])
        if producer < 0:
            return ()
        return tuple(self.aliased_state.get(self.node_of_op[producer], ()))

    def _node(self, nodes: Mapping[str, Node], op: int, source: ModelSource) -> Node:
        graph = self.graph
        name, kind = graph.op_names[op], graph.op_kinds[op]
        node = nodes.get(source.native_name(name))
        found = "nothing" if node is None else kind_of(node)
        if node is None or found != kind:
            raise StalePlanError(
                f"model '{source.path}' has changed: op '{name}' was a {kind}, now there is "
                f"{found}; profile and place again"
            )
        return node

    def _tensors(
        self, nodes: Mapping[str, Node], program: TorchProgram
    ) -> dict[Node, tuple[int, ...]]:
        graph = self.graph
        inputs = graph_inputs(graph)
        if len(inputs) != len(program.inputs):
            raise StalePlanError(
                f"the model has changed: it has {len(program.inputs)} inputs, the graph "
                f"{len(inputs)}; profile and place again"
            )
        found: dict[Node, tuple[int, ...]] = {
            nodes[name]: (t,) for name, t in zip(program.inputs, inputs, strict=True)
        }
        for op, node in enumerate(self.node_of_op):
            row = tuple(graph.op_outputs.row(op).tolist())
            if len(row) != n_values(node):
                raise StalePlanError(
                    f"the model has changed: op '{graph.op_names[op]}' has {n_values(node)} "
                    f"outputs, not {len(row)}; profile and place again"
                )
            found[node] = row
        for node in program.module.graph.nodes:
            if is_item(node) and node.args[0] in found:
                found[node] = (found[node.args[0]][node.args[1]],)
        return found

    def _aliases(self, program: TorchProgram) -> dict[Node, dict[str, None]]:
        """Node -> state placeholders whose memory its value may share."""
        first_of = {id(value): name for name, value in reversed(list(program.state.items()))}
        shared: dict[Node, dict[str, None]] = {}
        for node in program.module.graph.nodes:
            if node.op in ("placeholder", "get_attr") and node.name in program.state:
                # Tied placeholders are one tensor: whoever reads one of them reads all.
                owner = first_of[id(program.state[node.name])]
                names = [n for n, v in program.state.items() if first_of[id(v)] == owner]
                shared[node] = dict.fromkeys(names)
            elif node.op == "call_function":
                merged: dict[str, None] = {}
                for source in may_alias(node):
                    merged.update(shared.get(source, {}))
                if merged:
                    shared[node] = merged
        return shared


def kind_of(node: Node) -> str:
    """``aten.conv2d.default`` -> ``"conv2d"``, as the reader names kinds."""
    schema = getattr(node.target, "_schema", None)
    if schema is not None:
        return str(schema.name).rpartition("::")[2]
    return getattr(node.target, "__name__", str(node.target))


def is_item(node: Node) -> bool:
    """True for ``getitem``, which names one output of a call."""
    return node.op == "call_function" and node.target is operator.getitem


def n_values(node: Node) -> int:
    """Tensors that a call returns, those that are undefined among them."""
    value = node.meta.get("val")
    return len(value) if isinstance(value, list | tuple) else 1


def may_alias(node: Node) -> list[Node]:
    """Arguments whose memory a call's result may share, by the operator's schema."""
    if is_item(node):
        return [node.all_input_nodes[0]]
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return list(node.all_input_nodes)
    if schema.name in _IDENTITY_IN_EVALUATION:
        return list(node.all_input_nodes[:1])
    if not any(result.alias_info is not None for result in schema.returns):
        return []
    found: list[Node] = []
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is None:
            continue
        given = node.args[position] if position < len(node.args) else None
        given = node.kwargs.get(argument.name, given)
        held = given if isinstance(given, list | tuple) else [given]
        found += [value for value in held if isinstance(value, Node)]
    return found


def _called(node: Node, values: Mapping[Node, Any]) -> Any:
    """A call's result; numbers among its arguments are computed first."""

    def value_of(source: Node) -> Any:
        return _called(source, values) if is_scalar(source) else values[source]

    args = torch.fx.node.map_arg(node.args, value_of)
    kwargs = torch.fx.node.map_arg(node.kwargs, value_of)
    target: Any = node.target
    return target(*args, **kwargs)


def _constants(
    module: GraphModule, state: Mapping[str, torch.Tensor], computed: Mapping[Node, Any]
) -> dict[str, Any]:
    """Values of state and of calls that became no op because they depend on it alone."""
    values: dict[Node, Any] = {}
    interpreter = Interpreter(module)
    with torch.no_grad():
        for node in module.graph.nodes:
            if node.name in state:
                values[node] = state[node.name].detach()
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
    """What the time of an op depends on: kind, arguments, shapes, dtypes and strides."""

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

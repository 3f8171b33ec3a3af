"""State that stays: values that a session makes in one run and reads in the next.

ONNX has no variables. So an output of the file and the input that takes its value stay outputs and
inputs of sessions, but not of the graph: the input becomes a weight that changes. All nodes that
read the old or the new value, or make the new one, are in one session.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from placewright.core.source import NO_TENSOR, Port, name_of_copy
from placewright.errors import FieldError
from placewright.execution.exported_program import Interface
from placewright.execution.state_pairs import state_pairs
from placewright.frameworks.onnxruntime.conversion import kept_interface
from placewright.frameworks.onnxruntime.flops import extents, initializer_names, values_read
from placewright.frameworks.onnxruntime.value_types import dtype_of

# Their kernels copy the first input to the output, unless both are in one place.
_WRITE_INTO_FIRST = ("ScatterElements", "ScatterND")


@dataclass(frozen=True)
class Staying:
    """A value that stays."""

    read: str  # input of the file: the value before a run
    made: str  # value of the file: the one after it
    in_place: bool  # one piece of memory serves both


@dataclass(frozen=True)
class KeptState:
    """All values that stay, and the names of what a caller still gives and gets."""

    values: tuple[Staying, ...]
    inputs: frozenset[str]  # inputs of the file that are state; membership only
    outputs: frozenset[int]  # positions of outputs of the file that are state; membership only
    interface: Interface | None  # of a converted file


def keep_state(onnx: Any, model: Any, asked: Mapping[str, str]) -> KeptState:
    """Find the values that stay; a node is added in place for one that no node makes.

    Args:
        model: an ``onnx.ModelProto`` with the shapes of all inputs and outputs.
        asked: output name -> input name, as `execution.state_pairs.state_pairs` takes them.

    Raises:
        UnknownNameError: there is no such input or output.
        FieldError: a pair does not fit together.
    """
    graph, interface = model.graph, kept_interface(model)
    if not asked:
        return KeptState((), frozenset(), frozenset(), interface)
    held = initializer_names(graph)
    inputs = [value for value in graph.input if value.name not in held]
    counts = (len(inputs), len(graph.output))
    if interface is None or (len(interface.inputs), len(interface.outputs)) != counts:
        interface = None
    names = interface or Interface(
        tuple(value.name for value in inputs), tuple(value.name for value in graph.output), ()
    )
    pairs = state_pairs(
        asked, _ports(onnx, names.inputs, inputs), _ports(onnx, names.outputs, graph.output)
    )
    made_by_node = {value for node in graph.node for value in node.output}  # membership only
    values = []
    for output, at in pairs:
        read, made = inputs[at].name, graph.output[output].name
        if made not in made_by_node:
            made = _handed_on(onnx, graph, graph.output[output])
        values.append(Staying(read, made, _is_in_place(graph.node, read, made)))
    gone, taken = {output for output, _ in pairs}, {at for _, at in pairs}
    left = interface and Interface(
        tuple(name for at, name in enumerate(names.inputs) if at not in taken),
        tuple(name for at, name in enumerate(names.outputs) if at not in gone),
        names.state,
    )
    reads = frozenset(value.read for value in values)
    for at, name in enumerate(names.outputs):
        if at not in gone and graph.output[at].name in reads:
            raise FieldError(
                "state", f"'{name}' is also returned as it enters; return a copy of it (Identity)"
            )
    return KeptState(tuple(values), reads, frozenset(gone), left)


def classes_of(nodes: Sequence[Any], values: Sequence[Staying]) -> dict[int, int]:
    """Colocation class of each node that reads or makes state, by its position."""
    of_value = {name: at for at, value in enumerate(values) for name in (value.read, value.made)}
    label = list(range(len(values)))
    touched: dict[int, int] = {}
    for position, node in enumerate(nodes):
        mine = [of_value[v] for v in (*values_read(node), *node.output) if v in of_value]
        if not mine:
            continue
        touched[position] = mine[0]
        joined = {label[at] for at in mine}
        first = min(joined)
        label = [first if one in joined else one for one in label]
    return {position: label[at] for position, at in touched.items()}


def _handed_on(onnx: Any, graph: Any, output: Any) -> str:
    """Add a node that copies an input or a weight; the name of its value."""
    name = name_of_copy(output.name)
    graph.node.append(onnx.helper.make_node("Identity", [output.name], [name], name=name))
    info = graph.value_info.add(name=name)
    info.type.CopyFrom(output.type)
    return name


def _is_in_place(nodes: Sequence[Any], read: str, made: str) -> bool:
    readers = [node for node in nodes if read in values_read(node)]
    if len(readers) != 1 or readers[0].op_type not in _WRITE_INTO_FIRST:
        return False
    (writer,) = readers
    return bool(list(writer.input).count(read) == 1 and writer.input[0] == read
                and writer.output[0] == made)  # fmt: skip


def _ports(onnx: Any, names: Sequence[str], values: Sequence[Any]) -> list[Port]:
    kinds = [value.type.tensor_type for value in values]
    return [
        Port(name, extents(kind), dtype_of(onnx, kind.elem_type)[0], NO_TENSOR)
        for name, kind in zip(names, kinds, strict=True)
    ]

"""Sub-models of an ``openvino.Model``, cut at the tensors of the graph that was read from it.

Also the kernels that a device makes of a graph's ops, the uses of a model's whole numbers, and
arrays of its tensors.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placewright.core.arrays import FloatArray
from placewright.core.graph import ComputationGraph
from placewright.core.grouping import Grouping
from placewright.core.source import ModelSource, numbered_position
from placewright.errors import StalePlanError
from placewright.execution.inputs import Use, size_compared
from placewright.execution.runtime import (
    HostArray,
    OpSegment,
    require_folded,
    require_same_kind,
)
from placewright.frameworks.openvino.reader import is_fixed_shape, looks_made_up, op_positions
from placewright.frameworks.openvino.state import copy_inputs
from placewright.frameworks.weights_in_file import LEAST_BYTES, are_in_file, in_file

_NO_VALUES = ("Parameter", "Constant", "Result", "ReadValue", "Assign")


class NodeMap:
    """The node of each op of a graph and the output port of each tensor.

    A node is named by its position in ``get_ordered_ops()``, which is the same in a clone.

    Args:
        model: an ``openvino.Model``.
        graph: read from the same model with constants folded.
        source: has the native name of each op.

    Raises:
        StalePlanError: the graph was read from another model.
        InputError: the graph keeps constants as ops.
    """

    def __init__(self, model: Any, graph: ComputationGraph, source: ModelSource) -> None:
        require_folded(source)
        nodes = model.get_ordered_ops()
        in_order, is_stored = op_positions(nodes), source.path.lower().endswith(".xml")
        # Of equal names the first op's, as for the reader. Constants and results may have it, too.
        by_name = {nodes[at].get_friendly_name(): at for at in reversed(in_order)}
        self.node_of_op: list[int] = []
        for op, (name, kind) in enumerate(zip(graph.op_names, graph.op_kinds, strict=True)):
            native = source.native_name(name)
            position = numbered_position(native)
            if position is not None:
                at = position
            elif looks_made_up(native, kind) and not is_stored and len(in_order) == graph.n_ops:
                at = in_order[op]  # older plans hold made-up names
            else:
                at = by_name.get(native, -1)
            present = nodes[at].get_type_name() if 0 <= at < len(nodes) else None
            require_same_kind(source, name, kind, present)
            self.node_of_op.append(at)
        self.op_positions = frozenset(self.node_of_op)
        self.read_by_several = _read_by_several(nodes, self.op_positions)
        self.parameters = [at for at, n in enumerate(nodes) if n.get_type_name() == "Parameter"]
        self.port_of_tensor = self._ports(nodes, graph, source)

    def _ports(
        self, nodes: Sequence[Any], graph: ComputationGraph, source: ModelSource
    ) -> list[tuple[int, int]]:
        ports: list[tuple[int, int]] = [(-1, -1)] * graph.n_tensors
        inputs = np.flatnonzero(graph.tensor_producers < 0).tolist()
        if len(inputs) != len(self.parameters):
            raise StalePlanError(
                f"model '{source.path}' has changed: it has {len(self.parameters)} inputs, the "
                f"graph {len(inputs)}; profile and place again"
            )
        for tensor, at in zip(inputs, self.parameters, strict=True):
            ports[tensor] = (at, 0)
        for op, at in enumerate(self.node_of_op):
            read = [port.get_index() for port in nodes[at].outputs() if port.get_target_inputs()]
            tensors = graph.op_outputs.row(op).tolist()
            if len(read) != len(tensors):
                raise StalePlanError(
                    f"model '{source.path}' has changed: op '{graph.op_names[op]}' has "
                    f"{len(read)} outputs, not {len(tensors)}; profile and place again"
                )
            for tensor, port in zip(tensors, read, strict=True):
                ports[tensor] = (at, port)
        return ports


def _read_by_several(nodes: Sequence[Any], ops: frozenset[int]) -> list[int]:
    """Positions of the large constants that several ops read, without a node between."""
    position = {node.get_instance_id(): at for at, node in enumerate(nodes)}
    found = []
    for at, node in enumerate(nodes):
        if node.get_type_name() == "Constant" and node.get_byte_size() >= LEAST_BYTES:
            readers = {position.get(reader.get_node().get_instance_id(), -1)
                       for reader in node.output(0).get_target_inputs()}  # fmt: skip
            if len(readers & ops) > 1:
                found.append(at)
    return found


@dataclass(frozen=True)
class CutModel:
    """The sub-model of a segment."""

    model: Any
    weights: tuple[int, ...]  # positions of constants that are its last parameters


def cut(
    openvino: Any,
    model: Any,
    nodes: NodeMap,
    segments: Sequence[OpSegment],
    shares: Sequence[bool],
) -> list[CutModel]:
    """Cut one sub-model per segment; its parameters and results are in the segment's order.

    Nodes are called ``op<number in the graph>``. Constants, and nodes that depend only on
    constants, go into every sub-model that reads them; weights are shared with `model`, not copied.
    A fixed shape becomes a constant, so that no segment needs the tensor of which it is the shape.

    Args:
        model: stays as it is.
        segments: no two of them share an op.
        shares: for each segment, whether constants that several ops read become parameters.
    """
    clone = model.clone()
    ordered = clone.get_ordered_ops()
    for op, at in enumerate(nodes.node_of_op):
        ordered[at].set_friendly_name(f"op{op}")
    _fix_shapes(openvino, [n for at, n in enumerate(ordered) if at not in nodes.op_positions])
    parts = []
    for segment, is_sharing in zip(segments, shares, strict=True):
        inside = {ordered[nodes.node_of_op[op]].get_instance_id() for op in segment.ops}
        outputs = [_port(ordered, nodes, tensor) for tensor in segment.outputs]
        weights = [
            at
            for at in (nodes.read_by_several if is_sharing else ())
            if _readers(ordered[at].output(0), inside)
        ]
        entering = [(f"tensor{tensor}", _port(ordered, nodes, tensor)) for tensor in segment.inputs]
        entering += [(f"weight{at}", ordered[at].output(0)) for at in weights]
        parameters = []
        for name, port in entering:
            parameter = openvino.opset13.parameter(
                port.get_partial_shape(), port.get_element_type()
            )
            parameter.set_friendly_name(name)
            for target in _readers(port, inside):
                target.replace_source_output(parameter.output(0))
            parameters.append(parameter)
        own = [ordered[nodes.node_of_op[op]] for op in segment.ops]
        parts.append((tuple(weights), (outputs, parameters, own)))
    return [CutModel(_sub_model(openvino, *part), weights) for weights, part in parts]


def _readers(port: Any, inside: set[int]) -> list[Any]:
    """The inputs of nodes of a segment that read an output."""
    targets = port.get_target_inputs()
    return [target for target in targets if target.get_node().get_instance_id() in inside]


def _fix_shapes(openvino: Any, nodes: Sequence[Any]) -> None:
    """Replace nodes that read a fixed shape by that shape."""
    for node in nodes:
        if is_fixed_shape(node):
            shape = np.array(node.get_input_shape(0), node.get_output_element_type(0).to_dtype())
            node.output(0).replace(openvino.opset13.constant(shape).output(0))


def _sub_model(
    openvino: Any, outputs: Sequence[Any], parameters: Sequence[Any], nodes: Sequence[Any]
) -> Any:
    results = [openvino.opset13.result(port) for port in outputs]
    sinks = [node for node in nodes if node.get_type_name() == "Assign"]
    if sinks:
        copy_inputs(sinks)
        return openvino.Model(results, sinks, parameters, "segment")
    return openvino.Model(results, parameters, "segment")


def _port(ordered: Sequence[Any], nodes: NodeMap, tensor: int) -> Any:
    at, port = nodes.port_of_tensor[tensor]
    return ordered[at].output(port)


def with_weights_in_file(openvino: Any, model: Any) -> list[NDArray[Any]]:
    """Let the large constants of a model lie in files, in place; return their arrays.

    OpenVINO maps the weights of an IR, and an ``.onnx`` model's external data, itself.
    """
    constants = [
        node
        for node in model.get_ordered_ops()
        if node.get_type_name() == "Constant"
        and node.get_byte_size() >= LEAST_BYTES
        and node.data.nbytes == node.get_byte_size()
    ]
    arrays = [node.data for node in constants]
    elsewhere = [at for at, is_in in enumerate(are_in_file(arrays)) if not is_in]
    moved = in_file([arrays[at] for at in elsewhere])
    for at, array in zip(elsewhere, moved, strict=True):
        if array is not arrays[at]:
            arrays[at], node = array, constants[at]
            kind, shape = node.get_element_type(), node.get_output_shape(0)
            made = openvino.op.Constant(openvino.Tensor(array, shape, kind), shared_memory=True)
            made.set_friendly_name(node.get_friendly_name())
            node.output(0).replace(made.output(0))
    return arrays


def with_inner_outputs(model: Any) -> Any:
    """Add all inner values of a model to its outputs, in place, and return the model."""
    for node in model.get_ordered_ops():
        if node.get_type_name() in _NO_VALUES:
            continue
        for port in node.outputs():
            readers = [reader.get_node().get_type_name() for reader in port.get_target_inputs()]
            if readers and "Result" not in readers:
                model.add_outputs([port])
    return model


_OP = re.compile(r"op(\d+)")
_HALF_MICROSECOND = 0.5e-6  # timers round down to microseconds


class RunningMeans:
    """Means of the runs since a model was compiled, as the processor's timers give them.

    The first run is cold: it allocates memory, and would count in every later mean.

    Attributes:
        runs: so far.
    """

    def __init__(self) -> None:
        self.runs = 0
        self._cold: tuple[int, FloatArray] | None = None  # number of the first runs, their seconds

    def warm(self, seconds: FloatArray) -> FloatArray:
        """The mean seconds of all runs but the first; those of the first if it is the only one.

        Args:
            seconds: their mean with another run, which is counted here.
        """
        self.runs += 1
        if self._cold is None:
            self._cold = self.runs, self.runs * seconds
            return seconds
        n_cold, cold = self._cold
        return np.maximum(self.runs * seconds - cold, 0.0) / (self.runs - n_cold)


class KernelMap:
    """The op of each kernel of a model whose nodes are called ``op<number>``, by kernel name.

    A compiled model lists the nodes that each kernel computes (``originalLayersNames``). A kernel
    without such nodes (a layout conversion) belongs to the kernel that reads its result. An op that
    appears in no kernel was merged without a trace or needs no work; it joins its only reader.

    Args:
        compiled: an ``openvino.CompiledModel`` of the whole graph.
    """

    def __init__(self, graph: ComputationGraph, compiled: Any) -> None:
        self.graph = graph
        kernels = compiled.get_runtime_model().get_ordered_ops()
        ops_of = {node.get_friendly_name(): _ops_in(node, graph.n_ops) for node in kernels}
        self.op_of: dict[str, int] = {}
        for node in reversed(kernels):
            name = node.get_friendly_name()
            own = ops_of[name]
            if own:
                self.op_of[name] = own[-1]
            else:
                read_by = _names_of_readers(node)
                self.op_of[name] = next((self.op_of[r] for r in read_by if r in self.op_of), -1)
        for node in kernels:  # a kernel that makes an output has no reader, but a producer
            name = node.get_friendly_name()
            if self.op_of[name] < 0:
                made_by = [value.get_node().get_friendly_name() for value in node.input_values()]
                self.op_of[name] = next((self.op_of[m] for m in made_by if self.op_of[m] >= 0), -1)
        self.grouping = self._grouping([ops for ops in ops_of.values() if ops])

    def seconds(self, profile: Any) -> FloatArray:
        """Seconds of each op in ``InferRequest.profiling_info``, shape (n_ops,)."""
        seconds = np.zeros(self.graph.n_ops)
        for entry in profile:
            op = self.op_of.get(entry.node_name, -1)
            if op >= 0:
                taken = entry.real_time.total_seconds()
                seconds[op] += taken + _HALF_MICROSECOND if taken > 0 else 0.0
        return seconds

    def _grouping(self, kernels: list[list[int]]) -> Grouping:
        graph = self.graph
        label = np.full(graph.n_ops, -1, dtype=np.int64)
        for number, ops in enumerate(kernels):
            label[ops] = number
        for op in reversed(graph.topological_order.tolist()):
            if label[op] < 0:
                readers = np.unique(label[graph.successors.row(op)])
                makers = np.unique(label[graph.predecessors.row(op)])
                if len(readers) == 1:
                    label[op] = readers[0]
                elif len(readers) == 0 and len(makers) == 1 and makers[0] >= 0:
                    label[op] = makers[0]
                else:
                    label[op] = len(kernels) + op
        return Grouping.from_labels(label)


def _ops_in(node: Any, n_ops: int) -> list[int]:
    info = node.get_rt_info()
    text = str(info["originalLayersNames"].astype(str)) if "originalLayersNames" in info else ""
    names = [*text.split(","), node.get_friendly_name()]
    ops = [int(match[1]) for name in names if (match := _OP.fullmatch(name))]
    return sorted({op: None for op in ops if op < n_ops})


def _names_of_readers(node: Any) -> list[str]:
    return [
        target.get_node().get_friendly_name()
        for port in node.outputs()
        for target in sorted(port.get_target_inputs(), key=lambda t: t.get_node().get_instance_id())
    ]


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
    """Yield the uses of a value, which say what whole numbers suit an input.

    See `execution.inputs.whole_numbers`.

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
        other = _constant(node.input_value(1 - position)) if kind == "Equal" else None
        return Use(size_compared(other))
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


def _constant(value: Any) -> Any | None:
    """The numbers of a constant, or of the constant whose numbers it repeats."""
    node = value.get_node()
    while _PASSES.get(node.get_type_name()) == (0,):
        node = node.input_value(0).get_node()
    return node.get_data() if node.get_type_name() == "Constant" else None


def host_array(values: HostArray, element_type: Any) -> HostArray:
    """Copy what OpenVINO's Python gives as a tensor's array; bfloat16 becomes float32.

    NumPy has no bfloat16. OpenVINO gives its bits under the name of float16.

    Args:
        element_type: of the tensor, an ``openvino.Type``.
    """
    copied = np.array(values)
    if element_type.get_type_name() != "bf16":
        return copied
    bits = copied.view(np.uint16).astype(np.uint32)
    return np.asarray(bits << 16, dtype=np.uint32).view(np.float32)

"""Sub-models of an ``.onnx`` model, cut at the tensors of the graph that was read from it.

A sub-model holds the nodes of a segment, the nodes on which they depend and that depend only on
constants, and the initializers of both. Large initializers are left out: all sessions share one
array of each.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placewright.core.graph import ComputationGraph
from placewright.core.grouping import Grouping
from placewright.core.source import ModelSource, numbered_position
from placewright.errors import (
    FileFormatError,
    InexpressibleError,
    InputError,
    StalePlanError,
)
from placewright.execution.runtime import OpSegment, require_folded, require_same_kind
from placewright.execution.state_pairs import asked_of
from placewright.frameworks.onnxruntime.flops import bodies_of, needed_readers, values_read
from placewright.frameworks.onnxruntime.state import Staying, keep_state
from placewright.frameworks.onnxruntime.value_types import (
    dtype_of,
    set_input_shapes,
    with_all_types,
)
from placewright.frameworks.weights_in_file import in_file
from placewright.io.content import one_line
from placewright.io.model_parts import MAX_MESSAGE_BYTES, onnx_model

# Smaller ones stay in the sub-model, because shape inference and fusions read their values.
SHARED_BYTES = 4096
_MOST_INSIDE = MAX_MESSAGE_BYTES - (64 << 20)  # bytes of other weights; the nodes have the rest
_TEXT = 8  # ONNX's number of the element type of texts
_SHARED_KINDS = ("FLOAT", "DOUBLE", "FLOAT16", "INT64", "INT32", "INT16", "INT8", "UINT8", "BOOL")


@dataclass(frozen=True)
class SubModel:
    """A serialised model for one session."""

    content: bytes  # the model without its large initializers
    shared: tuple[str, ...]  # names of the initializers that were left out
    inputs: tuple[str, ...]  # names of the model's inputs, as the segment lists them
    outputs: tuple[str, ...]  # names of its outputs
    state: tuple[Staying, ...] = ()  # further inputs and outputs, which stay with the session
    given: tuple[str, ...] = ()  # names of large initializers that became inputs


class OnnxParts:
    """An ONNX model with the node of each op and the value of each tensor of its graph.

    Args:
        graph: read from it with constants folded.
        source: has the native name of each op, and the fixed input shapes.

    Raises:
        StalePlanError: the graph was read from another model.
        InputError: the model cannot be read, keeps too many numbers that are not shared, or the
            graph keeps constants as ops.
        FileFormatError: a weight has another size than its numbers.
    """

    def __init__(self, path: Path, graph: ComputationGraph, source: ModelSource) -> None:
        require_folded(source)
        import onnx

        self.onnx = onnx
        self.graph = graph
        self.path = source.path
        self.model = _typed_model(path, source)
        self.kept = keep_state(onnx, self.model, asked_of(source.options))
        _require_bounded(onnx, self.model, source.path)
        try:
            self.model, self.shared_arrays = _without_large(onnx, self.model, path.parent)
        except (ValueError, TypeError, KeyError) as error:  # of NumPy and onnx
            raise FileFormatError(f"'{source.path}' is damaged: {one_line(error)}") from None
        inner = self.model.graph
        self.nodes: list[Any] = list(inner.node)
        self.types = {v.name: v.type for v in (*inner.output, *inner.value_info, *inner.input)}
        self.initializers = {held.name: held for held in inner.initializer}
        self.initializers |= {name: _named(held, name) for name, held in _constants(inner)}
        self.sparse = {held.values.name: held for held in inner.sparse_initializer}
        self.node_of_op = self._node_of_op(source)
        self.value_of_tensor = self._value_of_tensor()
        self.op_of_value = {
            self.value_of_tensor[tensor]: int(op)
            for tensor, op in enumerate(graph.tensor_producers)
            if op >= 0
        }
        ops = set(self.node_of_op)  # membership only
        self._constant_node = {
            value: at
            for at, node in enumerate(self.nodes)
            if at not in ops
            for value in node.output
            if value and value not in self.initializers
        }
        for at, node in enumerate(self.nodes):
            node.name = f"constant<{at}>"  # the profiler would name one without a name itself
        for op, at in enumerate(self.node_of_op):
            self.nodes[at].name = node_name(op)
        readers = self._readers(self.node_of_op)
        self.read_by_several = {name for name in self.shared_arrays if readers[name] > 1}
        readers = needed_readers(inner)
        self._unpacked_by_several = [
            value
            for value in self._constant_node
            if readers[value] > 1 and self._is_unpacked(value)
        ]

    def cut(self, segment: OpSegment, *, is_sharing: bool = False) -> SubModel:
        """Cut the sub-model of a segment.

        Args:
            is_sharing: large initializers that several ops read become inputs.
        """
        onnx = self.onnx
        positions = sorted(self.node_of_op[op] for op in segment.ops)
        inputs = tuple(self.value_of_tensor[tensor] for tensor in segment.inputs)
        nodes, needed = self._needed(positions, inputs)
        given = [name for name in needed if is_sharing and name in self.read_by_several]
        sparse = [name for name in needed if name in self.sparse]
        initializers = [name for name in needed if name not in given and name not in self.sparse]
        sub = onnx.GraphProto(name="segment")
        sub.node.extend(self.nodes[at] for at in nodes)
        outputs = []
        for tensor in segment.outputs:
            name = value = self.value_of_tensor[tensor]
            if value in inputs:  # a model may return an input
                name = f"{value}/handed on"
                sub.node.append(onnx.helper.make_node("Identity", [value], [name], name=name))
            outputs.append(name)
            sub.output.append(self._value_info(value, name))
        state = self._state_of(positions)
        sub.input.extend(self._value_info(v, v) for v in (*inputs, *(kept.read for kept in state)))
        sub.input.extend(map(self._info_of_initializer, given))
        sub.output.extend(self._value_info(kept.made, kept.made) for kept in state)
        self._keep_unpacked(sub, nodes)
        leaving = {*outputs, *(kept.made for kept in state)}  # membership only
        sub.value_info.extend(
            self._value_info(value, value)
            for at in positions
            for value in self.nodes[at].output
            if value in self.types and value not in leaving
        )
        sub.initializer.extend(self.initializers[name] for name in initializers)
        sub.sparse_initializer.extend(self.sparse[name] for name in sparse)
        made = onnx.ModelProto(ir_version=self.model.ir_version, graph=sub)
        made.opset_import.extend(self.model.opset_import)
        made.functions.extend(self.model.functions)
        shared = tuple(name for name in initializers if name in self.shared_arrays)
        content = made.SerializeToString()
        return SubModel(content, shared, inputs, tuple(outputs), state, tuple(given))

    def standalone(self, segment: OpSegment) -> Any:
        """Cut a segment as an ``onnx.ModelProto`` with all its weights and its ops' own names.

        Raises:
            InexpressibleError: it keeps state, and a file has no memory.
        """
        part = self.cut(segment)
        if part.state:
            raise InexpressibleError(
                f"segments of '{self.path}' keep state ('{part.state[0].read}'), which files of "
                "their own do not; place it without argument `state`, or export to onnx-layers"
            )
        model = self.onnx.ModelProto.FromString(part.content)
        for held in model.graph.initializer:
            if held.name in self.shared_arrays:
                array = np.ascontiguousarray(self.shared_arrays[held.name])
                held.CopyFrom(self.onnx.numpy_helper.from_array(array, held.name))
        names = {node_name(op): self.graph.op_names[op] for op in segment.ops}
        for node in model.graph.node:
            node.name = names.get(node.name, node.name)
        return model

    def without_shapes(self, content: bytes) -> bytes:
        """Remove the dimensions of all values from a serialised sub-model."""
        model = self.onnx.ModelProto.FromString(content)
        for value in (*model.graph.input, *model.graph.value_info, *model.graph.output):
            if value.type.HasField("tensor_type"):  # else it would become one
                value.type.tensor_type.ClearField("shape")
        made: bytes = model.SerializeToString()
        return made

    def element_type(self, value: str) -> int:
        """ONNX's number of a value's element type; 0 if the type is unknown or no tensor's."""
        held = self.types.get(value)
        return 0 if held is None else int(held.tensor_type.elem_type)

    def with_values_inside(self, grouping: Grouping) -> Grouping:
        """Join groups between which a sequence, a map, an optional value or a text passes.

        Only tensors of numbers can move between devices.
        """
        labels = grouping.group_of.copy()
        for tensor, value in enumerate(self.value_of_tensor):
            if value not in self.op_of_value or self._is_of_numbers(value):
                continue
            ops = [self.op_of_value[value], *self.graph.tensor_consumers.row(tensor).tolist()]
            joined = np.unique(labels[ops])
            labels[np.isin(labels, joined)] = joined[0]
        return Grouping.from_labels(labels)

    def _is_of_numbers(self, value: str) -> bool:
        held = self.types.get(value)
        return (
            held is not None
            and held.WhichOneof("value") == "tensor_type"
            and held.tensor_type.elem_type != _TEXT
        )

    def static_shape(self, value: str) -> tuple[int, ...] | None:
        """A value's dimensions; None if they depend on values."""
        held = self.types.get(value)
        if held is None or not held.tensor_type.HasField("shape"):
            return None
        dimensions = held.tensor_type.shape.dim
        if not all(d.HasField("dim_value") for d in dimensions):
            return None
        return tuple(int(d.dim_value) for d in dimensions)

    def signature(self, op: int) -> object:
        """Kind and attributes of an op, and the types of its inputs and outputs."""
        node = self.nodes[self.node_of_op[op]]
        attributes = sorted(a.SerializeToString(deterministic=True) for a in node.attribute)
        types = [self._type_text(value) for value in (*node.input, *node.output)]
        return (node.domain, node.op_type, attributes, types)

    def _type_text(self, value: str) -> str:
        if value in self.initializers:
            held = self.initializers[value]
            return f"constant {held.data_type} {list(held.dims)}"
        if value in self.sparse:
            sparse = self.sparse[value]
            return f"constant {sparse.values.data_type} {list(sparse.dims)} of {sparse.values.dims}"
        return str(self.types.get(value, "")) if value else ""

    def _needed(
        self, positions: Sequence[int], inputs: Sequence[str]
    ) -> tuple[list[int], list[str]]:
        """Positions of all nodes of a sub-model, ascending, and names of its initializers."""
        needed = dict.fromkeys(positions)
        names: dict[str, None] = {}
        entering = dict.fromkeys(inputs)
        left = list(positions)
        while left:
            for value in values_read(self.nodes[left.pop()]):
                maker = self._constant_node.get(value)
                if value in entering:
                    continue
                if value in self.initializers or value in self.sparse:
                    names[value] = None
                elif maker is not None and maker not in needed:
                    needed[maker] = None
                    left.append(maker)
        return sorted(needed), list(names)

    def _readers(self, positions: Sequence[int]) -> Counter[str]:
        """Value -> number of nodes at these positions that read its elements."""
        nodes = (self.nodes[at] for at in positions)
        reading = (node for node in nodes if node.op_type != "Shape")  # which ONNX Runtime folds
        return Counter(name for node in reading for name in set(values_read(node)))

    def _is_unpacked(self, value: str) -> bool:
        """True if a constant value is made of integers that a DequantizeLinear unpacks."""
        left, seen = [value], set[int]()
        while left:
            maker = self._constant_node.get(left.pop())
            if maker is None or maker in seen:
                continue
            seen.add(maker)
            if self.nodes[maker].op_type == "DequantizeLinear":
                return True
            left.extend(self.nodes[maker].input)
        return False

    def _keep_unpacked(self, sub: Any, positions: Sequence[int]) -> None:
        """Add an output that reads each unpacked weight of which the cut left one reader.

        ONNX Runtime computes in integers where one operator alone reads such a weight, and in
        floating point where several do, as in the whole model. Results differ by a percent.

        Args:
            positions: of all nodes of the cut; one that turns a weight over is a reader, too.
        """
        helper, readers = self.onnx.helper, self._readers(positions)
        for value in self._unpacked_by_several:
            if readers[value] == 1:
                name = f"{value}/size"
                sub.node.append(helper.make_node("Size", [value], [name], name=name))
                sub.output.append(
                    helper.make_tensor_value_info(name, self.onnx.TensorProto.INT64, [])
                )

    def _state_of(self, positions: Sequence[int]) -> tuple[Staying, ...]:
        """The values that stay which nodes at these positions make."""
        made = {value for at in positions for value in self.nodes[at].output}  # membership only
        return tuple(kept for kept in self.kept.values if kept.made in made)

    def _value_info(self, value: str, name: str) -> Any:
        info = self.onnx.ValueInfoProto(name=name)
        if value in self.types:
            info.type.CopyFrom(self.types[value])
        return info

    def _info_of_initializer(self, name: str) -> Any:
        held = self.initializers[name]
        return self.onnx.helper.make_tensor_value_info(name, held.data_type, list(held.dims))

    def _node_of_op(self, source: ModelSource) -> list[int]:
        by_name: dict[str, int] = {}
        for at, node in enumerate(self.nodes):
            by_name.setdefault(node.name, at)
        positions = []
        for name, kind in zip(self.graph.op_names, self.graph.op_kinds, strict=True):
            native = source.native_name(name)
            numbered = numbered_position(native)
            at = by_name.get(native, -1) if numbered is None else numbered
            present = self.nodes[at].op_type if 0 <= at < len(self.nodes) else None
            require_same_kind(source, name, kind, present)
            positions.append(at)
        return positions

    def _value_of_tensor(self) -> list[str]:
        values = [""] * self.graph.n_tensors
        inputs = np.flatnonzero(self.graph.tensor_producers < 0).tolist()
        held = (self.initializers, self.sparse, self.kept.inputs)
        names = [v.name for v in self.model.graph.input if not any(v.name in own for own in held)]
        self._same_number("the model", "inputs", names, inputs)
        for tensor, name in zip(inputs, names, strict=True):
            values[tensor] = name
        for op, at in enumerate(self.node_of_op):
            names = [name for name in self.nodes[at].output if name]
            tensors = self.graph.op_outputs.row(op).tolist()
            self._same_number(f"op '{self.graph.op_names[op]}'", "outputs", names, tensors)
            for tensor, name in zip(tensors, names, strict=True):
                values[tensor] = name
        return values

    def _same_number(self, who: str, what: str, names: list[str], tensors: list[int]) -> None:
        if len(names) != len(tensors):
            raise StalePlanError(
                f"model '{self.path}' has changed: {who} has {len(names)} {what}, not "
                f"{len(tensors)}; profile and place again"
            )


def node_name(op: int) -> str:
    """Name of an op's node in sub-models; no model file uses such names by accident."""
    return f"op<{op}>"


def _typed_model(path: Path, source: ModelSource) -> Any:
    """Read a model at the shapes of its source, with the types of all values.

    Raises:
        InputError: the shapes do not fit.
    """
    import onnx.shape_inference

    model, _ = onnx_model(path)
    _require_open(model, source)
    set_input_shapes(model, source.shapes)
    try:
        return with_all_types(onnx, model, path.parent)
    except onnx.shape_inference.InferenceError as error:
        raise InputError(f"the shapes in '{source.path}' do not fit: {error}") from None


def _without_large(onnx: Any, model: Any, folder: Path) -> tuple[Any, dict[str, NDArray[Any]]]:
    """Replace large weights by references to outside data; return the model and their arrays.

    The arrays lie in files. The model is copied, because a protocol buffer frees the memory of its
    parts with the last of them.
    """
    sparse = (t for held in model.graph.sparse_initializer for t in (held.values, held.indices))
    for held in (*_tensors_inside(model.graph.node), *sparse):
        if held.data_location == onnx.TensorProto.EXTERNAL:
            held.CopyFrom(onnx.numpy_helper.from_array(_array(onnx, held, folder), held.name))
    taken = {}
    for name, held in _weights(model.graph):
        is_outside = held.data_location == onnx.TensorProto.EXTERNAL
        large = _is_shared(onnx, held)
        if not (large or is_outside):
            continue
        array = _array(onnx, held, folder)
        entry = onnx.TensorProto(name=held.name, data_type=held.data_type, dims=held.dims)
        if large:
            taken[name] = array
            entry.data_location = onnx.TensorProto.EXTERNAL
            for key, value in (("location", "shared"), ("length", str(array.nbytes))):
                entry.external_data.add(key=key, value=value)
        else:
            entry = onnx.numpy_helper.from_array(array, held.name)
        held.CopyFrom(entry)
    inside = [name for name, array in taken.items() if not isinstance(array, np.memmap)]
    taken |= dict(zip(inside, in_file([taken[name] for name in inside]), strict=True))
    return onnx.ModelProto.FromString(model.SerializeToString()), taken


def _require_bounded(onnx: Any, model: Any, path: str) -> None:
    """Refuse a model of which more must be taken into one message than a protocol buffer holds.

    Raises:
        InputError: it has so many numbers which sessions cannot share.
    """
    others = [node for node in model.graph.node if node.op_type != "Constant"]
    weights = [held for _, held in _weights(model.graph) if not _is_shared(onnx, held)]
    size = sum(
        math.ceil(math.prod(tensor.dims) * dtype_of(onnx, tensor.data_type)[1])
        for tensor in (*_tensors_inside(others), *weights)
    )
    if size > _MOST_INSIDE:
        raise InputError(
            f"'{path}' has {size} bytes of weights that sessions cannot share, more "
            f"than the {_MOST_INSIDE} of one message; store them as f32, f16, i8 or u8 outside "
            "branches and loops, or place with argument `runtime` openvino"
        )


def _weights(graph: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names and tensors of the initializers and of the ``Constant`` nodes."""
    yield from ((tensor.name, tensor) for tensor in graph.initializer)
    yield from _constants(graph)


def _is_shared(onnx: Any, tensor: Any) -> bool:
    """True for a weight that is large, and of a type of which sessions take arrays."""
    if onnx.TensorProto.DataType.Name(tensor.data_type) not in _SHARED_KINDS:
        return False
    width = int(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)
    return bool(math.prod(tensor.dims) * width >= SHARED_BYTES)


def _tensors_inside(nodes: Iterable[Any]) -> Iterator[Any]:
    """Yield the tensors among the attributes of nodes, and those of the bodies inside them."""
    for node in nodes:
        for attribute in node.attribute:
            yield from ([attribute.t] if attribute.HasField("t") else attribute.tensors)
        for graph in bodies_of(node):
            yield from graph.initializer
            yield from _tensors_inside(graph.node)


def _constants(graph: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names of the outputs of ``Constant`` nodes, and their tensors."""
    for node in graph.node:
        if node.op_type == "Constant" and node.domain in ("", "ai.onnx"):
            for attribute in node.attribute:
                if attribute.name == "value":
                    yield node.output[0], attribute.t


def _named(tensor: Any, name: str) -> Any:
    """A copy of a tensor with a name."""
    copy = type(tensor)()
    copy.CopyFrom(tensor)
    copy.name = name
    return copy


def _array(onnx: Any, tensor: Any, folder: Path) -> NDArray[Any]:
    """Values of an initializer; data in a separate file is mapped, not read."""
    is_outside = tensor.data_location == onnx.TensorProto.EXTERNAL  # else entries are leftovers
    place = {entry.key: entry.value for entry in tensor.external_data if is_outside}
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    offset, size = int(place.get("offset", 0)), math.prod(tensor.dims)
    kind = onnx.TensorProto.DataType.Name(tensor.data_type)
    if "location" in place and kind in _SHARED_KINDS and size and offset % dtype.itemsize == 0:
        file = folder / place["location"]
        return np.memmap(file, dtype, mode="r", offset=offset, shape=tuple(tensor.dims))
    if "location" in place:  # read here, since onnx follows no links
        needed = math.ceil(size * dtype_of(onnx, tensor.data_type)[1])
        with (folder / place["location"]).open("rb") as stream:
            stream.seek(offset)
            content = stream.read(needed)
        tensor = onnx.TensorProto(
            name=tensor.name, data_type=tensor.data_type, dims=tensor.dims, raw_data=content
        )
    return np.ascontiguousarray(onnx.numpy_helper.to_array(tensor))


def _require_open(model: Any, source: ModelSource) -> None:
    """Refuse shapes that change a fixed dimension, since ONNX Runtime refuses such inputs.

    Raises:
        InputError: an input has a fixed dimension of another size.
    """
    for value in model.graph.input:
        dimensions = value.type.tensor_type.shape.dim
        wanted = source.shapes.get(value.name, ())
        for dimension, extent in zip(dimensions, wanted, strict=False):
            if dimension.HasField("dim_value") and 0 <= dimension.dim_value != extent:
                stated = [d.dim_value if d.HasField("dim_value") else d.dim_param or "?"
                          for d in dimensions]  # fmt: skip
                raise InputError(
                    f"input '{value.name}' of '{source.path}' is {stated}, not {list(wanted)}: "
                    "ONNX Runtime changes no fixed dimension; leave it out of argument `shapes`, "
                    "open it in the file, or place with argument `runtime` openvino"
                )

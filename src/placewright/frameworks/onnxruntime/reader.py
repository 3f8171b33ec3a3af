"""Reader of ONNX models: one op per node, as ONNX Runtime runs them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from placewright.core.builder import GraphBuilder
from placewright.core.graph import ComputationGraph
from placewright.core.source import (
    NO_TENSOR,
    ModelSource,
    Port,
    Signature,
    distinct,
    numbered_position,
)
from placewright.errors import (
    FieldError,
    FileFormatError,
    GraphError,
    InputError,
    MissingExtraError,
    UnknownNameError,
    optional_library,
)
from placewright.execution.state_pairs import option_of
from placewright.frameworks.input_shapes import StatedInput, fixed_shapes
from placewright.frameworks.onnxruntime.flops import (
    Values,
    constant_numbers,
    constants_inside,
    extents,
    initializer_names,
    needed_readers,
    node_flops,
    values_read,
)
from placewright.frameworks.onnxruntime.functions import Functions
from placewright.frameworks.onnxruntime.state import KeptState, classes_of, keep_state
from placewright.frameworks.onnxruntime.value_types import (
    dtype_of,
    set_input_shapes,
    with_all_types,
)
from placewright.io.content import UniqueNames, content_hash, existing_path, one_line
from placewright.io.model_parts import onnx_model

_NO_SHAPES: Mapping[str, tuple[int, ...]] = {}
_NO_STATE: Mapping[str, str] = {}
_BLOCK = 32  # numbers with one scale in MatMulNBits, if the model states no blocks
_NEVER_CONSTANT = ("Random", "Multinomial", "Bernoulli")


def read_onnx(
    path: Path | str,
    *,
    shapes: Mapping[str, tuple[int, ...]] = _NO_SHAPES,
    fold_constants: bool = True,
    state: Mapping[str, str] = _NO_STATE,
) -> tuple[ComputationGraph, ModelSource]:
    """Read an ONNX model, one op per node.

    An op has the name of its node. If the node has no name, or its name is taken, the op gets the
    name of its first output or a number, and the native name ``"#<position in graph.node>"``.

    Args:
        shapes: dimensions to fix; see `frameworks.input_shapes.fixed_shapes`.
        fold_constants: nodes that depend only on initializers become weights.
        state: output name -> input name of values that stay from call to call.

    Raises:
        InputError: there is no such file, the shapes do not fit, or an open one is missing.
        UnknownNameError: `shapes` names an input that the model lacks.
        FileFormatError: the file is no ONNX model, is damaged, or refers outside its folder.
        MissingExtraError: onnx is not installed.
    """
    onnx = optional_library("onnx.shape_inference", "onnxruntime", "reading ONNX nodes")
    file = existing_path(path)
    model, files = onnx_model(file)
    try:
        _require_tensors(model.graph)
        fixed = _fix_shapes(model, shapes)
        inferred = with_all_types(onnx, model, file.parent)
    except onnx.shape_inference.InferenceError as error:
        raise InputError(
            f"the shapes in '{path}' do not fit: {one_line(error)}; choose others with argument "
            "`shapes`"
        ) from None
    except (UnknownNameError, InputError):
        raise
    except Exception as error:  # the protocol-buffer library has error types of its own
        raise FileFormatError(f"ONNX cannot read '{path}': {one_line(error)}") from None
    try:
        kept = keep_state(onnx, inferred, state)
        reading = _Reading(onnx, inferred, fold_constants, kept)
        graph = reading.graph()
    except GraphError as error:
        raise GraphError(f"'{path}': {error}") from None
    except (InputError, MissingExtraError):
        raise
    except Exception as error:  # names, types and sizes that ONNX does not know
        raise FileFormatError(f"'{path}' is damaged: {one_line(error)}") from None
    source = ModelSource(
        path=str(path),
        sha256=content_hash(file.parent, files),
        format="onnx",
        shapes=fixed,
        reader_version=f"onnx {onnx.__version__}",
        native_names=reading.native_names,
        options={**({} if fold_constants else {"fold_constants": "no"}), **option_of(state)},
        signature=reading.signature(),
    )
    return graph, source if kept.interface is None else kept.interface.applied_to(source)


def _require_tensors(graph: Any) -> None:
    for what, values in (("input", graph.input), ("output", graph.output)):
        for value in values:
            kind = value.type.WhichOneof("value") or "tensor_type"
            if kind != "tensor_type":
                raise InputError(
                    f"{what} {value.name!r} is no tensor but a {kind.removesuffix('_type')}; "
                    "only tensors go in and out of a device"
                )


def _fix_shapes(model: Any, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Give every input static dimensions, in place, and return them by input name."""
    held = initializer_names(model.graph)
    inputs = [value for value in model.graph.input if value.name not in held]
    asked = fixed_shapes([_stated(value) for value in inputs], shapes)
    fixed = {value.name: wanted for value, wanted in zip(inputs, asked, strict=True)}
    set_input_shapes(model, fixed)
    return fixed


def _stated(value: Any) -> StatedInput:
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return StatedInput((value.name,), None)
    return StatedInput(
        (value.name,),
        tuple(
            int(d.dim_value) if d.HasField("dim_value") and d.dim_value >= 0 else str(d.dim_param)
            for d in tensor.shape.dim
        ),
    )


class _Reading:
    """State of a walk over a graph's nodes, which ONNX stores in topological order."""

    def __init__(self, onnx: Any, model: Any, fold: bool, kept: KeptState) -> None:
        self.onnx = onnx
        self.source = graph = model.graph
        self.fold = fold
        self.kept = kept
        self._class_of = classes_of(graph.node, kept.values)
        self._made = {value.made for value in kept.values}  # membership only
        self.builder = GraphBuilder()
        self.native_names: dict[str, str] = {}
        self._name = UniqueNames()
        self._types = {v.name: v.type.tensor_type
                       for v in (*graph.output, *graph.value_info, *graph.input)}  # fmt: skip
        self._initializers = {initializer.name: initializer for initializer in graph.initializer}
        self._dims = {name: tuple(held.dims) for name, held in self._initializers.items()}
        self._constants: dict[str, float] = {
            name: _bytes_of(onnx, held) for name, held in self._initializers.items()
        }  # value name -> bytes
        for sparse in graph.sparse_initializer:
            name = sparse.values.name
            self._initializers[name], self._dims[name] = sparse.values, tuple(sparse.dims)
            self._constants[name] = _bytes_of(onnx, sparse.values) + _bytes_of(onnx, sparse.indices)
        self._first_of_name: dict[str, int] = {}
        for position, node in enumerate(graph.node):
            self._first_of_name.setdefault(node.name, position)
        self._stored: dict[str, list[str]] = {}  # computed constant -> those held in its place
        # Unpacked weight -> its block, and bytes of a packed number.
        self._blocks: dict[str, tuple[int, float]] = {}
        self._readers = needed_readers(graph)
        self._unpacked = {v for node in graph.node if node.op_type == "DequantizeLinear"
                          for v in node.output}  # fmt: skip
        self._weights: dict[str, int] = {}
        self._tensors: dict[str, int] = {}
        dense = {held.name: held for held in graph.initializer}
        self._functions = Functions(onnx, model, self._types, dense)
        self._numbers = constant_numbers(onnx, graph)

    def graph(self) -> ComputationGraph:
        """Add all nodes and return the finished graph."""
        for value in self.source.input:
            if value.name not in self._constants and value.name not in self.kept.inputs:
                self._tensors[value.name] = self._tensor(-1, value.name)
        for stays in self.kept.values:
            places = 1 if stays.in_place else 2
            self._weights[stays.read] = self.builder.add_weight(
                places * self._size(stays.read), dtype=self._dtype(stays.read)
            )
        n_ops = 0
        for position, node in enumerate(self.source.node):
            read = list(dict.fromkeys(values_read(node)))
            if self._folds(node, read):
                self._fold(node, read)
            else:
                self._add(position, node, read)
                n_ops += 1
        if n_ops == 0:
            raise GraphError("the model has no operator that depends on an input")
        for at, value in enumerate(self.source.output):
            if value.name in self._tensors and at not in self.kept.outputs:
                self.builder.mark_output(self._tensors[value.name])
        for stays in self.kept.values:
            if stays.made not in self._tensors:
                raise FieldError(
                    "state", f"'{stays.made}' depends on no input, so that it is constant"
                )
        return self.builder.build()

    def signature(self) -> Signature:
        """Inputs and outputs in the order of the file."""
        inputs = [value for value in self.source.input if value.name in self._tensors]
        return Signature(
            distinct(self._port(value.name) for value in inputs),
            distinct(
                self._port(value.name)
                for at, value in enumerate(self.source.output)
                if at not in self.kept.outputs
            ),
        )

    def _port(self, value: str) -> Port:
        tensor = self._tensors.get(value, NO_TENSOR)
        return Port(value, self._shape(value), self._dtype(value), tensor)

    def _dtype(self, value: str) -> str:
        held = self._types.get(value)
        return "" if held is None else dtype_of(self.onnx, held.elem_type)[0]

    def _folds(self, node: Any, read: list[str]) -> bool:
        if not self.fold or not all(name in self._constants for name in read):
            return False
        return not self._functions.draws(node, _NEVER_CONSTANT)

    def _fold(self, node: Any, read: list[str]) -> None:
        """Make the node's outputs constants.

        ONNX Runtime keeps integers that a DequantizeLinear unpacks: a kernel reads them as they
        are, or a run unpacks them. So what follows from them is no constant that it holds. An
        Identity is left out, and its readers have what it reads.
        """
        made = [name for name in node.output if name]
        self._constants |= {name: self._size(name) for name in made}
        if node.op_type in ("Shape", "Size"):  # read no elements
            return
        if node.op_type == "DequantizeLinear":
            width = self._constants[read[0]] / max(1, math.prod(self._shape(made[0])))
            stated = [a.i for a in node.attribute if a.name == "block_size" and a.i]
            if width <= 1:
                self._blocks[made[0]] = (stated or [_BLOCK])[0], max(0.5, round(2 * width) / 2)
        elif node.op_type in ("Transpose", "Identity") and self._readers[read[0]] == 1:
            self._blocks |= {v: self._blocks[read[0]] for v in made if read[0] in self._blocks}
        kinds_of_same = ("DequantizeLinear", "Identity")
        if node.op_type in kinds_of_same or any(name in self._stored for name in read):
            self._stored |= dict.fromkeys(made, self._held(read))

    def _held(self, values: list[str]) -> list[str]:
        """The constants that are in memory for these."""
        return list(dict.fromkeys(h for v in values for h in self._stored.get(v, [v])))

    def _add(self, position: int, node: Any, read: list[str]) -> None:
        wanted = node.name or (node.output[0] if node.output else "")
        name = self._name(wanted, node.op_type)
        is_found = name == node.name and self._first_of_name[name] == position
        if not is_found or numbered_position(name) is not None:
            self.native_names[name] = f"#{position}"
        known = (self._constants, self._tensors, self.kept.inputs)
        lost = [value for value in read if not any(value in held for held in known)]
        if lost:
            raise GraphError(f"node {name!r} reads {lost[0]!r}, which nothing before it makes")
        # Not an attribute, which would keep the whole model until a collection of cycles.
        values = Values(self._shape, self._numbers.get)
        called = self._functions.counted(node, values)
        flops = node_flops(self.onnx, node, values) if called is None else called[0]
        op = self.builder.add_op(
            name,
            node.op_type,
            inputs=[self._tensors[value] for value in read if value in self._tensors],
            flops=flops,
            module=name.rpartition("/")[0],
            colocation=self._class_of.get(position, -1),
            weights=[
                *self._weights_of(node, [value for value in read if value in self._constants]),
                *(self._weights[value] for value in read if value in self.kept.inputs),
                *self._weights_inside(constants_inside(node) if called is None else called[1]),
            ],
        )
        for value in filter(None, node.output):
            self._tensors[value] = self._tensor(op, value)

    def _weights_of(self, node: Any, constants: list[str]) -> list[int]:
        """The weights of a node.

        ONNX Runtime packs an operand for MatMulNBits if only this product reads it, and no kernel
        takes both operands as integers: columns of whole blocks, each with a scale in f32 and a
        zero point.
        """
        packed = node.input[1] if node.op_type in ("MatMul", "Gemm") else ""
        turned = any(a.name in ("transA", "transB") and a.i for a in node.attribute)
        alone = self._readers[packed] == 1 and node.input[0] not in self._unpacked
        shape = self._shape(packed)
        if packed not in self._blocks or turned or not alone or len(shape) != 2:
            return [self._weight(value) for value in self._held(constants)]
        block, width = self._blocks[packed]
        blocks = math.ceil(shape[0] / block)
        size = shape[1] * (blocks * (block * width + 4) + math.ceil(blocks * width))
        others = self._held([value for value in constants if value != packed])
        return [self.builder.add_weight(size, dtype="u8"), *map(self._weight, others)]

    def _weights_inside(self, held: Iterable[Any]) -> list[int]:
        """Make one weight of all constants in a body, both branches of a choice, or a function."""
        size = sum(_bytes_of(self.onnx, tensor) for tensor in held)
        return [self.builder.add_weight(size)] if size else []

    def _weight(self, value: str) -> int:
        if value not in self._weights:
            held = self._initializers.get(value)
            dtype = self._dtype(value) if held is None else dtype_of(self.onnx, held.data_type)[0]
            self._weights[value] = self.builder.add_weight(self._constants[value], dtype=dtype)
        return self._weights[value]

    def _tensor(self, op: int, value: str) -> int:
        size, shape, dtype = self._size(value), self._shape(value), self._dtype(value)
        if value in self._made:
            size = 0.0  # its memory is that of the state
        if op < 0:
            return self.builder.add_input(size, shape=shape, dtype=dtype)
        return self.builder.add_tensor(op, size, shape=shape, dtype=dtype)

    def _shape(self, value: str) -> tuple[int, ...]:
        if value in self._dims:
            return self._dims[value]
        return extents(self._types[value]) if value in self._types else ()

    def _size(self, value: str) -> float:
        held = self._types.get(value)
        if held is None:
            return self._constants.get(value, 0.0)
        return _bytes(self.onnx, held.elem_type, self._shape(value))


def _bytes(onnx: Any, number: int, shape: tuple[int, ...]) -> float:
    return float(math.ceil(math.prod(shape) * dtype_of(onnx, number)[1]))


def _bytes_of(onnx: Any, tensor: Any) -> float:
    return _bytes(onnx, tensor.data_type, tuple(tensor.dims))

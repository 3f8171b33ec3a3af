"""Types and shapes of all values of an ONNX model: ONNX's own inference, then ONNX Runtime's.

ONNX cannot infer types behind operators of other domains, such as those of quantized models
(`com.microsoft`). ONNX Runtime can, for its own operators.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from placewright.frameworks.onnxruntime.flops import (
    bodies_of,
    constant_numbers,
    extents,
    initializer_names,
    values_read,
)
from placewright.io.model_parts import MAX_MESSAGE_BYTES

_LOG = logging.getLogger(__name__)
_FOLDER_ENTRY = "session.model_external_initializers_file_folder_path"
_MIXED_UP = "already exists"  # said of a number by ONNX's inference
_OTHER_RANK = "differ in rank"  # said of a stated shape by ONNX's inference
_ONNX_DOMAINS = ("", "ai.onnx")
_MOST_COMPUTED = 2**31  # elements; shapes are made from few numbers
_MOST_IN_ROWS = 2**24  # elements of all vectors, of each of which ONNX's inference makes a message
_FEW = 64  # numbers that may tell a shape

_DTYPES = {
    "FLOAT": ("f32", 4), "DOUBLE": ("f64", 8), "FLOAT16": ("f16", 2), "BFLOAT16": ("bf16", 2),
    "INT64": ("i64", 8), "INT32": ("i32", 4), "INT16": ("i16", 2), "INT8": ("i8", 1),
    "UINT64": ("u64", 8), "UINT32": ("u32", 4), "UINT16": ("u16", 2), "UINT8": ("u8", 1),
    "BOOL": ("boolean", 1), "INT4": ("i4", 0.5), "UINT4": ("u4", 0.5), "INT2": ("i2", 0.25),
    "UINT2": ("u2", 0.25), "FLOAT4E2M1": ("f4e2m1", 0.5), "COMPLEX64": ("complex64", 8),
    "COMPLEX128": ("complex128", 16),
}  # fmt: skip


def dtype_of(onnx: Any, number: int) -> tuple[str, float]:
    """Our name of an element type, and its bytes per element."""
    name = onnx.TensorProto.DataType.Name(number)
    return _DTYPES.get(name, (name.lower(), 1))


def set_input_shapes(model: Any, shapes: Mapping[str, Sequence[int]]) -> None:
    """Give inputs these dimensions, and outputs that are inputs, in place.

    Args:
        model: an ``onnx.ModelProto``.
        shapes: input name -> dimensions.
    """
    # Shapes that were inferred for open dimensions may contradict the fixed ones.
    model.graph.ClearField("value_info")
    for value in model.graph.output:
        for dimension in value.type.tensor_type.shape.dim:
            dimension.Clear()
    is_changed = any(
        [d.dim_value for d in value.type.tensor_type.shape.dim] != list(shapes[value.name])
        for value in model.graph.input
        if value.name in shapes
    )
    for node in model.graph.node if is_changed else ():  # ONNX does not infer all of them again
        _open_bodies(node)
    for value in (*model.graph.input, *model.graph.output):
        if value.name in shapes:
            dimensions = value.type.tensor_type.shape
            dimensions.ClearField("dim")
            for extent in shapes[value.name]:
                dimensions.dim.add().dim_value = extent


def _open_bodies(node: Any) -> None:
    """Open the dimensions that ONNX infers again in the bodies of a node, in place.

    Those of a loop's states stay, since ONNX hands no shape into a loop. Values that operators of
    other domains make keep their type and rank, which ONNX does not infer.
    """
    for body in bodies_of(node):
        made = {name: inner.domain for inner in body.node for name in inner.output}
        for at in reversed(range(len(body.value_info))):
            if made.get(body.value_info[at].name, "") in _ONNX_DOMAINS:
                del body.value_info[at]
        outputs = [value for value in body.output if value.name in made]
        for value in (*body.value_info, *outputs, *(body.input if node.op_type == "Scan" else ())):
            for dimension in value.type.tensor_type.shape.dim:
                dimension.Clear()
        for inner in body.node:
            _open_bodies(inner)


def with_all_types(onnx: Any, model: Any, folder: Path) -> Any:
    """Copy a model with all types and dimensions that ONNX and ONNX Runtime infer.

    Both compute whole tensors for numbers that tell a shape, which never ends for 2^40 elements.
    Such a model gets only the shapes that follow from other shapes.

    Args:
        model: with the dimensions of its inputs.
        folder: of the model's file and of the data files to which it refers.

    Raises:
        onnx.shape_inference.InferenceError: shapes contradict each other.
    """
    has_bodies = any(any(bodies_of(node)) for node in model.graph.node)
    asked = _with_constants_inside(onnx, model) if has_bodies else model
    inferred, computes = None, False
    if _is_small(with_inferred_types(onnx, asked, computes=False).graph):
        inferred = _with_computed_types(onnx, model)
    if inferred is None:
        inferred = with_inferred_types(onnx, model, computes=False)
    else:
        checked = _with_computed_types(onnx, asked) if has_bodies else inferred
        computes = checked is not None and _is_small(checked.graph)
    _add_types_of_runtime(onnx, inferred, folder, computes=computes)
    return inferred


def _is_small(graph: Any) -> bool:
    """True if no value of a known shape has more elements than may be computed."""
    values = (*graph.input, *graph.value_info, *graph.output)
    shapes = [extents(value.type.tensor_type) for value in values]
    rows = sum(shape[0] for shape in shapes if len(shape) == 1)
    own = rows <= _MOST_IN_ROWS and all(math.prod(shape) <= _MOST_COMPUTED for shape in shapes)
    return own and all(_is_small(body) for node in graph.node for body in bodies_of(node))


def _with_constants_inside(onnx: Any, model: Any) -> Any:
    """A copy whose bodies hold the few numbers around them, where ONNX does not look for them."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)

    def hand_down(graph: Any, around: dict[str, Any]) -> None:
        held = around | {t.name: t for t in graph.initializer if math.prod(t.dims) <= _FEW}
        for node in graph.node:
            read = [name for name in dict.fromkeys(values_read(node)) if name in held]
            for body in bodies_of(node):
                own = initializer_names(body) | {value.name for value in body.input}
                body.initializer.extend(held[name] for name in read if name not in own)
                hand_down(body, held)

    hand_down(copy.graph, {})
    return copy


def _with_computed_types(onnx: Any, model: Any) -> Any | None:
    """Copy a model with all types and dimensions that ONNX infers, those from numbers too.

    Returns:
        None if ONNX mixes up two branches that call their own values alike, as they may.

    Raises:
        onnx.shape_inference.InferenceError: shapes contradict each other.
    """
    try:
        return with_inferred_types(onnx, model)
    except onnx.shape_inference.InferenceError as error:
        if _MIXED_UP in str(error):
            return None
        raise


def with_inferred_types(onnx: Any, model: Any, *, computes: bool = True) -> Any:
    """Copy a model with the types and dimensions that ONNX infers.

    ONNX leaves the results of loops open, because a state may grow. Those of a state whose shape
    stays the same through the body are added here, and what follows from them.

    Args:
        computes: whether ONNX may compute numbers on which dimensions depend.

    Raises:
        onnx.shape_inference.InferenceError: shapes contradict each other.
    """
    inferred = _inferred(onnx, model, computes=computes)
    inner = inferred.graph
    type_of = {v.name: v.type for v in (*inner.input, *inner.value_info, *inner.output)}
    added = False
    for node in inner.node:
        is_loop = node.op_type == "Loop" and node.domain in _ONNX_DOMAINS
        for name, kind in _results_of_loop(onnx, inner, node, type_of) if is_loop else ():
            present = type_of.get(name)
            if present is not None and not _is_complete(present) and _adds(kind, present):
                present.CopyFrom(kind)
                added = True
    if not added:
        return inferred
    return _inferred(onnx, inferred, computes=computes)


def _inferred(onnx: Any, model: Any, *, computes: bool) -> Any:
    """A copy with what ONNX infers; outputs lose a wrong rank that the model states, in place.

    ONNX refuses a wrong rank, of which ONNX Runtime only warns. A right one may be all that is
    known of an output of a custom operator.
    """
    try:
        return _strictly_inferred(onnx, model, computes=computes)
    except onnx.shape_inference.InferenceError as error:
        if _OTHER_RANK not in str(error):
            raise
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    for value in bare.graph.output:
        if value.type.HasField("tensor_type"):  # else it would become one
            value.type.tensor_type.ClearField("shape")
    inferred = _strictly_inferred(onnx, bare, computes=computes)
    for stated, found in zip(model.graph.output, inferred.graph.output, strict=True):
        held, known = stated.type.tensor_type, found.type.tensor_type
        is_known = held.HasField("shape") and known.HasField("shape")
        if is_known and len(held.shape.dim) != len(known.shape.dim):
            held.ClearField("shape")
    return _strictly_inferred(onnx, model, computes=computes)


def _strictly_inferred(onnx: Any, model: Any, *, computes: bool) -> Any:
    """A copy with what ONNX infers, where sparse weights count as dense, as ONNX Runtime has them.

    ONNX gives them a type of their own, from which most operators infer nothing.
    """
    sparse = list(model.graph.sparse_initializer)
    if not sparse:
        return _inferred_by_onnx(onnx, model, computes=computes)
    asked = onnx.ModelProto()
    asked.CopyFrom(model)
    asked.graph.ClearField("sparse_initializer")
    stated = {value.name for value in asked.graph.input}
    added = [held for held in sparse if held.values.name not in stated]
    asked.graph.input.extend(
        onnx.helper.make_tensor_value_info(s.values.name, s.values.data_type, list(s.dims))
        for s in added
    )
    inferred = _inferred_by_onnx(onnx, asked, computes=computes)
    del inferred.graph.input[len(inferred.graph.input) - len(added) :]
    inferred.graph.sparse_initializer.extend(sparse)
    return inferred


def _inferred_by_onnx(onnx: Any, model: Any, *, computes: bool) -> Any:
    """A copy with what ONNX infers; shapes stored in bodies count only if they fit."""
    infer = onnx.shape_inference.infer_shapes
    try:
        return infer(model, strict_mode=True, data_prop=computes)
    except onnx.shape_inference.InferenceError:
        opened = onnx.ModelProto()
        opened.CopyFrom(model)
        for node in opened.graph.node:
            _open_bodies(node)
        return infer(opened, strict_mode=True, data_prop=computes)


def _results_of_loop(
    onnx: Any, graph: Any, node: Any, type_of: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    """Yield the results of a loop whose types do not change from turn to turn, and the types.

    There are none if a state enters with other dimensions than the body states for it: the body's
    may be of another batch.

    Args:
        type_of: value name -> type, for values of the graph.
    """
    (body,) = bodies_of(node)
    for entering, state in zip(node.input[2:], body.input[2:], strict=False):
        if _is_complete(state.type) and not _adds(state.type, type_of.get(entering)):
            return
    n_states = len(node.input) - 2
    trips = constant_numbers(onnx, graph).get(node.input[0])
    entered, left = body.input[1].name, body.output[0].name
    begins = {"", *_true_constants(onnx, graph)}
    runs_to_its_end = node.input[1] in begins and any(
        inner.op_type == "Identity" and (inner.input[0], inner.output[0]) == (entered, left)
        for inner in body.node
    )
    for at, name in enumerate(node.output):
        kind = body.output[1 + at].type
        if not name or not _is_complete(kind) or kind.WhichOneof("value") != "tensor_type":
            continue
        if at < n_states:
            if body.input[2 + at].type == kind:
                yield name, kind
        elif trips is not None and trips >= 0 and runs_to_its_end:
            dimensions = [trips, *(d.dim_value for d in kind.tensor_type.shape.dim)]
            yield name, onnx.helper.make_tensor_type_proto(kind.tensor_type.elem_type, dimensions)


def _true_constants(onnx: Any, graph: Any) -> Iterator[str]:
    """Yield the names of initializers that hold the truth value true."""
    for held in graph.initializer:
        is_truth = held.data_type == onnx.TensorProto.BOOL and math.prod(held.dims) == 1
        if is_truth and onnx.numpy_helper.to_array(held).all():
            yield held.name


def _add_types_of_runtime(onnx: Any, model: Any, folder: Path, *, computes: bool) -> None:
    """Add the types and dimensions that ONNX Runtime infers for values that lack them, in place.

    ONNX leaves dimensions open that follow from computed numbers, such as the entries of a
    ``Reshape`` behind a ``Shape``. ONNX Runtime computes the numbers that no input changes. Values
    stay as they are if ONNX Runtime is not installed or refuses the model.

    Args:
        model: after ONNX's own inference.
        folder: of the model's file and of the data files to which it refers.
        computes: whether ONNX Runtime may compute constants; a hostile model has endless ones.
    """
    inner = model.graph
    type_of = {value.name: value.type for value in (*inner.value_info, *inner.output)}
    made = {value for node in inner.node for value in node.output if value}
    missing = [name for name in made if not _is_complete(type_of.get(name))]
    if not missing:
        return
    asked = onnx.ModelProto()
    asked.CopyFrom(model)
    outputs = {value.name for value in inner.output}
    asked.graph.output.extend(
        onnx.ValueInfoProto(name=name) for name in sorted(missing) if name not in outputs
    )
    inferred = (_outputs(asked, folder, computes=True) if computes else None) or _outputs(
        asked, folder, computes=False
    )
    for name in sorted(missing):
        complete = _type(onnx, inferred[name]) if name in inferred else None
        if complete is None or not _adds(complete, type_of.get(name)):
            continue
        if name in type_of:
            type_of[name].CopyFrom(complete)
        else:
            inner.value_info.add(name=name).type.CopyFrom(complete)


def _is_complete(held: Any | None) -> bool:
    """True if a value has a type, and no open dimension; sequences and maps have none."""
    if held is None or not held.WhichOneof("value"):
        return False
    if held.WhichOneof("value") != "tensor_type":
        return True
    tensor = held.tensor_type
    return tensor.HasField("shape") and all(d.HasField("dim_value") for d in tensor.shape.dim)


def _adds(complete: Any, held: Any | None) -> bool:
    """True if a type agrees with all known dimensions of the present type, which it replaces."""
    if held is None or not held.WhichOneof("value") or not held.tensor_type.HasField("shape"):
        return True
    before, after = held.tensor_type.shape.dim, complete.tensor_type.shape.dim
    return len(before) == len(after) and all(
        not b.HasField("dim_value") or (a.HasField("dim_value") and a.dim_value == b.dim_value)
        for b, a in zip(before, after, strict=True)
    )


def _outputs(model: Any, folder: Path, *, computes: bool) -> dict[str, Any]:
    """Output name -> ONNX Runtime's description of it; nothing is run but constants."""
    try:
        import onnxruntime
    except ImportError:
        return {}
    if model.ByteSize() > MAX_MESSAGE_BYTES:
        return {}
    levels = onnxruntime.GraphOptimizationLevel
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = (
        levels.ORT_ENABLE_BASIC if computes else levels.ORT_DISABLE_ALL
    )
    options.log_severity_level = 4
    options.add_session_config_entry(_FOLDER_ENTRY, str(folder))
    try:
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # ONNX Runtime has a class of its own for each status
        _LOG.debug("ONNX Runtime infers no types: %s", error)
        return {}
    return {value.name: value for value in session.get_outputs()}


def _type(onnx: Any, value: Any) -> Any | None:
    """A tensor's type, with open dimensions left open; None for values that are no tensors."""
    kind = value.type.removeprefix("tensor(").removesuffix(")")
    number = kind.upper()
    numbers = onnx.TensorProto.DataType
    if not value.type.startswith("tensor(") or number not in list(numbers.keys()):
        return None
    # An empty list stands for a scalar as well as for an unknown rank.
    shape = [d if isinstance(d, int) and d >= 0 else None for d in value.shape] or None
    return onnx.helper.make_tensor_type_proto(numbers.Value(number), shape)

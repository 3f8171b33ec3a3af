"""Types and shapes of all values of an ONNX model: ONNX's own inference, then ONNX Runtime's.

ONNX cannot infer types behind operators of other domains, such as those of quantized models
(`com.microsoft`). ONNX Runtime can, for its own operators.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_LOG = logging.getLogger(__name__)
_FOLDER_ENTRY = "session.model_external_initializers_file_folder_path"
_LARGEST_MESSAGE = (1 << 31) - 1  # bytes of a protocol buffer


def set_input_shapes(model: Any, shapes: Mapping[str, Sequence[int]]) -> None:
    """Give inputs these dimensions, in place.

    Args:
        model: an ``onnx.ModelProto``.
        shapes: input name -> dimensions.
    """
    for value in model.graph.input:
        if value.name in shapes:
            dimensions = value.type.tensor_type.shape
            dimensions.ClearField("dim")
            for extent in shapes[value.name]:
                dimensions.dim.add().dim_value = extent
    # Shapes that were inferred for open dimensions may contradict the fixed ones.
    model.graph.ClearField("value_info")
    for value in model.graph.output:
        for dimension in value.type.tensor_type.shape.dim:
            dimension.Clear()


def with_all_types(onnx: Any, model: Any, folder: Path) -> None:
    """Add the types that ONNX Runtime infers for values without a type, in place.

    Values stay without a type if ONNX Runtime is not installed or refuses the model.

    Args:
        onnx: the library.
        model: after ONNX's own inference.
        folder: of the model's file and of the data files to which it refers.
    """
    inner = model.graph
    known = {value.name for value in (*inner.input, *inner.output, *inner.value_info)}
    known |= {held.name for held in inner.initializer}  # membership only
    missing = [
        value for node in inner.node for value in node.output if value and value not in known
    ]
    untyped = {value.name for value in inner.output if not value.type.WhichOneof("value")}
    if not missing and not untyped:
        return
    asked = onnx.ModelProto()
    asked.CopyFrom(model)
    asked.graph.output.extend(onnx.ValueInfoProto(name=name) for name in missing)
    inferred = _outputs(asked, folder)
    for value in inner.output:
        if value.name in untyped and value.name in inferred:
            value.type.CopyFrom(_type(onnx, inferred[value.name]) or value.type)
    for name in missing:
        inferred_type = _type(onnx, inferred[name]) if name in inferred else None
        if inferred_type is not None:
            inner.value_info.add(name=name).type.CopyFrom(inferred_type)


def _outputs(model: Any, folder: Path) -> dict[str, Any]:
    """Output name -> ONNX Runtime's description of it; nothing is computed."""
    try:
        import onnxruntime
    except ImportError:
        return {}
    if model.ByteSize() > _LARGEST_MESSAGE:
        return {}
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
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

"""Types and shapes of all values of an ONNX model: ONNX's own inference, then ONNX Runtime's.

ONNX knows nothing of operators of other domains, such as those of quantized models
(`com.microsoft`), and so of nothing that follows them. ONNX Runtime knows its own operators.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

_LOG = logging.getLogger(__name__)
_FOLDER_ENTRY = "session.model_external_initializers_file_folder_path"
_LARGEST_MESSAGE = (1 << 31) - 1  # bytes of a protocol buffer


def with_all_types(onnx: Any, model: Any, folder: Path) -> None:
    """Add what ONNX Runtime knows of values that have no type yet, in place.

    Values stay without a type where ONNX Runtime is missing or refuses the model.

    Args:
        onnx: the library.
        model: after ONNX's own inference.
        folder: of the model's file, where data outside of it lies.
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
    found = _outputs(asked, folder)
    for value in inner.output:
        if value.name in untyped and value.name in found:
            value.type.CopyFrom(_type(onnx, found[value.name]) or value.type)
    for name in missing:
        held = _type(onnx, found[name]) if name in found else None
        if held is not None:
            inner.value_info.add(name=name).type.CopyFrom(held)


def _outputs(model: Any, folder: Path) -> dict[str, Any]:
    """Name -> what ONNX Runtime says of each output; nothing is computed for it."""
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
        _LOG.debug("ONNX Runtime tells no types: %s", error)
        return {}
    return {value.name: value for value in session.get_outputs()}


def _type(onnx: Any, value: Any) -> Any | None:
    """A tensor's type with its dimensions, open ones left open; None for other values."""
    kind = value.type.removeprefix("tensor(").removesuffix(")")
    number = kind.upper()
    numbers = onnx.TensorProto.DataType
    if not value.type.startswith("tensor(") or number not in list(numbers.keys()):
        return None
    # No dimensions at all stand for a scalar as for an unknown rank.
    shape = [one if isinstance(one, int) and one >= 0 else None for one in value.shape] or None
    return onnx.helper.make_tensor_type_proto(numbers.Value(number), shape)

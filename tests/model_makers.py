"""Small model files made without OpenVINO: what other tools would write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

# y = relu(x W + b) with x (batch, 4) and W (4, 3): 2 * 4 * 3 operations and 3 + 3 per row.
WEIGHT = np.arange(12, dtype=np.float32).reshape(4, 3) / 10
BIAS = np.array([0.5, -1.0, 0.25], dtype=np.float32)


def write_onnx(path: Path, *, external: str | None = None, batch: int | str = 1) -> None:
    """An ONNX model; with `external` its weight lies in the file of that name beside it."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weight, bias = numpy_helper.from_array(WEIGHT, "w"), numpy_helper.from_array(BIAS, "b")
    if external is not None:
        weight.ClearField("raw_data")
        weight.data_location = TensorProto.EXTERNAL
        for key, value in (("location", external), ("offset", "0"), ("length", "48")):
            entry = weight.external_data.add()
            entry.key, entry.value = key, value
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["product"], name="dense/product"),
            helper.make_node("Add", ["product", "b"], ["sum"], name="dense/sum"),
            helper.make_node("Relu", ["sum"], ["y"], name="activation"),
        ],
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 3])],
        [weight, bias],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.write_bytes(model.SerializeToString())
    assert onnx.__version__


def graph_def() -> bytes:
    """A TensorFlow GraphDef of the same model, in wire format."""
    float32 = _number(6, 1)  # AttrValue.type = DT_FLOAT
    placeholder = _node("x", "Placeholder", [], dtype=float32, shape=_bytes(7, _shape((1, 4))))
    weight = _node("w", "Const", [], dtype=float32, value=_bytes(8, _tensor(WEIGHT)))
    product = _node("product", "MatMul", ["x", "w"], T=float32)
    relu = _node("y", "Relu", ["product"], T=float32)
    return b"".join(_bytes(1, node) for node in (placeholder, weight, product, relu))


def saved_model() -> bytes:
    """A SavedModel with that graph, one tag and no variables."""
    meta = _bytes(1, _bytes(4, b"serve")) + _bytes(2, graph_def())
    signature = (
        _bytes(1, _bytes(1, b"x") + _bytes(2, _bytes(1, b"x:0") + _number(2, 1)))
        + _bytes(2, _bytes(1, b"y") + _bytes(2, _bytes(1, b"y:0") + _number(2, 1)))
        + _bytes(3, b"tensorflow/serving/predict")
    )
    meta += _bytes(5, _bytes(1, b"serving_default") + _bytes(2, signature))
    return _number(1, 1) + _bytes(2, meta)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _shape(extents: tuple[int, ...]) -> bytes:
    return b"".join(_bytes(2, _number(1, extent)) for extent in extents)


def _tensor(values: np.ndarray[Any, Any]) -> bytes:
    return _number(1, 1) + _bytes(2, _shape(values.shape)) + _bytes(4, values.tobytes())


def _node(name: str, kind: str, inputs: list[str], **attributes: bytes) -> bytes:
    node = _bytes(1, name.encode()) + _bytes(2, kind.encode())
    node += b"".join(_bytes(3, source.encode()) for source in inputs)
    for key, value in attributes.items():
        node += _bytes(5, _bytes(1, key.encode()) + _bytes(2, value))
    return node

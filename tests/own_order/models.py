"""One small function of three inputs and two outputs of equal shapes, in every format.

    shallow = a - 2 b + 5 c        deep = (shallow * a - c) * b + 3 a

Any exchange of two inputs, or of the outputs, gives other numbers. A depth-first walk from the
outputs meets inputs and outputs in another order than the model lists them.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from model_makers import _bytes, _node, _number, _shape, _tensor

SHAPE = (2, 3)
INPUTS, OUTPUTS = ("a", "b", "c"), ("deep", "shallow")
Array = np.ndarray[Any, Any]


def values(seed: int = 7, shape: tuple[int, ...] = SHAPE) -> dict[str, Array]:
    """Values of the inputs."""
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape).astype(np.float32) for name in INPUTS}


def by_hand(a: Array, b: Array, c: Array) -> dict[str, Array]:
    """The function in plain NumPy: the independent side of every test here."""
    shallow = a - 2 * b + 5 * c
    return {"deep": (shallow * a - c) * b + 3 * a, "shallow": shallow}


def write_xml(path: Path) -> None:
    """With OpenVINO's own operators."""
    import openvino

    op = openvino.opset13
    a, b, c = (op.parameter(SHAPE, np.float32, name=name) for name in INPUTS)
    for port, name in zip((a, b, c), INPUTS, strict=True):
        port.output(0).set_names({name})
    two, three, five = (op.constant(np.float32(k)) for k in (2, 3, 5))
    shallow = op.add(op.subtract(a, op.multiply(b, two)), op.multiply(c, five))
    inner = op.multiply(op.subtract(op.multiply(shallow, a), c), b)
    deep = op.add(inner, op.multiply(a, three))
    results = [op.result(deep), op.result(shallow)]
    for result, name in zip(results, OUTPUTS, strict=True):
        result.output(0).set_names({name})
    openvino.save_model(openvino.Model(results, [a, b, c]), str(path), compress_to_fp16=False)


def write_onnx(path: Path) -> None:
    """Node by node."""
    import onnx
    from onnx import TensorProto, helper

    def value(name: str) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE)

    steps = [
        ("Mul", ["b", "two"], "b2"),
        ("Mul", ["c", "five"], "c5"),
        ("Sub", ["a", "b2"], "left"),
        ("Add", ["left", "c5"], "shallow"),
        ("Mul", ["shallow", "a"], "product"),
        ("Sub", ["product", "c"], "difference"),
        ("Mul", ["difference", "b"], "inner"),
        ("Mul", ["a", "three"], "a3"),
        ("Add", ["inner", "a3"], "deep"),
    ]
    nodes = [helper.make_node(kind, read, [made], name=f"n/{made}") for kind, read, made in steps]
    numbers = {"two": 2.0, "three": 3.0, "five": 5.0}
    constants = [helper.make_tensor(n, TensorProto.FLOAT, [], [v]) for n, v in numbers.items()]
    listed = [value(name) for name in INPUTS], [value(name) for name in OUTPUTS]
    graph = helper.make_graph(nodes, "function", *listed, constants)
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), str(path))


def graph_def() -> bytes:
    """A TensorFlow GraphDef."""
    float32 = _number(6, 1)
    nodes = [
        _node(name, "Placeholder", [], dtype=float32, shape=_bytes(7, _shape(SHAPE)))
        for name in INPUTS
    ]
    for name, number in (("two", 2), ("three", 3), ("five", 5)):
        held = _bytes(8, _tensor(np.full((1,), number, np.float32)))
        nodes.append(_node(name, "Const", [], dtype=float32, value=held))
    steps = [
        ("b2", "Mul", ["b", "two"]),
        ("c5", "Mul", ["c", "five"]),
        ("left", "Sub", ["a", "b2"]),
        ("sum", "AddV2", ["left", "c5"]),
        ("product", "Mul", ["sum", "a"]),
        ("difference", "Sub", ["product", "c"]),
        ("inner", "Mul", ["difference", "b"]),
        ("a3", "Mul", ["a", "three"]),
        ("deep", "AddV2", ["inner", "a3"]),
        ("shallow", "Identity", ["sum"]),
    ]
    nodes += [_node(name, kind, read, T=float32) for name, kind, read in steps]
    return b"".join(_bytes(1, node) for node in nodes)


def write_pb(path: Path) -> None:
    """A frozen TensorFlow graph."""
    path.write_bytes(graph_def())


def write_saved_model(path: Path) -> None:
    """A SavedModel folder whose signature lists the inputs in another order than the graph."""

    def entry(field: int, name: str) -> bytes:
        told = _bytes(1, f"{name}:0".encode()) + _number(2, 1)
        return _bytes(field, _bytes(1, name.encode()) + _bytes(2, told))

    signature = b"".join(entry(1, name) for name in ("c", "a", "b"))
    signature += b"".join(entry(2, name) for name in OUTPUTS)
    signature += _bytes(3, b"tensorflow/serving/predict")
    meta = _bytes(1, _bytes(4, b"serve")) + _bytes(2, graph_def())
    meta += _bytes(5, _bytes(1, b"serving_default") + _bytes(2, signature))
    path.mkdir()
    (path / "saved_model.pb").write_bytes(_number(1, 1) + _bytes(2, meta))


def write_pt2(path: Path) -> None:
    """A program of ``torch.export``."""
    path.write_bytes(_exported())


@cache
def _exported() -> bytes:
    """Two inputs by position and one by name, outputs in a dictionary; the bytes are kept.

    Files with the same bytes are converted for OpenVINO and ONNX Runtime once.
    """
    import torch

    class Function(torch.nn.Module):
        def forward(self, a: Any, b: Any, *, c: Any) -> dict[str, Any]:
            shallow = a - 2 * b + 5 * c
            return {"deep": (shallow * a - c) * b + 3 * a, "shallow": shallow}

    a, b, c = (torch.from_numpy(value) for value in values(1).values())
    file = io.BytesIO()
    torch.export.save(torch.export.export(Function(), (a, b), {"c": c}), file)
    return file.getvalue()


WRITERS: Mapping[str, Callable[[Path], None]] = {
    "m.xml": write_xml,
    "m.onnx": write_onnx,
    "m.pb": write_pb,
    "saved": write_saved_model,
    "m.pt2": write_pt2,
}
RUNTIMES_OF: Mapping[str, tuple[str, ...]] = {
    "m.xml": ("openvino",),
    "m.onnx": ("openvino", "onnxruntime"),
    "m.pb": ("openvino",),
    "saved": ("openvino",),
    "m.pt2": ("openvino", "onnxruntime", "torch"),
}
CASES = [(name, runtime) for name, runtimes in RUNTIMES_OF.items() for runtime in runtimes]

"""Shapes behind computed numbers: those that ONNX Runtime really computes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import placewright as pw

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")


def halving_model(path: Path) -> None:
    """A model whose second half has half the rows of ``x``, by arithmetic on its shape."""
    node, info = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    floats, integers = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Cast", ["shape"], ["real"], to=floats),
        node("Div", ["real", "factors"], ["halved"]),
        node("Ceil", ["halved"], ["whole"]),
        node("Cast", ["whole"], ["target"], to=integers),
        node("Reshape", ["x", "target"], ["y"]),
        node("Softmax", ["y"], ["probabilities"]),
        node("NonZero", ["probabilities"], ["places"]),
    ]
    graph = onnx.helper.make_graph(
        nodes,
        "halving",
        [info("x", floats, ["rows", 6])],
        [info("probabilities", floats, None), info("places", integers, None)],
        [onnx.helper.make_tensor("factors", floats, [2], [2.0, 0.5])],
    )
    opset = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=9), path)


def computed_shapes(path: Path, x: np.ndarray) -> dict[str, tuple[int, ...]]:
    """Value name -> shape of the array that ONNX Runtime computes for it."""
    model = onnx.load(path)
    held = {value.name for value in model.graph.output}
    names = [name for node in model.graph.node for name in node.output if name not in held]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    outputs = session.run(None, {"x": x})
    return {v.name: a.shape for v, a in zip(session.get_outputs(), outputs, strict=True)}


def test_dimensions_follow_from_computed_numbers(tmp_path: Path) -> None:
    path = tmp_path / "halving.onnx"
    halving_model(path)
    computed = computed_shapes(path, np.ones((8, 6), np.float32))
    read = pw.read(path, runtime="onnxruntime", shapes={"x": (8, 6)})
    graph = read.graph
    tensor = int(graph.op_outputs.row(graph.op_kinds.index("Softmax"))[0])
    assert graph.tensor_shapes[tensor] == computed["probabilities"] == (4, 12)
    assert graph.tensor_bytes[tensor] == 4 * 4 * 12


def test_a_size_that_depends_on_data_stays_open(tmp_path: Path) -> None:
    path = tmp_path / "halving.onnx"
    halving_model(path)
    read = pw.read(path, runtime="onnxruntime", shapes={"x": (8, 6)})
    tensor = int(read.graph.op_outputs.row(read.graph.op_kinds.index("NonZero"))[0])
    assert read.graph.tensor_shapes[tensor] == (2, 1), "as docs/reference says"


def test_nothing_is_computed_if_a_computed_shape_is_huge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Constants of 2^33 elements: ONNX Runtime would fill them while the model is read."""
    node, info = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    floats, integers = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
    nodes = [
        node("Mul", ["a", "b"], ["shape"]),
        node("ConstantOfShape", ["shape"], ["huge"]),
        node("ReduceSum", ["huge"], ["sum"], keepdims=0),
        node("Add", ["x", "sum"], ["y"]),
        node("NonZero", ["x"], ["places"]),  # whose size stays open, so that ONNX Runtime is asked
    ]
    constants = [
        onnx.helper.make_tensor(name, integers, [2], numbers)
        for name, numbers in (("a", [2**16, 1]), ("b", [1, 2**17]))
    ]
    ends = [info("x", floats, [2])], [info("y", floats, [2]), info("places", integers, None)]
    graph = onnx.helper.make_graph(nodes, "huge", *ends, constants)
    opset = [onnx.helper.make_opsetid("", 17)]
    path = tmp_path / "huge.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=9), path)
    levels = []

    def refused(model: bytes, options: onnxruntime.SessionOptions, **_: object) -> None:
        levels.append(options.graph_optimization_level)
        raise RuntimeError("not asked for here")

    monkeypatch.setattr(onnxruntime, "InferenceSession", refused)
    pw.read(path, runtime="onnxruntime")
    assert levels == [onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL]

"""Shapes behind computed numbers: those that ONNX Runtime really computes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import placewright as pw
from placewright.frameworks.onnxruntime.value_types import set_input_shapes, with_inferred_types

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


def shape_in(values: Iterable[Any], name: str) -> list[int] | None:
    """Dimensions of a value, open ones 0; None if its rank is open."""
    tensor = next(value.type.tensor_type for value in values if value.name == name)
    return [d.dim_value for d in tensor.shape.dim] if tensor.HasField("shape") else None


def model_of(nodes: list[Any], outputs: list[Any], x: list[Any]) -> Any:
    """A model with input x, and five as `trips`."""
    helper, floats = onnx.helper, onnx.TensorProto.FLOAT
    trips = onnx.numpy_helper.from_array(np.array(5), "trips")
    inputs = [helper.make_tensor_value_info("x", floats, x)]
    opset = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, [trips])
    return helper.make_model(graph, opset_imports=opset, ir_version=9)


def test_a_body_keeps_the_rank_of_values_that_onnx_cannot_infer() -> None:
    """Their dimensions are those of another batch."""
    helper, floats = onnx.helper, onnx.TensorProto.FLOAT

    def branch(name: str) -> Any:
        made = helper.make_node("Own", ["x"], ["own"], domain="mine")
        nodes = [
            made,
            helper.make_node("Exp", ["own"], ["mid"]),
            helper.make_node("Exp", ["mid"], ["inner"]),
        ]
        own, mid, inner = (
            helper.make_tensor_value_info(value, floats, [1, 4])
            for value in ("own", "mid", "inner")
        )
        return helper.make_graph(nodes, name, [], [inner], value_info=[own, mid])

    choice = helper.make_node(
        "If", ["c"], ["y"], then_branch=branch("then"), else_branch=branch("else")
    )
    model = model_of([choice], [helper.make_tensor_value_info("y", floats, None)], ["batch", 4])
    set_input_shapes(model, {"x": (3, 4)})
    body = model.graph.node[0].attribute[0].g
    assert [value.name for value in body.value_info] == ["own"]
    assert shape_in(body.value_info, "own") == [0, 0]
    assert body.value_info[0].type.tensor_type.elem_type == floats


def test_states_of_a_loop_that_were_stored_for_another_batch_give_no_result() -> None:
    """The results had one row, whatever entered."""
    helper, numbers = onnx.helper, onnx.TensorProto
    value = helper.make_tensor_value_info
    inside = helper.make_graph(
        [helper.make_node("Identity", ["again"], ["on"]),
         helper.make_node("Exp", ["state"], ["next"]),
         helper.make_node("Neg", ["next"], ["seen"])],
        "body",
        [value("turn", numbers.INT64, []), value("again", numbers.BOOL, []),
         value("state", numbers.FLOAT, [1, 4])],
        [value("on", numbers.BOOL, []), value("next", numbers.FLOAT, [1, 4]),
         value("seen", numbers.FLOAT, [1, 4])],
    )  # fmt: skip
    loop = helper.make_node("Loop", ["trips", "", "x"], ["last", "all"], body=inside)
    outputs = [value(name, numbers.FLOAT, None) for name in ("last", "all")]
    for rows, expected in ((1, [[1, 4], [5, 1, 4]]), (2, [])):
        model = model_of([loop], outputs, ["batch", 4])
        set_input_shapes(model, {"x": (rows, 4)})
        made = with_inferred_types(onnx, model).graph.output
        shapes = [shape_in(made, name) for name in ("last", "all")]
        assert [shape for shape in shapes if shape and all(shape)] == expected


def test_a_wrong_rank_of_one_output_leaves_the_rank_of_another() -> None:
    """It may be all that is known of what a custom operator makes."""
    helper, floats = onnx.helper, onnx.TensorProto.FLOAT
    nodes = [
        helper.make_node("Relu", ["x"], ["y"]),
        helper.make_node("Own", ["x"], ["z"], domain="mine"),
    ]
    outputs = [
        helper.make_tensor_value_info("y", floats, ["wrong"]),
        helper.make_tensor_value_info("z", floats, ["a", "b", "c"]),
    ]
    inferred = with_inferred_types(onnx, model_of(nodes, outputs, [2, 4])).graph.output
    assert shape_in(inferred, "y") == [2, 4]
    assert shape_in(inferred, "z") == [0, 0, 0]

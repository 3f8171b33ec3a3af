"""Inputs that always have the same value: `values=`, ``--value``, and what a plan says of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

import placewright as pw
from placewright.errors import FieldError, InputError, RuntimeFailure, UnknownNameError

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def saved(path: Path, nodes: list[object], inputs: list[object]) -> str:
    outputs = [helper.make_tensor_value_info("y", FLOAT, None)]
    graph = helper.make_graph(nodes, "small", inputs, outputs)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.write_bytes(made.SerializeToString())
    return str(path)


def scaled(path: Path) -> str:
    """y = relu(x s) with a single number s."""
    inputs = [
        helper.make_tensor_value_info("x", FLOAT, [1, 4]),
        helper.make_tensor_value_info("s", FLOAT, []),
    ]
    nodes = [
        helper.make_node("Mul", ["x", "s"], ["m"], name="scale"),
        helper.make_node("Relu", ["m"], ["y"], name="relu"),
    ]
    return saved(path, nodes, inputs)


def branched(path: Path) -> str:
    """y = 2 x where rate is 16000; else x, turned as a matrix, which it is not if it has 4 columns.

    ONNX Runtime follows the other branch as well when it makes a session for fixed shapes.
    """

    def constant(name: str, value: int) -> object:
        tensor = helper.make_tensor(name, INT64, [], [value])
        return helper.make_node("Constant", [], [name], value=tensor)

    def branch(output: str, *nodes: object) -> object:
        told = helper.make_tensor_value_info(output, FLOAT, None)
        return helper.make_graph(list(nodes), output, [], [told])

    flat = branch("flat", helper.make_node("Squeeze", ["x"], ["flat"]))
    kept = branch("kept", helper.make_node("Identity", ["x"], ["kept"]))
    then = branch("double", helper.make_node("Add", ["x", "x"], ["double"]))
    otherwise = branch(
        "turned",
        helper.make_node("Shape", ["x"], ["extents"]),
        constant("one", 1),
        helper.make_node("Gather", ["extents", "one"], ["columns"]),
        constant("four", 4),
        helper.make_node("Equal", ["columns", "four"], ["is_four"]),
        helper.make_node("If", ["is_four"], ["some"], then_branch=flat, else_branch=kept),
        helper.make_node("Transpose", ["some"], ["turned"], perm=[1, 0]),
    )
    nodes = [
        constant("high", 16000),
        helper.make_node("Equal", ["rate", "high"], ["is_high"], name="equal"),
        helper.make_node(
            "If", ["is_high"], ["z"], then_branch=then, else_branch=otherwise, name="if"
        ),
        helper.make_node("Relu", ["z"], ["y"], name="relu"),
    ]
    inputs = [
        helper.make_tensor_value_info("x", FLOAT, [1, 4]),
        helper.make_tensor_value_info("rate", INT64, []),
    ]
    return saved(path, nodes, inputs)


QUICK = {
    "devices": "cpu:0,cpu:1", "quick": True, "calibrate": False, "check": False,
    "placer": "local-search", "evaluations": 20,
}  # fmt: skip
X = np.array([[1, -2, 3, 4]], np.float32)


@pytest.mark.parametrize("runtime", ["openvino", "onnxruntime"])
def test_an_input_may_be_a_single_number(tmp_path: Path, runtime: str) -> None:
    plan = pw.place(scaled(tmp_path / "scaled.onnx"), runtime=runtime, **QUICK)
    by_name = pw.run(plan, {"x": X, "s": np.float32(3)})
    assert by_name["y"].tolist() == [[3, 0, 9, 12]]
    assert pw.run(plan, [X, np.array(0.5, np.float32)])[0].tolist() == [[0.5, 0, 1.5, 2]]


def test_a_fixed_value_is_used_everywhere(tmp_path: Path) -> None:
    name, file = branched(tmp_path / "branched.onnx"), tmp_path / "plan.json"
    with pytest.raises(RuntimeFailure, match="argument `values` fixes what they hold"):
        pw.profile(name, runtime="onnxruntime", devices="cpu:0", quick=True)
    plan = pw.place(name, runtime="onnxruntime", values={"rate": 16000}, **{**QUICK, "check": True})
    pw.write_plan(file, plan)
    assert json.loads(file.read_text())["model"]["values"] == {"rate": [16000]}
    stored = pw.read_plan(file)
    doubled = [[2, 0, 6, 8]]
    assert pw.run(stored, {"x": X})["y"].tolist() == doubled
    assert pw.run(stored, [X])[0].tolist() == doubled
    assert pw.run(stored, [X, np.array(16000)])[0].tolist() == doubled
    with pytest.raises(InputError, match="input 'rate' always is 16000 here"):
        pw.run(stored, {"x": X, "rate": np.array(8000)})
    with pytest.raises(InputError, match=r"input 'x' .* has no value"):
        pw.run(stored, {})


def test_a_plan_whose_value_was_edited_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    given = {"s": 2.0}
    pw.write_plan(file, pw.place(scaled(tmp_path / "scaled.onnx"), values=given, **QUICK))
    document = json.loads(file.read_text())
    document["model"]["values"]["s"] = [3.0]
    file.write_text(json.dumps(document))
    with pytest.raises(InputError, match=r"model.values.s is \[3.0\], its problem has \[2.0\]"):
        pw.read_plan(file)


def test_values_make_another_model(tmp_path: Path) -> None:
    """What was measured with one value is not taken for another: a branch may be another."""
    from placewright.profiling.profile import model_identity

    name = scaled(tmp_path / "scaled.onnx")
    found = [pw.read(name, values={"s": value}) for value in (1.0, 2.0)]
    keys = [model_identity(model.graph, model.source) for model in (*found, pw.read(name))]
    assert len(dict.fromkeys(keys)) == 3


@pytest.mark.parametrize(
    ("values", "told"),
    [
        (["rate=fast"], "values: expects NAME=16000 or NAME=1,2,3, got 'rate=fast'"),
        (["rate=nan"], "values: expects NAME=16000 or NAME=1,2,3, got 'rate=nan'"),
        (["rate=0.5"], "values: input 'rate' is i64, got 0.5"),
        ({"rate": 2**63}, "values: input 'rate' is i64, got 9223372036854775808"),
        ({"x": [1, 2]}, r"values: gives input 'x' \[1, 4\] 2 numbers; expected 1 or 4"),
    ],
)
def test_a_wrong_value_is_one_line(tmp_path: Path, values: object, told: str) -> None:
    name = branched(tmp_path / "branched.onnx")
    with pytest.raises(InputError, match=told) as caught:
        pw.read(name, runtime="onnxruntime", values=values)
    assert "\n" not in str(caught.value)


def test_a_value_for_nothing_is_refused(tmp_path: Path) -> None:
    name = branched(tmp_path / "branched.onnx")
    with pytest.raises(UnknownNameError, match=r"unknown model input 'r'; .*available: x, rate"):
        pw.read(name, runtime="onnxruntime", values={"r": 1})


def test_a_model_that_was_read_is_not_read_in_another_way(tmp_path: Path) -> None:
    model = pw.read(scaled(tmp_path / "m.onnx"), runtime="onnxruntime")
    for words, told in (
        ({"shapes": {"x": (2, 4)}}, "shapes: says how a model is read, but 'the model' was read"),
        ({"objective": "training"}, "training: 'the model' was read for inference"),
    ):
        with pytest.raises(FieldError, match=told):
            pw.place(model, devices="cpu:0", quick=True, evaluations=1, **words)  # type: ignore[arg-type]

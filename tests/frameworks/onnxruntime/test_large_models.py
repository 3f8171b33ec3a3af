"""Models that are too large for one message, or would be if somebody computed their constants."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx.shape_inference
import onnxruntime
import pytest
from onnx import TensorProto, helper

from placewright.errors import FileFormatError, InputError
from placewright.frameworks.onnxruntime.reader import read_onnx
from placewright.frameworks.onnxruntime.runtime import OnnxRuntime

MEBIBYTE = 1 << 20


def test_more_brain_floats_than_a_message_holds_are_refused(tmp_path: Path) -> None:
    """Each of 2100 weights is the same mebibyte of a file, which nobody reads."""
    path = tmp_path / "model.onnx"
    (tmp_path / "w.bin").write_bytes(bytes(MEBIBYTE))
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", ends[:1], ends[1:])
    for at in range(2100):
        held = graph.initializer.add(name=f"w{at}", data_type=TensorProto.BFLOAT16)
        held.dims.append(MEBIBYTE // 2)
        held.data_location = TensorProto.EXTERNAL
        for key, value in (("location", "w.bin"), ("length", str(MEBIBYTE))):
            held.external_data.add(key=key, value=value)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.write_bytes(model.SerializeToString())
    read, source = read_onnx(path)
    with pytest.raises(InputError, match=rf"has {2100 * MEBIBYTE} bytes of weights that sessions"):
        OnnxRuntime().load(source, read)


def choice(path: Path, *, side: int, where: str, mark: bool = True) -> Path:
    """A model with constants of side x side elements in both branches.

    Args:
        where: "around" or "inside" the branches are the two numbers whose product is the shape.
        mark: whether the branches call their own values differently.
    """
    value = helper.make_tensor_value_info

    def numbers(end: str) -> list[Any]:
        return [
            helper.make_tensor(name + end, TensorProto.INT64, [2], pair)
            for name, pair in (("a", [side, 1]), ("b", [1, side]))
        ]

    def branch(name: str) -> Any:
        end, held = name if mark else "", name if where == "inside" else ""
        nodes = [
            helper.make_node("Mul", [f"a{held}", f"b{held}"], [f"shape{end}"]),
            helper.make_node("ConstantOfShape", [f"shape{end}"], [f"huge{end}"]),
            helper.make_node("ReduceSum", [f"huge{end}"], [f"sum{end}"], keepdims=0),
            helper.make_node("Add", ["x", f"sum{end}"], [f"out{name}"]),
        ]
        out = [value(f"out{name}", TensorProto.FLOAT, [2])]
        return helper.make_graph(nodes, name, [], out, numbers(name) if held else [])

    nodes = [
        helper.make_node("ReduceSum", ["x"], ["t"], keepdims=0),
        helper.make_node("Cast", ["t"], ["on"], to=TensorProto.BOOL),
        helper.make_node("If", ["on"], ["y"], then_branch=branch("p"), else_branch=branch("q")),
        helper.make_node("NonZero", ["x"], ["places"]),  # whose size stays open
    ]
    ends = [value("y", TensorProto.FLOAT, [2]), value("places", TensorProto.INT64, None)]
    held = numbers("") if where == "around" else []
    graph = helper.make_graph(nodes, "g", [value("x", TensorProto.FLOAT, [2])], ends, held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize("where", ["around", "inside"])
@pytest.mark.parametrize("side", [2, 2**17])
def test_huge_constants_of_branches_are_not_computed(
    side: int, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = choice(tmp_path / "choice.onnx", side=side, where=where)
    levels = []

    def refused(model: bytes, options: onnxruntime.SessionOptions, **_: object) -> None:
        levels.append(options.graph_optimization_level)
        raise RuntimeError("not asked for here")

    monkeypatch.setattr(onnxruntime, "InferenceSession", refused)
    graph, source = read_onnx(path)
    computing = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    assert (computing in levels) == (side == 2)
    read = list(levels)
    OnnxRuntime().load(source, graph)
    assert levels[len(read) :] == read, "a run computes what a reading does, and no more"


def vector(path: Path, length: int) -> Path:
    """A model with a constant vector, whose numbers ONNX's inference would list one by one."""
    value, one = (
        helper.make_tensor_value_info,
        helper.make_tensor("one", TensorProto.INT64, [1], [1]),
    )
    nodes = [
        helper.make_node("ConstantOfShape", ["length"], ["vector"], value=one),
        helper.make_node("Cast", ["vector"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["floats"], ["sum"], keepdims=0),
        helper.make_node("Add", ["x", "sum"], ["y"]),
    ]
    ends = [value(name, TensorProto.FLOAT, [2]) for name in "xy"]
    held = [helper.make_tensor("length", TensorProto.INT64, [1], [length])]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize("length", [1000, 2**30])
def test_numbers_of_long_vectors_are_not_listed(
    length: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2^30 of them would take more than 100 GB, in a reading as well as in a run."""
    infer, computed = onnx.shape_inference.infer_shapes, []

    def noted(model: Any, *, data_prop: bool, **others: Any) -> Any:
        computed.append(data_prop)
        return infer(model, data_prop=data_prop and length == 1000, **others)

    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", noted)
    graph, source = read_onnx(vector(tmp_path / "vector.onnx", length))
    OnnxRuntime().load(source, graph)
    assert any(computed) == (length == 1000)


def test_a_run_refuses_what_a_reading_refuses(tmp_path: Path) -> None:
    """The file was changed after it was read: its weight lies outside its own folder now."""
    path = tmp_path / "here" / "model.onnx"
    path.parent.mkdir()
    (tmp_path / "w.bin").write_bytes(bytes(8192))
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2048]) for name in "xy"]
    weight = helper.make_tensor("w", TensorProto.FLOAT, [2048], bytes(8192), raw=True)
    nodes = [helper.make_node("Add", ["x", "w"], ["y"])]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.write_bytes(model.SerializeToString())
    read, source = read_onnx(path)
    held = model.graph.initializer[0]
    held.ClearField("raw_data")
    held.data_location = TensorProto.EXTERNAL
    held.external_data.add(key="location", value="../w.bin")
    path.write_bytes(model.SerializeToString())
    with pytest.raises(FileFormatError, match="outside its own folder"):
        OnnxRuntime().load(source, read)


def test_branches_may_call_their_own_values_alike(tmp_path: Path) -> None:
    """ONNX's inference takes them for one value, and says that its number already exists."""
    path = choice(tmp_path / "choice.onnx", side=2, where="around", mark=False)
    graph, source = read_onnx(path)
    assert graph.op_kinds == ("ReduceSum", "Cast", "If", "NonZero")
    assert OnnxRuntime().load(source, graph).graph is graph

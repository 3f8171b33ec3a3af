"""State that stays in sessions of ONNX Runtime: written in place, in two buffers, from an input."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper  # noqa: E402

from placewright.errors import FieldError, InexpressibleError, UnknownNameError  # noqa: E402
from placewright.execution.runtime import whole_segment  # noqa: E402
from placewright.frameworks.onnxruntime.reader import read_onnx  # noqa: E402
from placewright.frameworks.onnxruntime.runtime import OnnxModel, OnnxRuntime  # noqa: E402

STATE = {"new_*": "*"}


def value(name: str, shape: list[int], kind: int = TensorProto.FLOAT) -> object:
    return helper.make_tensor_value_info(name, kind, shape)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """y = sum(cache with x at row p) * (number of calls before) + sum(x of the call before)."""
    nodes = [
        helper.make_node("ScatterND", ["cache", "p", "x"], ["new_cache"], name="scatter"),
        helper.make_node("ReduceSum", ["new_cache"], ["total"], name="sum", keepdims=0),
        helper.make_node("Add", ["n", "one"], ["new_n"], name="count"),
        helper.make_node("Mul", ["total", "n"], ["scaled"], name="scale"),
        helper.make_node("ReduceSum", ["d"], ["before"], name="sum_before", keepdims=0),
        helper.make_node("Add", ["scaled", "before"], ["y"], name="add"),
        helper.make_node("Identity", ["x"], ["new_d"], name="hand_on"),
        helper.make_node("Identity", ["one"], ["fixed"], name="fix"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [
            value("x", [1, 2]),
            value("p", [1, 1], TensorProto.INT64),
            value("cache", [3, 2]),
            value("n", []),
            value("d", [1, 2]),
        ],
        [
            value("y", []),
            value("new_cache", [3, 2]),
            value("new_n", []),
            value("new_d", [1, 2]),
            value("fixed", []),
        ],
        [helper.make_tensor("one", TensorProto.FLOAT, [], [1.0])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def loaded(file: Path) -> OnnxModel:
    graph, source = read_onnx(file, state=STATE)
    assert source.signature is not None
    assert [port.name for port in source.signature.inputs] == ["x", "p"]
    assert [port.name for port in source.signature.outputs] == ["y", "fixed"]
    return OnnxRuntime().load(source, graph)


def test_values_stay_until_they_are_reset(file: Path) -> None:
    model = loaded(file)
    device = next(one for one in OnnxRuntime().discover() if one.name == "cpu:0")
    assert model.keeps_state
    instance = model.reference(device).instance()

    def called(x: tuple[int, int], row: int) -> float:
        given = np.array([x], np.float32), np.array([[row]])
        plain = model.plain(device)(given)[0]
        assert plain == 0.0, "the unsplit model starts anew in each call"
        return float(model.to_host(instance.run([model.from_host(one) for one in given])[0]))

    for _ in range(2):
        assert [called(x, row) for x, row in (((1, 2), 0), ((3, 4), 1), ((0, 1), 2))] == [
            0.0,
            10.0 * 1 + 3,
            11.0 * 2 + 7,
        ]
        instance.reset_state()


def test_bytes_count_once_in_place_and_twice_in_two_buffers(file: Path) -> None:
    model = loaded(file)
    graph = model.graph
    places = {kept.read: kept.in_place for kept in model.parts.kept.values}
    assert places == {"cache": True, "n": False, "d": False}
    assert sorted(graph.weight_bytes) == [4, 2 * 4, 2 * 8, 24]  # with the constant
    device = next(one for one in OnnxRuntime().discover() if one.name == "cpu:0")
    groups = model.fused_groups(device).group_of
    at = graph.op_index
    for pair in (("scatter", "sum"), ("count", "scale"), ("sum_before", "hand_on")):
        assert len({int(groups[at[name]]) for name in pair}) == 1
        assert len({int(graph.op_colocation[at[name]]) for name in pair}) == 1
    assert len(set(groups.tolist())) > 2


def test_what_cannot_stay_is_refused(file: Path) -> None:
    with pytest.raises(UnknownNameError, match="model output 'newer'"):
        read_onnx(file, state={"newer": "n"})
    with pytest.raises(FieldError, match=r"output 'y' is f32 \[\], but input 'd' f32"):
        read_onnx(file, state={"y": "d"})
    with pytest.raises(FieldError, match="'fixed' depends on no input"):
        read_onnx(file, state={"fixed": "n"})
    model = loaded(file)
    with pytest.raises(InexpressibleError, match=r"keep state \('cache'\).*onnx-layers"):
        model.parts.standalone(whole_segment(model.graph))


def test_an_old_value_is_returned_as_a_copy_only(tmp_path: Path) -> None:
    """The runtime would return zeros for an output that is the state itself."""

    def read(old: str) -> tuple[str, ...]:
        nodes = [
            helper.make_node("Add", ["x", "s"], ["s_next"], name="add"),
            helper.make_node("Identity", ["s"], ["copy"], name="copy"),
        ]
        ends = [[value(name, [2]) for name in names] for names in (("x", "s"), ("s_next", old))]
        graph = helper.make_graph(nodes, "g", *ends)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
        onnx.save(model, tmp_path / "m.onnx")
        _, source = read_onnx(tmp_path / "m.onnx", state={"s_next": "s"})
        assert source.signature is not None
        return tuple(port.name for port in source.signature.outputs)

    assert read("copy") == ("copy",)
    with pytest.raises(FieldError, match=r"'s' is also returned as it enters; return a copy"):
        read("s")

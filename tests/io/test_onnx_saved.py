"""Saved ONNX models: weights in files of data, wherever they are in the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from google.protobuf.message import EncodeError
from onnx import TensorProto, helper, numpy_helper

from placewright.errors import FileFormatError, InputError
from placewright.io.onnx_saved import data_file_of, save_onnx, take_in_data

FLOAT = TensorProto.FLOAT
SIDE = 32  # rows of a square of 4 KiB
X = np.random.default_rng(3).random((SIDE, SIDE), dtype=np.float32)


def square(name: str, seed: int) -> Any:
    values = np.random.default_rng(seed).random((SIDE, SIDE), dtype=np.float32)
    return numpy_helper.from_array(values, name)


def info(name: str) -> Any:
    return helper.make_tensor_value_info(name, FLOAT, [SIDE, SIDE])


def model_with_weights_everywhere() -> Any:
    """Initializers, one of a branch, constants of a branch and of a function."""

    def branch(kind: str) -> Any:
        nodes = [
            helper.make_node("Constant", [], ["held"], value=square("", 4)),
            helper.make_node(kind, ["a", "inner"], ["b"]),
            helper.make_node("Add", ["b", "held"], [f"{kind}_out"]),
        ]
        return helper.make_graph(nodes, kind, [], [info(f"{kind}_out")], [square("inner", 5)])

    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    function = helper.make_function(
        "own", "Shift", ["p"], ["q"],
        [helper.make_node("Constant", [], ["c"], value=square("", 6)),
         helper.make_node("Sub", ["p", "c"], ["q"])],
        opsets[:1],
    )  # fmt: skip
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("ReduceSum", ["a"], ["total"], keepdims=0),
        helper.make_node("Greater", ["total", "zero"], ["positive"]),
        helper.make_node(
            "If", ["positive"], ["z"], then_branch=branch("Add"), else_branch=branch("Mul")
        ),
        helper.make_node("Shift", ["z"], ["y"], domain="own"),
    ]
    zero = numpy_helper.from_array(np.float32(0), "zero")  # type: ignore[arg-type]
    graph = helper.make_graph(nodes, "g", [info("x")], [info("y")], [square("w", 7), zero])
    return helper.make_model(graph, opset_imports=opsets, ir_version=9, functions=[function])


def result(file: Path) -> Any:
    session = ort.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    return session.run(["y"], {"x": X})[0]


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    onnx.save(model_with_weights_everywhere(), str(tmp_path / "plain.onnx"))
    return tmp_path / "plain.onnx"


def test_weights_of_a_large_model_go_to_a_file_of_data(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Again to the same name, and with that name in the current folder, which ONNX refuses."""
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        save_onnx(model_with_weights_everywhere(), tmp_path / "m.onnx", largest=1 << 14)
        assert data_file_of(tmp_path / "m.onnx").stat().st_size == 3 * 4 * SIDE**2
        np.testing.assert_array_equal(result(tmp_path / "m.onnx"), result(plain))


def test_constants_of_bodies_and_functions_count(tmp_path: Path) -> None:
    """All six squares; the initializers of the graph alone would be one."""
    save_onnx(model_with_weights_everywhere(), tmp_path / "m.onnx", largest=6 * 4 * SIDE**2 + 4)
    assert not data_file_of(tmp_path / "m.onnx").exists()
    save_onnx(model_with_weights_everywhere(), tmp_path / "m.onnx", largest=6 * 4 * SIDE**2 - 1)
    assert data_file_of(tmp_path / "m.onnx").exists()


def moved_out(model: Any, file: Path, *, with_length: bool = True) -> None:
    """Write a model with every tensor in one file of data, also those of functions."""
    graphs = [model.graph, *(a.g for n in model.graph.node for a in n.attribute if a.HasField("g"))]
    nodes = [*(n for g in graphs for n in g.node), *(n for f in model.functions for n in f.node)]
    constants = [a.t for n in nodes for a in n.attribute if a.HasField("t")]
    start = 0
    with file.with_name("w.bin").open("wb") as stream:
        for tensor in [*(t for g in graphs for t in g.initializer), *constants]:
            content = tensor.raw_data
            stream.write(content)
            tensor.ClearField("raw_data")
            tensor.data_location = TensorProto.EXTERNAL
            place = {"location": "w.bin", "offset": start, "length": len(content)}
            for key, value in list(place.items())[: 3 if with_length else 2]:
                tensor.external_data.add(key=key, value=str(value))
            start += len(content)
    file.write_bytes(model.SerializeToString())


@pytest.mark.parametrize("layout", ["plain", "linked", "hard links", "no lengths"])
def test_data_are_taken_in_from_everywhere(layout: str, plain: Path, tmp_path: Path) -> None:
    """ONNX itself takes no files that are links."""
    (tmp_path / "named").mkdir()
    (tmp_path / "blobs").mkdir()
    file = tmp_path / "named" / "m.onnx"
    made = tmp_path / "blobs" / "m.onnx" if "link" in layout else file
    moved_out(model_with_weights_everywhere(), made, with_length=layout != "no lengths")
    for name in ("m.onnx", "w.bin"):
        if layout == "linked":
            (tmp_path / "named" / name).symlink_to(f"../blobs/{name}")
        elif layout == "hard links":
            (tmp_path / "named" / name).hardlink_to(tmp_path / "blobs" / name)
    model = onnx.load(str(file), load_external_data=False)
    take_in_data(model, file)
    save_onnx(model, tmp_path / "out.onnx")
    np.testing.assert_array_equal(result(tmp_path / "out.onnx"), result(plain))


def test_data_that_end_too_early_are_refused(tmp_path: Path) -> None:
    moved_out(model_with_weights_everywhere(), tmp_path / "m.onnx")
    (tmp_path / "w.bin").write_bytes(b"1234")
    model = onnx.load(str(tmp_path / "m.onnx"), load_external_data=False)
    with pytest.raises(FileFormatError, match=r"'w\.bin' ends after 4 bytes of "):
        take_in_data(model, tmp_path / "m.onnx")


class TooLarge:
    """A model of 2 GiB, as its parser sees it."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def SerializeToString(self) -> bytes:
        raise EncodeError("Failed to serialize proto")


def test_what_is_no_protocol_buffer_is_refused_in_one_line(tmp_path: Path) -> None:
    model = TooLarge(model_with_weights_everywhere())
    with pytest.raises(InputError, match=r"^file 'm\.onnx' cannot be written: [^\n]*$"):
        save_onnx(model, tmp_path / "m.onnx")


@pytest.mark.parametrize("kind", ["INT4", "UINT8"])
def test_data_without_a_length_are_as_long_as_their_numbers(kind: str, tmp_path: Path) -> None:
    tensor = TensorProto(name="w", data_type=TensorProto.DataType.Value(kind), dims=[5])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="w.bin")
    needed = 3 if kind == "INT4" else 5
    graph = helper.make_graph([], "g", [], [], [tensor])
    (tmp_path / "w.bin").write_bytes(bytes(range(9)))
    model, short = helper.make_model(graph), helper.make_model(graph)
    take_in_data(model, tmp_path / "m.onnx")
    assert model.graph.initializer[0].raw_data == bytes(range(needed))
    (tmp_path / "w.bin").write_bytes(bytes(needed - 1))
    with pytest.raises(FileFormatError, match=f"ends after {needed - 1} bytes of {needed}"):
        take_in_data(short, tmp_path / "m.onnx")

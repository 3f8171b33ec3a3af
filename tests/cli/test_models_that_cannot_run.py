"""Well-formed models that cannot be placed: one line of at most 300 characters, or a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from cli.runner import InProcess, the_line
from model_makers import WEIGHT, write_onnx

from placewright.io.model_parts import onnx_files
from placewright.session.models import load_model

Maker = Callable[[Path], None]
HUGE = 2**40
WORDS = ("--devices", "cpu:0,cpu:1", "--quick", "--placer", "single")


def made(
    kind: str, dtype: str = "FLOAT", inputs: int = 1, outputs: tuple[str, ...] = ("y",)
) -> Maker:
    """A model of one node, of a type of elements, with these outputs."""

    def write(path: Path) -> None:
        from onnx import TensorProto, helper

        number = getattr(TensorProto, dtype)
        graph = helper.make_graph(
            [helper.make_node(kind, ["x"] * inputs, ["y"])],
            "g",
            [helper.make_tensor_value_info("x", number, [3])],
            [helper.make_tensor_value_info(name, number, [3]) for name in outputs],
        )
        write_model(graph, path)

    return write


def expanded(*, constant: bool) -> Maker:
    def write(path: Path) -> None:
        from onnx import TensorProto, helper, numpy_helper

        weights = [numpy_helper.from_array(np.array([HUGE], dtype=np.int64), "shape")]
        weights += [numpy_helper.from_array(np.ones(1, dtype=np.float32), "one")]
        value = helper.make_tensor_value_info
        graph = helper.make_graph(
            [
                helper.make_node("Expand", ["one" if constant else "x", "shape"], ["big"]),
                helper.make_node("Add", ["big", "x"], ["y"]),
            ],
            "g",
            [value("x", TensorProto.FLOAT, [1])],
            [value("y", TensorProto.FLOAT, [HUGE])],
            weights,
        )
        write_model(graph, path)

    return write


def write_model(graph: object, path: Path) -> None:
    from onnx import helper

    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())


REFUSED = {
    "texts": (made("Identity", "STRING"), 2, {"openvino": "texts", "onnxruntime": "texts"}),
    "no outputs": (
        made("Relu", outputs=()),
        2,
        {"openvino": "no operator", "onnxruntime": "has no outputs"},
    ),
    "an output that is an input": (
        made("Relu", outputs=("x",)),
        2,
        {"openvino": "no operator"},
    ),
    "Expand to 2^40": (
        expanded(constant=False),
        1,
        {"openvino": "4.00 TiB", "onnxruntime": "4.00 TiB"},
    ),
    "Expand of a constant to 2^40": (
        expanded(constant=True),
        1,
        {"openvino": "4.00 TiB", "onnxruntime": "4.00 TiB"},
    ),
}


@pytest.mark.parametrize(
    ("name", "runtime"), [(name, runtime) for name, row in REFUSED.items() for runtime in row[2]]
)
def test_a_model_that_cannot_run_is_refused(
    name: str, runtime: str, tmp_path: Path, cli: InProcess
) -> None:
    make, code, told = REFUSED[name]
    make(tmp_path / "m.onnx")
    line = the_line(cli("place", "m.onnx", "--runtime", runtime, *WORDS, cwd=tmp_path), code)
    assert told[runtime] in line
    assert len(line) <= 300
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


def reflected(path: Path) -> None:
    """A border of three values, mirrored: a shorter axis has too few of them."""
    from onnx import TensorProto, helper, numpy_helper

    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Pad", ["x", "pads"], ["y"], mode="reflect")],
        "g",
        [value("x", TensorProto.FLOAT, [1, "length"])],
        [value("y", TensorProto.FLOAT, [1, "longer"])],
        [numpy_helper.from_array(np.array([0, 3, 0, 3], dtype=np.int64), "pads")],
    )
    write_model(graph, path)


@pytest.mark.parametrize("runtime", ["openvino", "onnxruntime"])
def test_a_shape_that_the_model_cannot_take_is_wrong_input(
    runtime: str, tmp_path: Path, cli: InProcess
) -> None:
    """In every runtime, whether it is found at reading or at the first run."""
    reflected(tmp_path / "m.onnx")
    words = ("--runtime", runtime, *WORDS, "--shape")
    assert "--shape" in the_line(cli("place", "m.onnx", *words, "length=2", cwd=tmp_path), 2)
    placed = cli("place", "m.onnx", *words, "length=8", cwd=tmp_path)
    assert placed.returncode == 0, placed.stderr


@pytest.mark.parametrize("runtime", ["openvino", "onnxruntime"])
def test_an_output_that_is_an_input_beside_another_one(
    runtime: str, tmp_path: Path, cli: InProcess
) -> None:
    made("Relu", outputs=("y", "x"))(tmp_path / "m.onnx")
    words = ("--runtime", runtime, "--devices", "cpu:0,cpu:1", "--quick", "--no-check")
    profiled = cli("profile", "m.onnx", *words[:-1], "-o", "p.json", cwd=tmp_path)
    assert profiled.returncode == 0, profiled.stderr


@pytest.mark.parametrize("runtime", ["openvino", "onnxruntime"])
def test_a_hash_covers_external_data(runtime: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    write_onnx(path, external="w.bin")
    found = []
    for weight in (WEIGHT, WEIGHT + 1):
        (tmp_path / "w.bin").write_bytes(weight.tobytes())
        source = load_model(str(path), runtime=runtime).source
        assert source is not None
        found.append(source.sha256)
    assert found[0] != found[1]


def test_both_parsers_find_external_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a weight, an attribute, a branch, a function and its usual attribute; a miss is told."""
    from onnx import TensorProto, helper

    from placewright.errors import FileFormatError
    from placewright.io import model_parts

    def outside(name: str) -> object:
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[3])
        tensor.data_location = TensorProto.EXTERNAL
        entry = tensor.external_data.add()
        entry.key, entry.value = "location", f"{name}.bin"
        (tmp_path / f"{name}.bin").write_bytes(bytes(12))
        return tensor

    value = helper.make_tensor_value_info("y", TensorProto.FLOAT, [3])
    branch = helper.make_graph([], "b", [], [value], [outside("branch")])
    nodes = [
        helper.make_node("Constant", [], ["c"], value=outside("attribute")),
        helper.make_node("If", ["x"], ["y"], then_branch=branch, else_branch=branch),
    ]
    function = helper.make_function(
        "own", "f", [], ["z"],
        [helper.make_node("Constant", [], ["z"], value=outside("function"))],
        [helper.make_opsetid("", 17)],
        attribute_protos=[helper.make_attribute("own", outside("usual"))],
    )  # fmt: skip
    graph = helper.make_graph(nodes, "g", [], [value], [outside("weight")])
    model = helper.make_model(graph, functions=[function])
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    names = {file.name for file in onnx_files(path)}
    parts = ("weight", "attribute", "branch", "function", "usual")
    assert names == {"m.onnx", *(f"{part}.bin" for part in parts)}
    monkeypatch.setitem(model_parts._ONNX, "Function", {})  # type: ignore[arg-type]
    with pytest.raises(FileFormatError, match=r"parsers do not agree .* 'function.bin'"):
        onnx_files(path)

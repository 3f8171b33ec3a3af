"""Reading model files through OpenVINO: all formats, folding, names, shapes, and damaged files."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from model_makers import BIAS, WEIGHT, graph_def, saved_model, write_onnx
from onnx import TensorProto, helper
from support.openvino_graphs import graph_of_openvino_model

from placewright.errors import FileFormatError, InputError, PlacewrightError, UnknownNameError
from placewright.frameworks.openvino.reader import read_openvino
from placewright.frameworks.openvino.reader import read_openvino as read
from placewright.frameworks.openvino.runtime import OpenVinoRuntime


@pytest.fixture
def onnx_file(tmp_path: Path) -> Path:
    write_onnx(tmp_path / "small.onnx")
    return tmp_path / "small.onnx"


def shared_weight_model() -> ov.Model:
    """Two products with one f16 weight that a Convert decompresses, one of them transposed."""
    op = ov.opset13
    x = op.parameter([2, 4], np.float32, name="x")
    half = op.constant(np.ones((4, 4), np.float16))
    weight = op.convert(half, "f32")
    first = op.matmul(x, weight, False, False, name="first")
    second = op.matmul(first, weight, False, True, name="second")
    return ov.Model([op.result(second, name="out")], [x], "shared")


class TestFormats:
    def test_onnx(self, onnx_file: Path) -> None:
        graph, source = read_openvino(onnx_file)
        assert graph.op_names == (
            "dense/product",
            "dense/sum",
            "y",
        )  # its output's name, at the end
        assert graph.op_kinds == ("MatMul", "Add", "Relu")
        assert graph.op_modules == ("dense", "dense", "")
        assert graph.op_flops.tolist() == [24, 3, 3]
        assert graph.op_weight_bytes.tolist() == [WEIGHT.nbytes, BIAS.nbytes, 0]
        assert graph.tensor_bytes.tolist() == [16, 12, 12, 12]
        assert graph.tensor_is_output.tolist() == [False, False, False, True]
        assert set(graph.tensor_dtypes) == {"f32"}
        assert source.format == "openvino"
        assert source.shapes == {"x": (1, 4)}
        assert len(source.sha256) == 64
        assert source.reader_version == f"openvino {ov.__version__}"

    def test_graph_def(self, tmp_path: Path) -> None:
        path = tmp_path / "frozen.pb"
        path.write_bytes(graph_def())
        graph, _ = read(path)
        assert graph.op_names == ("product", "y")
        assert graph.op_flops.tolist() == [24, 3]
        assert graph.op_weight_bytes.tolist() == [48, 0]

    def test_saved_model_folder(self, tmp_path: Path) -> None:
        (tmp_path / "saved_model.pb").write_bytes(saved_model())
        (tmp_path / "variables").mkdir()
        graph, source = read(tmp_path)
        assert graph.op_kinds == ("MatMul", "Relu")
        (tmp_path / "variables" / "variables.index").write_bytes(b"changed")
        assert read_hash(tmp_path) != source.sha256

    def test_tflite(self, tmp_path: Path) -> None:
        write_tflite = tflite_writer()
        path = tmp_path / "small.tflite"
        write_tflite(path, WEIGHT)
        graph, source = read(path)
        assert [kind for kind in graph.op_kinds if kind != "Reshape"] == ["MatMul", "Relu"]
        assert graph.op_flops.sum() == 24 + 3
        assert source.shapes == {"x": (1, 4)}

    def test_ir_with_its_weights(self, tmp_path: Path) -> None:
        path = tmp_path / "shared.xml"
        ov.save_model(shared_weight_model(), str(path), compress_to_fp16=False)
        graph, source = read(path)
        assert graph.op_names == ("first", "second")
        before = source.sha256
        data = bytearray(path.with_suffix(".bin").read_bytes())
        data[0] ^= 1
        path.with_suffix(".bin").write_bytes(data)
        assert read_hash(path) != before


def tflite_writer() -> Any:
    from tflite_maker import write_tflite

    return write_tflite


def read_hash(path: Path) -> str:
    from placewright.frameworks.openvino.model_files import checked_files
    from placewright.io.content import content_hash

    return content_hash(path if path.is_dir() else path.parent, checked_files(path))


class TestFolding:
    def test_a_decompressed_constant_is_one_shared_weight(self) -> None:
        graph, _ = graph_of_openvino_model(shared_weight_model())
        assert graph.op_names == ("first", "second")
        assert graph.weight_bytes.tolist() == [64]  # as f32, which is what stays in memory
        assert graph.op_weights.row(0).tolist() == graph.op_weights.row(1).tolist() == [0]

    def test_the_raw_graph_has_every_layer(self) -> None:
        graph, _ = graph_of_openvino_model(shared_weight_model(), fold_constants=False)
        kinds = sorted(graph.op_kinds)
        assert kinds == ["Constant", "Convert", "MatMul", "MatMul", "Parameter", "Result"]
        assert graph.n_edges == 6
        assert len(graph.weight_bytes) == 0

    def test_an_output_of_several_ports_is_several_tensors(self) -> None:
        op = ov.opset13
        x = op.parameter([2, 6], np.float32, name="x")
        parts = op.split(x, 1, 3, name="parts")
        joined = op.add(parts.output(0), parts.output(2), name="joined")
        graph, _ = graph_of_openvino_model(ov.Model([joined], [x], "split"))
        assert graph.op_names == ("parts", "joined")
        assert graph.op_outputs.row(0).size == 2  # the middle part is read by nobody
        assert graph.n_edges == 2

    def test_an_input_that_is_an_output(self) -> None:
        op = ov.opset13
        x = op.parameter([2], np.float32, name="x")
        relu = op.relu(x, name="relu")
        model = ov.Model([op.result(relu), op.result(x)], [x], "through")
        graph, _ = graph_of_openvino_model(model)
        assert graph.tensor_producers.tolist() == [-1, 0]
        assert graph.tensor_is_output.tolist() == [True, True]

    def test_a_constant_model_is_refused(self) -> None:
        op = ov.opset13
        constant = op.constant(np.ones(2, np.float32))
        with pytest.raises(InputError, match="no operator"):
            graph_of_openvino_model(ov.Model([op.result(constant)], [], "constant"))

    def test_reading_and_assigning_a_variable_stay_together(self) -> None:
        op = ov.opset13
        x = op.parameter([1, 2], np.float32, name="x")
        start = op.constant(np.zeros((1, 2), np.float32))
        before = op.read_value(start, "state", ov.Type.f32, [1, 2])
        after = op.add(before, x, name="after")
        assign = op.assign(after, "state")
        model = ov.Model([op.result(after)], [assign], [x], "stateful")
        graph, _ = graph_of_openvino_model(model)
        together = [c for c, kind in zip(graph.op_colocation, graph.op_kinds, strict=True)
                    if kind in ("ReadValue", "Assign")]  # fmt: skip
        assert together == [0, 0]

    def test_state_has_a_variable_of_its_own(self, tmp_path: Path) -> None:
        """The file has a variable already, with the name that the state would have."""
        op = ov.opset13
        x = op.parameter([1, 2], np.float32, name="x")
        old = op.parameter([1, 2], np.float32, name="old")
        start = op.constant(np.zeros((1, 2), np.float32))
        after = op.add(op.read_value(start, "state1", ov.Type.f32, [1, 2]), x, name="after")
        ends = [op.result(after), op.result(op.add(after, old))]
        ends[1].output(0).set_names({"new"})
        model = ov.Model(ends, [op.assign(after, "state1")], [x, old], "stateful")
        ov.serialize(model, str(tmp_path / "m.xml"))
        graph, _ = read_openvino(tmp_path / "m.xml", state={"new": "old"})
        apart = [c for c, kind in zip(graph.op_colocation, graph.op_kinds, strict=True)
                 if kind in ("ReadValue", "Assign")]  # fmt: skip
        assert sorted(apart) == [0, 0, 1, 1]


class TestNames:
    def test_made_up_names_are_the_same_in_every_reading(self, tmp_path: Path) -> None:
        path = tmp_path / "frozen.pb"
        path.write_bytes(graph_def())
        graphs = []
        for _ in range(3):
            model = ov.Core().read_model(str(path))
            for node in model.get_ordered_ops():
                node.set_friendly_name(node.get_name())  # what an op without a name has
            graphs.append(graph_of_openvino_model(model))
        names = [graph.op_names for graph, _ in graphs]
        assert names[0] == names[1] == names[2]
        positions = graphs[0][1]
        assert set(positions) == set(names[0])
        kinds = [node.get_type_name() for node in model.get_ordered_ops()]
        for name, native in positions.items():
            assert kinds[int(native.removeprefix("#"))] == name.split("_")[0]

    def test_a_file_s_own_name_that_the_library_makes_up_too(self, tmp_path: Path) -> None:
        """OpenVINO tells two equal names apart by a further number, in some readings only."""
        path = tmp_path / "own.onnx"
        _write_names_like_made_up_ones(path)
        graph, source = read_openvino(path)
        with ThreadPoolExecutor(4) as pool:  # counters of all readings run on at the same time
            readings = list(pool.map(read_openvino, [path] * 8))
        script = (
            "from placewright.frameworks.openvino.reader import read_openvino\n"
            f"graph, source = read_openvino({str(path)!r})\n"
            "print([graph.op_names, source.native_names])"
        )
        alone = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        for other, from_other in readings:
            assert other.op_names == graph.op_names
            assert from_other.native_names == source.native_names
        assert alone.stdout.strip() == str([graph.op_names, source.native_names])
        for _ in range(3):
            OpenVinoRuntime().load(source, graph)

    def test_problems_of_earlier_versions_find_their_ops(self, tmp_path: Path) -> None:
        path = tmp_path / "own.onnx"
        _write_names_like_made_up_ones(path)
        graph, source = read_openvino(path)
        names = list(graph.op_names)
        at = names.index(next(name for name in names if name.startswith("Add_")))
        names[at] = "Add_82_1"
        native = {k: v for k, v in source.native_names.items() if k in names}
        OpenVinoRuntime().load(
            replace(source, native_names=native), replace(graph, op_names=tuple(names))
        )

    def test_a_name_used_twice_gets_a_number(self) -> None:
        op = ov.opset13
        x = op.parameter([2], np.float32, name="x")
        first = op.relu(x, name="same")
        second = op.tanh(first, name="same")
        graph, native = graph_of_openvino_model(ov.Model([second], [x], "twice"))
        assert graph.op_names == ("same", "same_1")
        assert list(native) == ["same_1"]

    def test_names_of_constants_and_results_are_no_names_of_ops(self, tmp_path: Path) -> None:
        op = ov.opset13
        x = op.parameter([2], np.float32, name="x")
        one = op.constant(np.ones(2, np.float32), name="sum")
        chain = op.relu(op.add(x, one, name="sum"), name="#4")
        chain = op.negative(op.relu(chain, name="#x"), name="y")
        path = tmp_path / "named.xml"
        ov.serialize(ov.Model([op.result(chain, name="y")], [x], "named"), str(path))
        graph, source = read_openvino(path)
        assert graph.op_names == ("sum", "#4", "#x", "y")
        model = OpenVinoRuntime().load(source, graph)
        nodes = model.model.get_ordered_ops()
        found = [nodes[at].get_friendly_name() for at in model.nodes.node_of_op]
        assert found == list(graph.op_names)


def _write_names_like_made_up_ones(path: Path) -> None:
    """Sums called ``Add_0`` to ``Add_399``, and operators that OpenVINO takes to pieces."""
    nodes = []
    value = "x"
    for number in range(400):
        kind = "Shrink" if number % 40 == 39 else "Add"
        read = [value] if kind == "Shrink" else [value, value]
        nodes.append(helper.make_node(kind, read, [f"{kind}_{number}"], name=f"{kind}_{number}"))
        value = f"{kind}_{number}"
    graph = helper.make_graph(
        nodes,
        "own",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info(value, TensorProto.FLOAT, [2])],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.write_bytes(made.SerializeToString())


class TestShapes:
    def test_an_open_dimension_becomes_one_and_is_logged(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        path = tmp_path / "open.onnx"
        write_onnx(path, batch="batch")
        with caplog.at_level(logging.WARNING):
            graph, source = read_openvino(path)
        assert source.shapes == {"x": (1, 4)}
        assert "'x'" in caplog.text
        assert "`shapes`" in caplog.text
        assert graph.op_flops[0] == 24

    def test_a_given_shape_is_taken(self, tmp_path: Path) -> None:
        path = tmp_path / "open.onnx"
        write_onnx(path, batch="batch")
        graph, source = read_openvino(path, shapes={"x": (5, 4)})
        assert source.shapes == {"x": (5, 4)}
        assert graph.op_flops[0] == 5 * 24
        assert graph.tensor_bytes[0] == 5 * 16

    def test_wrong_shapes_are_refused(self, onnx_file: Path) -> None:
        with pytest.raises(UnknownNameError, match=r"unknown model input 'z'; .*available: x"):
            read_openvino(onnx_file, shapes={"z": (1,)})
        with pytest.raises(InputError, match=r"x=\[2, 9\]") as caught:
            read_openvino(onnx_file, shapes={"x": (2, 9)})
        assert "\n" not in str(caught.value)
        with pytest.raises(InputError, match="must be >= 0"):
            read_openvino(onnx_file, shapes={"x": (-1, 4)})


class TestExternalData:
    def test_weights_beside_the_model_are_read_and_hashed(self, tmp_path: Path) -> None:
        path = tmp_path / "outside.onnx"
        write_onnx(path, external="weights.data")
        (tmp_path / "weights.data").write_bytes(WEIGHT.tobytes())
        graph, source = read_openvino(path)
        assert graph.op_weight_bytes[0] == 48
        (tmp_path / "weights.data").write_bytes((WEIGHT + 1).tobytes())
        assert read_hash(path) != source.sha256

    @pytest.mark.parametrize("name", ["../secret.data", "/etc/hostname", "inner/../../secret.data"])
    def test_paths_out_of_the_folder_are_refused(self, tmp_path: Path, name: str) -> None:
        (tmp_path / "secret.data").write_bytes(WEIGHT.tobytes())
        folder = tmp_path / "model"
        (folder / "inner").mkdir(parents=True)
        write_onnx(folder / "escape.onnx", external=name)
        with pytest.raises(FileFormatError, match="outside its own folder"):
            read_openvino(folder / "escape.onnx")

    def test_a_link_out_of_the_folder_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "secret.data").write_bytes(WEIGHT.tobytes())
        folder = tmp_path / "model"
        folder.mkdir()
        os.symlink(tmp_path / "secret.data", folder / "weights.data")
        write_onnx(folder / "escape.onnx", external="weights.data")
        with pytest.raises(FileFormatError, match="outside its own folder"):
            read_openvino(folder / "escape.onnx")

    def test_a_missing_data_file_is_named(self, tmp_path: Path) -> None:
        write_onnx(tmp_path / "lone.onnx", external="weights.data")
        with pytest.raises(FileFormatError, match=r"'weights\.data' is missing"):
            read_openvino(tmp_path / "lone.onnx")


class TestDamagedFiles:
    @pytest.mark.parametrize("suffix", [".onnx", ".pb", ".tflite", ".xml"])
    @pytest.mark.parametrize("content", [b"", b"hello, this is text\n", b"\x00" * 64, b"\xff" * 64])
    def test_other_content_is_one_clear_line(
        self, tmp_path: Path, suffix: str, content: bytes
    ) -> None:
        path = tmp_path / f"wrong{suffix}"
        path.write_bytes(content)
        refused(path)

    def test_a_truncated_model_is_refused_wherever_it_ends(self, onnx_file: Path) -> None:
        content = onnx_file.read_bytes()
        for end in range(1, len(content) - 20, 13):
            onnx_file.write_bytes(content[:end])
            refused(onnx_file)

    def test_a_name_that_is_no_text_is_refused(self, onnx_file: Path) -> None:
        content = onnx_file.read_bytes()
        onnx_file.write_bytes(content.replace(b"dense/sum", b"dense/\xff\xfem"))
        assert "UTF-8" in refused(onnx_file)

    def test_a_truncated_graph_def_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "cut.pb"
        path.write_bytes(graph_def()[:-3])
        refused(path)

    def test_truncated_tflite_is_refused(self, tmp_path: Path) -> None:
        write_tflite = tflite_writer()
        path = tmp_path / "cut.tflite"
        write_tflite(path, WEIGHT)
        content = path.read_bytes()
        for end in (7, 30, len(content) // 2, len(content) - 9):
            path.write_bytes(content[:end])
            refused(path)

    def test_an_ir_without_or_with_short_weights_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "shared.xml"
        ov.save_model(shared_weight_model(), str(path), compress_to_fp16=False)
        weights = path.with_suffix(".bin")
        weights.write_bytes(weights.read_bytes()[:3])
        refused(path)
        weights.unlink()
        refused(path)

    def test_an_ir_with_entities_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "bomb.xml"
        path.write_text('<!DOCTYPE net [<!ENTITY a SYSTEM "file:///etc/hostname">]><net>&a;</net>')
        assert "document type" in refused(path)

    def test_an_xml_file_that_is_no_model(self, tmp_path: Path) -> None:
        path = tmp_path / "page.xml"
        path.write_text("<html><body/></html>")
        assert "<html>" in refused(path)

    def test_unknown_suffixes_list_the_known(self, tmp_path: Path) -> None:
        path = tmp_path / "model.h5"
        path.write_bytes(b"\x89HDF")
        assert ".onnx" in refused(path)

    def test_a_folder_that_is_no_saved_model(self, tmp_path: Path) -> None:
        assert "saved_model.pb" in refused(tmp_path)

    def test_a_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=r"nowhere\.onnx' does not exist"):
            read(tmp_path / "nowhere.onnx")


def refused(path: Path) -> str:
    """The message of the refusal, after checking that it is one line that names the file."""
    with pytest.raises(PlacewrightError) as caught:
        read(path)
    message = str(caught.value)
    assert isinstance(caught.value, FileFormatError), message
    assert "\n" not in message
    assert path.name in message
    assert len(message) < 600
    return message


def test_operators_that_openvino_lacks_are_named_with_a_way_out(tmp_path: Path) -> None:
    import onnx

    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    node = helper.make_node("Foo", ["x"], ["y"], domain="my.domain")
    values = [helper.make_tensor_value_info(name, kind, [1]) for name in "xy"]
    graph = helper.make_graph([node], "g", values[:1], values[1:])
    path = tmp_path / "custom.onnx"
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("my.domain", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    with pytest.raises(
        FileFormatError, match=r"Foo.*argument `runtime` onnxruntime may know these"
    ):
        read_openvino(path)

"""Annotated and split `.onnx` files, loaded and run by ONNX Runtime alone."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from support.branching_model import branching_model
from writers.plans import plan_with

from placewright.core.cluster import Device
from placewright.core.plan import Plan
from placewright.errors import InexpressibleError, InputError, UnknownNameError
from placewright.execution.placements import served_segments
from placewright.frameworks.onnxruntime.reader import read_onnx
from placewright.session.export import export, formats_that_take
from placewright.writers.onnx_layers import OPTION, assignment_settings

CPU = {"provider": "CPUExecutionProvider"}
PAIR = [
    Device("cpu", options=CPU),
    Device("cuda:0", "gpu", options={"provider": "CUDAExecutionProvider", "device_id": "0"}),
]
CORES = [Device("cpu:0", options=CPU), Device("cpu:1", options=CPU)]


@pytest.fixture(params=["inside", "outside"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The model with its weights inside the file, or in one of their own."""
    file = tmp_path / "m.onnx"
    options = {"save_as_external_data": True, "location": "w.bin", "size_threshold": 0}
    onnx.save(branching_model(), str(file), **(options if request.param == "outside" else {}))
    return file


def plan_of_file(path: Path, devices: list[Device], *, split: int = 6) -> Plan:
    graph, source = read_onnx(path)
    return plan_with(graph, devices, lambda op: int(op >= split), source, "onnxruntime")


def outputs(session: Any, x: np.ndarray[Any, Any]) -> dict[str, Any]:
    names = [one.name for one in session.get_outputs()]
    return dict(zip(names, session.run(names, {"x": x}), strict=True))


def expected(path: Path, x: np.ndarray[Any, Any]) -> dict[str, Any]:
    return outputs(ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]), x)


X = np.random.default_rng(5).standard_normal((1, 4, 16, 16)).astype(np.float32)


def values_of_files(folder: Path, listed: dict[str, Any]) -> dict[str, Any]:
    """Run the files of an export one after the other."""
    values: dict[str, Any] = {"x": X}
    for one in listed["segments"]:
        file = folder / one["file"]
        onnx.checker.check_model(str(file))
        session = ort.InferenceSession(str(file), providers=["CPUExecutionProvider"])
        assert [i.name for i in session.get_inputs()] == one["inputs"]
        found = session.run(one["outputs"], {name: values[name] for name in one["inputs"]})
        values.update(zip(one["outputs"], found, strict=True))
    return values


def test_segments_run_one_after_the_other(path: Path, tmp_path: Path) -> None:
    export(plan_of_file(path, CORES, split=5), "onnx-segments", tmp_path / "parts")
    listed = json.loads((tmp_path / "parts" / "segments.json").read_text())
    assert listed["format"] == "placewright.onnx-segments/1"
    assert listed["inputs"] == ["x"]
    assert {one["device"] for one in listed["segments"]} == {"cpu:0", "cpu:1"}
    values = values_of_files(tmp_path / "parts", listed)
    assert sorted(listed["outputs"]) == ["gate", "logits"]
    for name, value in expected(path, X).items():
        np.testing.assert_allclose(values[name], value, rtol=1e-5, atol=1e-6)


def test_files_are_the_merged_segments_of_plans_that_one_thread_serves(tmp_path: Path) -> None:
    """A file less for each segment whose next one is on the same core."""
    onnx.save(branching_model(), str(tmp_path / "m.onnx"))
    graph, source = read_onnx(tmp_path / "m.onnx")
    plan = plan_with(graph, CORES, lambda op: int(op in (1, 4)), source, "onnxruntime")
    merged = served_segments(plan.problem, plan.placement)
    assert plan.segments is not None
    assert len(merged) < len(plan.segments)
    export(plan, "onnx-segments", tmp_path / "parts")
    listed = json.loads((tmp_path / "parts" / "segments.json").read_text())
    assert [one["device"] for one in listed["segments"]] == [CORES[x.device].name for x in merged]
    values = values_of_files(tmp_path / "parts", listed)
    for name, value in expected(tmp_path / "m.onnx", X).items():
        np.testing.assert_allclose(values[name], value, rtol=1e-5, atol=1e-6)


def test_segments_keep_the_names_of_nodes(path: Path, tmp_path: Path) -> None:
    export(plan_of_file(path, CORES), "onnx-segments", tmp_path / "parts")
    names = [
        node.name
        for file in sorted((tmp_path / "parts").glob("*.onnx"))
        for node in onnx.load(str(file)).graph.node
    ]
    assert sorted(names) == sorted(node.name for node in branching_model().graph.node)


def test_every_node_says_its_device(path: Path, tmp_path: Path) -> None:
    told = export(plan_of_file(path, PAIR), "onnx-layers", tmp_path / "layers.onnx")
    assert "cpu(=cpu); gpu:0(=cuda:0)" in told
    model = onnx.load(str(tmp_path / "layers.onnx"))
    devices = [
        entry.value
        for node in model.graph.node
        for entry in node.metadata_props
        if entry.key == "layer_ann"
    ]
    assert devices == ["cpu"] * 6 + ["cuda:0"] * 6
    assert {e.key: e.value for e in model.metadata_props}[OPTION] == "cpu(=cpu); gpu:0(=cuda:0)"


def test_onnx_runtime_takes_the_assignment(path: Path, tmp_path: Path) -> None:
    """Here on one device; ONNX Runtime refuses a setting that it cannot read."""
    plan = plan_of_file(path, CORES, split=99)
    export(plan, "onnx-layers", tmp_path / "layers.onnx")
    options = ort.SessionOptions()
    options.add_session_config_entry(OPTION, assignment_settings(plan))
    file = str(tmp_path / "layers.onnx")
    session = ort.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    for name, value in outputs(session, X).items():
        np.testing.assert_array_equal(value, expected(path, X)[name])


def test_a_link_is_followed(path: Path, tmp_path: Path) -> None:
    """It was replaced by a file, and what it leads to stayed as it was."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "layers.onnx").symlink_to("elsewhere/real.onnx")
    export(plan_of_file(path, PAIR), "onnx-layers", tmp_path / "layers.onnx")
    assert (tmp_path / "layers.onnx").is_symlink()
    model = onnx.load(str(tmp_path / "elsewhere" / "real.onnx"))
    assert len(model.graph.node) == 12


def test_a_pipe_is_not_replaced(path: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match=r"pipe' is a device or a pipe, which holds no model"):
        export(plan_of_file(path, PAIR), "onnx-layers", tmp_path / "pipe")
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.parametrize("link", [os.symlink, os.link], ids=["symbolic", "hard"])
def test_a_model_in_a_cache_of_downloads_is_exported(
    link: Callable[[Path, Path], None], tmp_path: Path
) -> None:
    """Model and weights are links; ONNX's own function refuses such weights."""
    for folder in ("blobs", "named"):
        (tmp_path / folder).mkdir()
    options = {"save_as_external_data": True, "location": "w.bin", "size_threshold": 0}
    onnx.save(branching_model(), str(tmp_path / "blobs" / "m.onnx"), **options)
    for name in ("m.onnx", "w.bin"):
        link(tmp_path / "blobs" / name, tmp_path / "named" / name)
    named = tmp_path / "named" / "m.onnx"
    export(plan_of_file(named, PAIR), "onnx-layers", tmp_path / "layers.onnx")
    made = onnx.load(str(tmp_path / "layers.onnx"), load_external_data=False)
    assert [t.raw_data for t in made.graph.initializer] == [
        t.raw_data for t in branching_model().graph.initializer
    ]


def test_nodes_that_are_called_like_positions_are_found_by_name(tmp_path: Path) -> None:
    model = branching_model()
    model.graph.node[1].name, model.graph.node[2].name = "#foo", "#-1"
    onnx.save(model, str(tmp_path / "m.onnx"))
    export(plan_of_file(tmp_path / "m.onnx", PAIR), "onnx-layers", tmp_path / "layers.onnx")
    made = onnx.load(str(tmp_path / "layers.onnx"))
    assert [e.value for e in made.graph.node[1].metadata_props] == ["cpu"]


def test_state_is_for_layers_alone(tmp_path: Path) -> None:
    """The node that copies an output which is an input is in no file."""
    value, file = onnx.helper.make_tensor_value_info, tmp_path / "m.onnx"
    floats = onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Add", ["x", "before"], ["y"], "sum")],
        "g",
        [value("x", floats, [2]), value("before", floats, [2])],
        [value("y", floats, [2]), value("x", floats, [2])],
    )
    opsets = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9), str(file))
    read, source = read_onnx(file, state={"x": "before"})
    assert read.op_names == ("sum", "x/kept")
    plan = plan_with(read, PAIR, lambda op: 1, source, "onnxruntime")
    assert formats_that_take(plan) == ("onnx-layers",)
    with pytest.raises(InexpressibleError, match=r"keeps state .* export the plan as onnx-layers"):
        export(plan, "onnx-segments", tmp_path / "parts")
    export(plan, "onnx-layers", tmp_path / "layers.onnx")
    (node,) = onnx.load(str(tmp_path / "layers.onnx")).graph.node
    assert [entry.value for entry in node.metadata_props] == ["cuda:0"]


def test_what_cannot_be_said(path: Path, tmp_path: Path) -> None:
    with pytest.raises(InexpressibleError, match="export it as onnx-segments"):
        export(plan_of_file(path, CORES), "onnx-layers", tmp_path / "l.onnx")
    openvino_plan = plan_of_file(path, CORES)
    source = type(openvino_plan.problem.source)("m.xml", "0", "openvino")  # type: ignore[misc]
    other = plan_with(openvino_plan.problem.graph, CORES, lambda op: 0, source)
    for form in ("onnx-layers", "onnx-segments"):
        with pytest.raises(InexpressibleError, match=r"\.onnx"):
            export(other, form, tmp_path / "x")
    for name in ("cpu,0", "cpu;", "(cpu)", "=cpu", " cpu"):
        named = plan_of_file(path, [Device(name, options=CPU), CORES[1]], split=99)
        with pytest.raises(InexpressibleError, match="rename it in a cluster file"):
            export(named, "onnx-layers", tmp_path / "x")
    with pytest.raises(UnknownNameError, match="unknown export format 'banana'"):
        export(other, "banana", tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_cards_without_a_provider_are_not_laid_on_the_cpu(path: Path, tmp_path: Path) -> None:
    """A card of a data sheet was written as ``cpu(=card)``."""
    plan = plan_of_file(path, [PAIR[0], Device("card", "gpu")])
    with pytest.raises(InexpressibleError, match="'card' has no name in ONNX Runtime"):
        export(plan, "onnx-layers", tmp_path / "l.onnx")
    named = plan_of_file(path, [Device("cpu"), Device("cuda:1", "gpu")])
    assert assignment_settings(named) == "cpu(=cpu); gpu:1(=cuda:1)"


def test_the_line_has_the_number_of_the_card(path: Path, tmp_path: Path) -> None:
    """A provider without options is that of card 0."""
    plan = plan_of_file(path, [Device("cpu"), Device("cuda:1", "gpu")])
    told = export(plan, "onnx-layers", tmp_path / "layers.onnx")
    own = "{'device_id': '1', 'use_tf32': '0'}"
    named = f"[('CUDAExecutionProvider', {own}), 'CPUExecutionProvider']"
    assert f"'cpu(=cpu); gpu:1(=cuda:1)', and the session's providers to {named}" in told
    alone = export(plan_of_file(path, CORES, split=99), "onnx-layers", tmp_path / "alone.onnx")
    assert "providers" not in alone


def test_the_line_has_the_options_of_the_card(path: Path, tmp_path: Path) -> None:
    """Without them a plan of f32 would run in TF32, and past the limit of its memory."""
    own = {"device_id": "1", "use_tf32": "0", "gpu_mem_limit": "1000000000"}
    others = {"session.intra_op.allow_spinning": "0", "graph_optimization_level": "basic"}
    card = Device("fast", "gpu", options={"provider": "CUDAExecutionProvider", **own, **others})
    told = export(plan_of_file(path, [PAIR[0], card]), "onnx-layers", tmp_path / "layers.onnx")
    named = f"[('CUDAExecutionProvider', {own}), 'CPUExecutionProvider']"
    assert f"'cpu(=cpu); gpu:1(=fast)', and the session's providers to {named}" in told


def test_the_precision_of_a_data_sheet_is_no_option_of_a_provider(
    path: Path, tmp_path: Path
) -> None:
    """A session refuses options that its provider does not know."""
    card = Device("cuda:1", "gpu", options={"precision": "tf32"})
    told = export(plan_of_file(path, [Device("cpu"), card]), "onnx-layers", tmp_path / "l.onnx")
    own = "{'device_id': '1', 'use_tf32': '0'}"
    assert f"[('CUDAExecutionProvider', {own}), 'CPUExecutionProvider']" in told


def test_formats_that_take_a_plan(path: Path, tmp_path: Path) -> None:
    """Modes of one card have its name; a mode of two cards is no device of any tool."""
    assert formats_that_take(plan_of_file(path, PAIR)) == ("onnx-layers", "onnx-segments")
    assert formats_that_take(plan_of_file(path, CORES)) == ("onnx-segments",)
    half = Device("half", "gpu", options=PAIR[1].options, processors=("cuda:0",))
    assert "onnx-layers" in formats_that_take(plan_of_file(path, [PAIR[0], half]))
    both = Device("cuda:2", "gpu", processors=("cuda:0", "cuda:1"))
    plan = plan_of_file(path, [PAIR[0], both])
    assert formats_that_take(plan) == ("onnx-segments",)
    with pytest.raises(InexpressibleError, match="divides each op between processors"):
        export(plan, "onnx-layers", tmp_path / "l.onnx")


def test_files_of_segments_have_no_constant_output(tmp_path: Path) -> None:
    """So they are not offered, either."""
    helper, number = onnx.helper, onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"], "relu"),
         helper.make_node("Identity", ["w"], ["c"], "copy")],
        "g",
        [helper.make_tensor_value_info("x", number, [4])],
        [helper.make_tensor_value_info(name, number, [4]) for name in ("y", "c")],
        [onnx.numpy_helper.from_array(np.ones(4, np.float32), "w")],
    )  # fmt: skip
    file = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), str(file))
    plan = plan_of_file(file, CORES)
    assert "onnx-segments" not in formats_that_take(plan)
    with pytest.raises(InexpressibleError, match="output 'c' depends on no input"):
        export(plan, "onnx-segments", tmp_path / "segments")


def quantized_model(domain: str = "com.microsoft") -> onnx.ModelProto:
    """A product, an operator that ONNX has no shape inference for, and two that follow it."""
    helper = onnx.helper
    weight = np.random.default_rng(1).standard_normal((8, 8)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], "product"),
        helper.make_node("Gelu", ["a"], ["b"], "gelu", domain=domain),
        helper.make_node("Relu", ["b"], ["c"], "relu"),
        helper.make_node("Add", ["c", "a"], ["y"], "sum"),
    ]
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", 8])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["batch", 8])],
        [onnx.numpy_helper.from_array(weight, "w")],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(domain, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def test_segments_know_types_that_onnx_itself_does_not(tmp_path: Path) -> None:
    path = tmp_path / "q.onnx"
    onnx.save(quantized_model(), str(path))
    graph, source = read_onnx(path)
    assert [tuple(one) for one in graph.tensor_shapes[1:4]] == [(1, 8)] * 3
    plan = plan_with(graph, CORES, lambda op: op % 2, source, "onnxruntime")
    told = export(plan, "onnx-segments", tmp_path / "parts")
    assert "(tried here: ONNX Runtime loads it on the CPU); inputs are fixed to x=1,8" in told
    values: dict[str, Any] = {"x": np.random.default_rng(2).random((1, 8), dtype=np.float32)}
    for one in json.loads((tmp_path / "parts" / "segments.json").read_text())["segments"]:
        session = ort.InferenceSession(
            str(tmp_path / "parts" / one["file"]), providers=["CPUExecutionProvider"]
        )
        found = session.run(one["outputs"], {name: values[name] for name in one["inputs"]})
        values.update(zip(one["outputs"], found, strict=True))
    whole = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(values["y"], whole.run(["y"], {"x": values["x"]})[0], rtol=1e-6)


@pytest.mark.parametrize("form", ["onnx-layers", "onnx-segments"])
def test_what_onnx_runtime_refuses_is_not_written(form: str, tmp_path: Path) -> None:
    """An operator that nobody has: no file is made, and an earlier one stays as it is."""
    path, out = tmp_path / "q.onnx", tmp_path / "out"
    onnx.save(quantized_model("nobody"), str(path))
    graph, source = read_onnx(path)
    plan = plan_with(graph, CORES[:1], lambda op: 0, source, "onnxruntime")
    with pytest.raises(
        InexpressibleError, match=r"was not written: ONNX Runtime refuses .*: .*Gelu"
    ):
        export(plan, form, out)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["q.onnx"]
    if form == "onnx-layers":
        out.write_text("earlier")
        with pytest.raises(InexpressibleError):
            export(plan, form, out)
        assert out.read_text() == "earlier"

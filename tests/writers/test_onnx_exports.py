"""Annotated and split `.onnx` files, loaded and run by ONNX Runtime alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from frameworks.common.test_runtime_contract import branching_model
from writers.plans import plan_with

from placewright.core.cluster import Device
from placewright.core.plan import Plan
from placewright.errors import InexpressibleError, UnknownNameError
from placewright.frameworks.onnxruntime.reader import read_onnx
from placewright.session.export import export
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


def test_segments_run_one_after_the_other(path: Path, tmp_path: Path) -> None:
    export(plan_of_file(path, CORES, split=5), "onnx-segments", tmp_path / "parts")
    listed = json.loads((tmp_path / "parts" / "segments.json").read_text())
    assert listed["format"] == "placewright.onnx-segments/1"
    assert listed["inputs"] == ["x"]
    assert {one["device"] for one in listed["segments"]} == {"cpu:0", "cpu:1"}
    values: dict[str, Any] = {"x": X}
    for one in listed["segments"]:
        file = tmp_path / "parts" / one["file"]
        onnx.checker.check_model(str(file))
        session = ort.InferenceSession(str(file), providers=["CPUExecutionProvider"])
        assert [i.name for i in session.get_inputs()] == one["inputs"]
        found = session.run(one["outputs"], {name: values[name] for name in one["inputs"]})
        values.update(zip(one["outputs"], found, strict=True))
    assert sorted(listed["outputs"]) == ["gate", "logits"]
    for name, value in expected(path, X).items():
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


def test_what_cannot_be_said(path: Path, tmp_path: Path) -> None:
    with pytest.raises(InexpressibleError, match="export it as onnx-segments"):
        export(plan_of_file(path, CORES), "onnx-layers", tmp_path / "l.onnx")
    openvino_plan = plan_of_file(path, CORES)
    source = type(openvino_plan.problem.source)("m.xml", "0", "openvino")  # type: ignore[misc]
    other = plan_with(openvino_plan.problem.graph, CORES, lambda op: 0, source)
    for form in ("onnx-layers", "onnx-segments"):
        with pytest.raises(InexpressibleError, match=r"\.onnx"):
            export(other, form, tmp_path / "x")
    with pytest.raises(UnknownNameError, match="unknown export format 'banana'"):
        export(other, "banana", tmp_path / "x")
    assert not (tmp_path / "x").exists()

"""What is exported, run by the plain library alone: inputs by position and by name.

The reference is NumPy by hand (`own_order.models.by_hand`). HETERO and a device_map have one name
for all cores of the processor, so what they split is split between it and another device, whose
part then runs on the processor, too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from own_order.models import INPUTS, OUTPUTS, WRITERS, by_hand, values
from writers.plans import plan_with

from placewright.core.cluster import Device
from placewright.core.plan import Plan
from placewright.session.export import export
from placewright.session.models import load_model

OPENVINO = [Device("cpu", options={"device": "CPU"}), Device("GPU.0", "gpu")]
ONNX = [
    Device("cpu:0", options={"provider": "CPUExecutionProvider"}),
    Device("cpu:1", options={"provider": "CPUExecutionProvider"}),
]
CUDA = [Device("cuda:0", "gpu"), Device("cuda:1", "gpu")]
Outputs = Mapping[str, Any]


def plan_of(
    path: Path, runtime: str, devices: list[Device], device_of: Callable[[Any, int], int]
) -> Plan:
    model = load_model(str(path), runtime=runtime)
    assert model.source is not None
    graph = model.graph
    return plan_with(graph, devices, lambda op: device_of(graph, op), model.source, runtime)


def require_right(names: list[str], found: list[Any]) -> None:
    """Outputs in a row and their names, as the library lists them, against the hand."""
    right = by_hand(**values())
    assert sorted(names) == sorted(OUTPUTS)
    for name, value in zip(names, found, strict=True):
        np.testing.assert_allclose(np.asarray(value), right[name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("file", ["m.xml", "m.onnx", "m.pb", "saved"])
def test_openvino_affinity(file: str, split: bool, tmp_path: Path) -> None:
    import openvino

    from placewright.writers.openvino_affinity import apply_affinity

    WRITERS[file](tmp_path / file)
    plan = plan_of(tmp_path / file, "openvino", OPENVINO, lambda graph, op: op % 2 * split)
    export(plan, "openvino-affinity", tmp_path / "affinity.json")
    core = openvino.Core()
    model = core.read_model(tmp_path / file)
    plain = core.compile_model(core.read_model(tmp_path / file), "CPU")
    device = apply_affinity(model, json.loads((tmp_path / "affinity.json").read_text()))
    assert device.startswith("HETERO:")
    assert ("GPU.0" in device) == split
    if split:
        for node in model.get_ordered_ops():
            node.get_rt_info()["affinity"] = "CPU"
        device = "HETERO:CPU"
    compiled = core.compile_model(model, device, {"INFERENCE_PRECISION_HINT": "f32"})

    def known(ports: Any, names: tuple[str, ...]) -> list[str]:
        bare = [{name.partition(":")[0] for name in port.get_names()} for port in ports]
        return [next(name for name in names if name in found) for found in bare]

    inputs, outputs = known(compiled.inputs, INPUTS), known(compiled.outputs, OUTPUTS)
    assert (inputs, outputs) == (known(plain.inputs, INPUTS), known(plain.outputs, OUTPUTS))
    given = values()
    require_right(outputs, list(compiled([given[name] for name in inputs]).to_tuple()))
    named = compiled(
        {
            port.get_any_name(): given[name]
            for name, port in reversed(list(zip(inputs, compiled.inputs, strict=True)))
        }
    )
    require_right(outputs, [named[port.get_any_name()] for port in compiled.outputs])


def test_the_line_of_a_converted_model_names_the_file_that_openvino_reads(tmp_path: Path) -> None:
    import openvino

    from placewright.writers.openvino_affinity import apply_affinity

    WRITERS["m.pt2"](tmp_path / "m.pt2")
    plan = plan_of(tmp_path / "m.pt2", "openvino", OPENVINO, lambda graph, op: 0)
    told = export(plan, "openvino-affinity", tmp_path / "affinity.json")
    start, _, rest = told.partition("'")
    assert start == "model = core.read_model("
    model = openvino.Core().read_model(rest.partition("'")[0])
    data = json.loads((tmp_path / "affinity.json").read_text())
    assert apply_affinity(model, data) == "HETERO:CPU"


@pytest.mark.parametrize("file", ["m.onnx", "m.pt2"])
def test_onnx_segments(file: str, tmp_path: Path) -> None:
    """The manifest alone says which value is the first input, and which is ``deep``."""
    import onnxruntime

    WRITERS[file](tmp_path / file)
    plan = plan_of(tmp_path / file, "onnxruntime", ONNX, lambda graph, op: op % 2)
    export(plan, "onnx-segments", tmp_path / "parts")
    listed = json.loads((tmp_path / "parts" / "segments.json").read_text())
    assert {one["device"] for one in listed["segments"]} == {"cpu:0", "cpu:1"}
    assert listed["input_names"] == list(INPUTS)
    assert listed["output_names"] == list(OUTPUTS)

    def run(entering: dict[str, Any]) -> dict[str, Any]:
        for one in listed["segments"]:
            session = onnxruntime.InferenceSession(
                str(tmp_path / "parts" / one["file"]), providers=["CPUExecutionProvider"]
            )
            feeds = {name: entering[name] for name in one["inputs"]}
            entering.update(zip(one["outputs"], session.run(one["outputs"], feeds), strict=True))
        return entering

    given = values()
    in_a_row = run(dict(zip(listed["inputs"], (given[name] for name in INPUTS), strict=True)))
    require_right(list(OUTPUTS), [in_a_row[name] for name in listed["outputs"]])
    value_of = dict(zip(listed["input_names"], listed["inputs"], strict=True))
    named = run({value_of[name]: given[name] for name in reversed(INPUTS)})
    made_by = dict(zip(listed["output_names"], listed["outputs"], strict=True))
    require_right(list(OUTPUTS), [named[made_by[name]] for name in OUTPUTS])


@pytest.mark.parametrize("file", ["m.onnx", "m.pt2"])
def test_onnx_layers(file: str, tmp_path: Path) -> None:
    import onnxruntime

    from placewright.writers.onnx_layers import OPTION, assignment_settings

    WRITERS[file](tmp_path / file)
    plan = plan_of(tmp_path / file, "onnxruntime", ONNX[:1], lambda graph, op: 0)
    export(plan, "onnx-layers", tmp_path / "layers.onnx")
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry(OPTION, assignment_settings(plan))
    session = onnxruntime.InferenceSession(
        str(tmp_path / "layers.onnx"), options, providers=["CPUExecutionProvider"]
    )
    inputs = [one.name for one in session.get_inputs()]
    outputs = [one.name for one in session.get_outputs()]
    assert inputs == list(INPUTS)
    given = values()
    in_a_row = session.run(None, dict(zip(inputs, (given[n] for n in INPUTS), strict=True)))
    # A converter names the outputs of a .pt2 itself and keeps their order.
    names = outputs if file == "m.onnx" else list(OUTPUTS)
    require_right(names, in_a_row)
    named = session.run(outputs[::-1], {name: given[name] for name in reversed(INPUTS)})
    require_right(names[::-1], named)


@pytest.mark.parametrize("runtime", ["torch", "openvino", "onnxruntime"])
def test_device_map(runtime: str, tmp_path: Path) -> None:
    """The second half lies on the disk, which to Accelerate is a device like another."""
    import accelerate
    import torch
    from own_order.modules import InModules

    module = InModules()
    a, b, c = (torch.from_numpy(value) for value in values().values())
    torch.export.save(torch.export.export(module, (a, b), {"c": c}), tmp_path / "m.pt2")
    plan = plan_of(
        tmp_path / "m.pt2", runtime, CUDA, lambda graph, op: int("second" in graph.op_modules[op])
    )
    export(plan, "device-map", tmp_path / "map.json")
    found = json.loads((tmp_path / "map.json").read_text())
    assert found == {"first": "cuda:0", "second": "cuda:1", "spare": found["spare"]}
    places = {"cuda:0": "cpu", "cuda:1": "disk"}
    with torch.no_grad():
        split = accelerate.dispatch_model(
            module,
            {path: places[device] for path, device in found.items()},
            main_device="cpu",
            offload_dir=str(tmp_path / "offloaded"),
            force_hooks=True,
        )
        assert module.second.three.is_meta  # it does lie elsewhere
        for outputs in (split(a, b, c=c), split(c=c, b=b, a=a)):
            require_right(list(outputs), [value.numpy() for value in outputs.values()])

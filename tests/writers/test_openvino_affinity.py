"""HETERO affinities: every node has one, OpenVINO obeys them, names survive another reading."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import openvino
import pytest
from support.branching_model import branching_model
from writers.plans import plan_with

from placewright.core.cluster import Device
from placewright.core.plan import Plan
from placewright.errors import InexpressibleError, InputError, StalePlanError
from placewright.frameworks.onnxruntime.reader import read_onnx
from placewright.frameworks.openvino.reader import read_openvino
from placewright.session.export import export, formats_that_take, require_source
from placewright.writers.openvino_affinity import FORMAT, affinity_data, apply_affinity

CORE = openvino.Core()  # one, which stays: see `frameworks.openvino.runtime`
TENSORFLOW = Path(__file__).parents[1] / "data" / "tensorflow" / "network.pb"
PAIR = [Device("cpu", options={"device": "CPU"}), Device("GPU.0", "gpu")]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    onnx.save(branching_model(), str(tmp_path / "m.onnx"))
    return tmp_path / "m.onnx"


def plan_of_file(path: Path, devices: list[Device], *, split: int = 5) -> Plan:
    graph, source = read_openvino(path)
    return plan_with(graph, devices, lambda op: int(op >= split) % len(devices), source)


def affinities(model: Any) -> dict[str, str]:
    return {
        node.get_friendly_name(): node.get_rt_info()["affinity"].astype(str)
        for node in model.get_ordered_ops()
    }


def test_names_devices_and_order(path: Path) -> None:
    data = affinity_data(plan_of_file(path, PAIR))
    graph, source = read_openvino(path)
    assert data["device"] == "HETERO:GPU.0,CPU"  # most ops first
    assert data["shapes"] == {"x": [1, 4, 16, 16]}
    assert len(data["affinity"]) == graph.n_ops
    first, last = source.native_name(graph.op_names[0]), source.native_name(graph.op_names[-1])
    assert (data["affinity"][first], data["affinity"][last]) == ("CPU", "GPU.0")


@pytest.mark.parametrize("name", ["gpu-f16", "gpu:0", "card"])
def test_devices_without_a_name_in_openvino_are_refused(name: str, path: Path) -> None:
    with pytest.raises(InexpressibleError, match=f"'{name}' has no name in OpenVINO"):
        affinity_data(plan_of_file(path, [PAIR[0], Device(name, "gpu")]))
    mode = Device(name, "gpu", options={"device": "GPU.0"})
    assert affinity_data(plan_of_file(path, [PAIR[0], mode]))["device"] == "HETERO:GPU.0,CPU"


@pytest.mark.parametrize("name", ["onnx", "tensorflow"])
def test_every_node_gets_a_device_and_constants_follow_their_readers(name: str, path: Path) -> None:
    """Another reading of the file: names that OpenVINO makes up are different then."""
    file = path if name == "onnx" else TENSORFLOW
    data = affinity_data(plan_of_file(file, PAIR))
    model = CORE.read_model(file)
    assert apply_affinity(model, data) == "HETERO:GPU.0,CPU"
    for node in model.get_ordered_ops():
        own = node.get_rt_info()["affinity"].astype(str)
        assert own in ("CPU", "GPU.0")
        if node.get_type_name() == "Constant":
            readers = [t.get_node() for port in node.outputs() for t in port.get_target_inputs()]
            assert {r.get_rt_info()["affinity"].astype(str) for r in readers} <= {own}
        if node.get_type_name() == "Result":
            maker = node.input_value(0).get_node()
            assert maker.get_rt_info()["affinity"].astype(str) == own


def test_hetero_computes_what_the_model_computes(path: Path) -> None:
    data = affinity_data(plan_of_file(path, PAIR[:1]))
    assert data["device"] == "HETERO:CPU"
    options = {"INFERENCE_PRECISION_HINT": "f32"}
    model = CORE.read_model(path)
    compiled = CORE.compile_model(model, apply_affinity(model, data), options)
    plain = CORE.compile_model(CORE.read_model(path), "CPU", options)
    x = np.random.default_rng(0).standard_normal((1, 4, 16, 16)).astype(np.float32)
    for mine, other in zip(compiled([x]).values(), plain([x]).values(), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-6)


def test_hetero_obeys_the_affinities(path: Path) -> None:
    """A device that is not there is asked for: HETERO refuses, so it has read them."""
    if any(name.startswith("GPU") for name in CORE.available_devices):
        pytest.skip("this machine has a GPU")
    model = CORE.read_model(path)
    apply_affinity(model, affinity_data(plan_of_file(path, PAIR)))
    with pytest.raises(RuntimeError, match=r"(?i)gpu"):
        CORE.compile_model(model, "HETERO:CPU")


def test_a_shared_constant_is_copied_for_each_device(path: Path) -> None:
    """`w` is read by the first and the second convolution, which are on different devices."""
    graph, source = read_openvino(path)
    data = affinity_data(plan_with(graph, PAIR, lambda op: op % 2, source))
    model = CORE.read_model(path)
    apply_affinity(model, data)
    compiled = CORE.compile_model(_on_the_cpu(model), "CPU")
    plain = CORE.compile_model(str(path), "CPU")
    x = np.ones((1, 4, 16, 16), np.float32)
    for mine, other in zip(compiled([x]).values(), plain([x]).values(), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5)


def test_a_shape_that_both_devices_read_is_on_one_of_them(tmp_path: Path) -> None:
    """Two reshapes on two devices take the shape of x; it is no op of the plan."""
    op = openvino.opset13
    x = op.parameter([2, 3], np.float32, name="x")
    shape = op.concat([op.shape_of(x), op.constant(np.array([1]))], 0, name="shape")
    first = op.reshape(op.relu(x), shape, special_zero=False, name="first")
    second = op.reshape(op.exp(first), op.relu(shape), special_zero=False, name="second")
    openvino.save_model(openvino.Model([second], [x], "shapes"), str(tmp_path / "m.xml"))
    graph, source = read_openvino(tmp_path / "m.xml")
    assert sorted(graph.op_kinds) == ["Exp", "Relu", "Reshape", "Reshape"]
    device_of = {"first": 0, "second": 1}
    plan = plan_with(graph, PAIR, lambda at: device_of.get(graph.op_names[at], 0), source)
    model = CORE.read_model(tmp_path / "m.xml")
    apply_affinity(model, affinity_data(plan))
    found = affinities(model)
    assert (found["shape"], found["first"], found["second"]) == ("CPU", "CPU", "GPU.0")
    compiled = CORE.compile_model(_on_the_cpu(model), "HETERO:CPU")
    given = np.ones((2, 3), np.float32)
    np.testing.assert_allclose(compiled([given])[0], np.full((2, 3, 1), np.e), rtol=1e-2)


def _on_the_cpu(model: Any) -> Any:
    for node in model.get_ordered_ops():
        node.get_rt_info()["affinity"] = "CPU"
    return model


def test_what_cannot_be_said(path: Path) -> None:
    cores = [Device(f"cpu:{n}", options={"device": "CPU", "core": str(n)}) for n in (0, 1)]
    with pytest.raises(InexpressibleError, match="two devices that are 'CPU' to OpenVINO"):
        affinity_data(plan_of_file(path, cores))
    graph, source = read_onnx(path)
    with pytest.raises(InexpressibleError, match="not OpenVINO's"):
        affinity_data(plan_with(graph, PAIR, lambda op: 0, source))


def test_ops_that_are_called_like_positions_are_found_by_name(tmp_path: Path) -> None:
    model = branching_model()
    model.graph.node[1].name = model.graph.node[1].output[0] = "#foo"
    model.graph.node[2].input[0] = model.graph.node[11].input[0] = "#foo"
    onnx.save(model, str(tmp_path / "m.onnx"))
    data = affinity_data(plan_of_file(tmp_path / "m.onnx", PAIR))
    assert "#foo" in data["affinity"]
    apply_affinity(CORE.read_model(tmp_path / "m.onnx"), data)
    with pytest.raises(StalePlanError, match="has no op '#bar'"):
        apply_affinity(CORE.read_model(tmp_path / "m.onnx"), data | {"affinity": {"#bar": "CPU"}})


def test_of_equal_names_the_first_op_has_the_affinity() -> None:
    """A result and a later op are called like the op."""
    op = openvino.opset13
    x = op.parameter([2], np.float32, name="x")
    first = op.relu(x, name="y")
    second = op.negative(first, name="z")
    ends = [op.result(first, name="y"), op.result(op.exp(second, name="y"), name="last")]
    model = openvino.Model(ends, [x], "named")
    last = [node.get_type_name() for node in model.get_ordered_ops()].index("Exp")
    devices = {"y": "GPU.0", "z": "CPU", f"#{last}": "CPU"}
    data = {"format": FORMAT, "shapes": {}, "device": "HETERO:CPU,GPU.0", "affinity": devices}
    apply_affinity(model, data)
    found = {
        node.get_type_name(): node.get_rt_info()["affinity"].astype(str)
        for node in model.get_ordered_ops()
        if node.get_type_name() != "Result"
    }
    assert found == {"Parameter": "GPU.0", "Relu": "GPU.0", "Negative": "CPU", "Exp": "CPU"}


def test_plans_with_state_are_refused_before_they_are_tried(tmp_path: Path) -> None:
    """Their reader adds ops, which the file lacks."""
    value, file = onnx.helper.make_tensor_value_info, tmp_path / "m.onnx"
    nodes = [onnx.helper.make_node("Add", ["x", "past"], ["new_past"], "sum")]
    ends = [[value(name, 1, [2]) for name in names] for names in (("x", "past"), ("new_past",))]
    ends[1].append(value("y", 1, [2]))
    nodes.append(onnx.helper.make_node("Relu", ["new_past"], ["y"], "relu"))
    opsets = [onnx.helper.make_opsetid("", 17)]
    graph = onnx.helper.make_graph(nodes, "g", *ends)
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9), str(file))
    read, source = read_openvino(file, state={"new_past": "past"})
    plan = plan_with(read, PAIR[:1], lambda op: 0, source)
    assert "openvino-affinity" not in formats_that_take(plan)
    for refused in (
        lambda: export(plan, "openvino-affinity", tmp_path / "a.json"),
        lambda: require_source(source, "openvino-affinity"),
    ):
        with pytest.raises(InexpressibleError, match="keeps state"):
            refused()


def test_another_model_and_another_format_are_refused(path: Path) -> None:
    data = affinity_data(plan_of_file(path, PAIR))
    other = CORE.read_model(TENSORFLOW)
    with pytest.raises(StalePlanError, match="it has no op"):
        apply_affinity(other, data)
    with pytest.raises(InputError, match=r"openvino-affinity/1"):
        apply_affinity(other, {"a": "CPU"})


def test_each_device_computes_in_the_precision_of_the_plan(path: Path, tmp_path: Path) -> None:
    """The CPU reads the property through HETERO: it refuses a precision that it does not have."""
    hint = {"INFERENCE_PRECISION_HINT": "f32"}
    device = Device("cpu", options={"device": "CPU", **hint})
    data = affinity_data(plan_of_file(path, [device]))
    assert data["config"] == {"DEVICE_PROPERTIES": {"CPU": hint}}
    model = CORE.read_model(path)
    CORE.compile_model(model, apply_affinity(model, data), data["config"])
    told = export(plan_of_file(path, [device]), "openvino-affinity", tmp_path / "a.json")
    tried = "(tried here: OpenVINO compiles it for these devices)"
    assert f"data['config']) {tried}; inputs are fixed to x=1,4,16,16" in told
    wrong = Device("cpu", options={"device": "CPU", "INFERENCE_PRECISION_HINT": "banana"})
    with pytest.raises(InexpressibleError, match=r"not written: OpenVINO refuses it: .*banana"):
        export(plan_of_file(path, [wrong]), "openvino-affinity", tmp_path / "b.json")
    assert not (tmp_path / "b.json").exists()
    far = export(plan_of_file(path, PAIR), "openvino-affinity", tmp_path / "c.json")
    assert "(not tried: OpenVINO or a device of the plan is not here)" in far

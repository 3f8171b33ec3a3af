"""OpenVINO: cuts give the unsplit outputs; kernels map to ops; shared constants are legal."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from placewright.core.cluster import Cluster, Device
from placewright.core.grouping import Grouping, quotient
from placewright.errors import RuntimeFailure, StalePlanError, UnknownNameError
from placewright.execution.output_check import OutputCheck
from placewright.execution.runner import ConcurrentRunner
from placewright.execution.runtime import OpSegment, segments_of_ops
from placewright.frameworks.openvino import devices
from placewright.frameworks.openvino.reader import read_openvino
from placewright.frameworks.openvino.runtime import OpenVinoModel, OpenVinoRuntime
from placewright.frameworks.openvino.segments import RunningMeans
from placewright.profiling.discover import completed_cluster
from placewright.profiling.units import common_units


def small_model() -> Any:
    """Two branches of convolutions that share one weight, joined, pooled, and a linear head."""
    rng = np.random.default_rng(7)
    x = ops.parameter([1, 4, 16, 16], np.float32, name="x")
    shared = ops.constant(rng.standard_normal((4, 4, 3, 3)).astype(np.float32))

    def convolution(value: Any, weight: Any) -> Any:
        ones = [1, 1]
        return ops.relu(ops.convolution(value, weight, ones, ones, ones, ones))

    left, right = convolution(x, shared), convolution(convolution(x, shared), shared)
    joined = ops.concat([left, right], 1)
    pooled = ops.reduce_mean(joined, np.array([2, 3]), False)
    parts = ops.split(pooled, np.int64(1), 2)
    head = ops.constant(rng.standard_normal((4, 5)).astype(np.float32))
    logits = ops.matmul(parts.output(0), head, False, False)
    gate = ops.sigmoid(parts.output(1))
    return ov.Model([ops.result(logits), ops.result(gate)], [x], "small")


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "small.xml"
    ov.save_model(small_model(), str(path), compress_to_fp16=False)
    return path


@pytest.fixture(scope="module")
def model(model_path: Path) -> OpenVinoModel:
    graph, source = read_openvino(model_path)
    return OpenVinoRuntime().load(source, graph)


def test_an_interrupt_is_one_after_models_came_and_went(model_path: Path) -> None:
    """In a process of its own, which a signal without a stack would end."""
    code = (
        "import signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell may ignore it
        "from placewright.frameworks.openvino.reader import read_openvino\n"
        "from placewright.frameworks.openvino.runtime import OpenVinoRuntime\n"
        "runtime, (graph, source) = OpenVinoRuntime(), read_openvino(sys.argv[1])\n"
        "first, second = runtime.load(source, graph), runtime.load(source, graph)\n"
        "first.reference(runtime.discover()[0]), second.reference(runtime.discover()[0])\n"
        "del first\n"
        "del second\n"
        "try:\n    signal.raise_signal(signal.SIGINT)\n"
        "except KeyboardInterrupt:\n    print('interrupted')"
    )
    command = [sys.executable, "-c", code, str(model_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "interrupted"), done.stderr


def core_device() -> Any:
    return OpenVinoRuntime().discover()[1]


def test_every_op_in_a_segment_of_its_own_gives_the_same_outputs(model: OpenVinoModel) -> None:
    inputs = model.random_inputs(np.random.default_rng(1))
    devices = [core_device(), replace(core_device(), name="again")]
    whole = OpSegment(0, *_whole(model))
    order = model.graph.topological_order.tolist()
    single = segments_of_ops(model.graph, [(op % 2, [op]) for op in order])
    with (
        ConcurrentRunner(model, [whole], devices) as unsplit,
        ConcurrentRunner(model, single, devices) as split,
    ):
        expected, found = unsplit.run(inputs).outputs, split.run(inputs).outputs
    assert len(expected) == 2
    assert all(np.abs(value).max() > 0 for value in expected)
    for mine, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5)


def test_other_inputs_give_other_outputs(model: OpenVinoModel) -> None:
    rng = np.random.default_rng(1)
    requests = [model.random_inputs(rng) for _ in range(5)]
    order = model.graph.topological_order.tolist()
    parts = segments_of_ops(model.graph, [(op % 2, [op]) for op in order])
    devices = [core_device(), replace(core_device(), name="again")]
    with ConcurrentRunner(model, parts, devices, in_flight=3) as runner:
        together = runner.run_many(requests)
        one_by_one = [runner.run(request) for request in requests]
    for mine, other in zip(together, one_by_one, strict=True):
        np.testing.assert_array_equal(mine.outputs[0], other.outputs[0])
    assert not np.array_equal(together[0].outputs[0], together[1].outputs[0])


def test_a_core_in_two_precisions_runs_one_model(model: OpenVinoModel) -> None:
    """Every second op in bf16, on the same core as the others; outputs are within its tolerance."""
    half = {"INFERENCE_PRECISION_HINT": "bf16"}
    modes = (Device("cpu:0"), Device("half", processors=("cpu:0",), options=half))
    cluster = completed_cluster(Cluster(modes), OpenVinoRuntime())
    assert cluster.devices[1].options == {**cluster.devices[0].options, **half}
    order = model.graph.topological_order.tolist()
    parts = segments_of_ops(model.graph, [(op % 2, [op]) for op in order])
    inputs = model.random_inputs(np.random.default_rng(1))
    whole = [OpSegment(0, *_whole(model))]
    with (
        ConcurrentRunner(model, whole, cluster.devices) as unsplit,
        ConcurrentRunner(model, parts, cluster.devices, in_flight=2) as runner,
    ):
        (expected,), found = unsplit.run_many([inputs]), runner.run_many([inputs] * 3)
    close = model.tolerance(cluster.devices)
    for answer in found:
        for mine, other in zip(answer.outputs, expected.outputs, strict=True):
            np.testing.assert_allclose(mine, other, rtol=close, atol=close * np.abs(other).max())


def test_what_bfloat16_cancels_in_the_whole_model_is_no_mismatch(tmp_path: Path) -> None:
    """y[:, 0] = 1.001 s - s for the sum s of x: 0 in bf16, which has no 1.001. The others are s."""
    x = ops.parameter([8, 16], np.float32, name="x")
    weights = np.ones((16, 2), np.float32) * np.array([1.001, 1.0], np.float32)
    sums = ops.relu(ops.matmul(x, ops.constant(weights), False, False))
    head = np.array([[1.0, 0.0, 0.0], [-1.0, 1.0, 1.0]], np.float32)
    made = ov.Model([ops.result(ops.matmul(sums, ops.constant(head), False, False))], [x], "m")
    ov.save_model(made, str(tmp_path / "m.xml"), compress_to_fp16=False)
    graph, source = read_openvino(tmp_path / "m.xml")
    model = OpenVinoRuntime().load(source, graph)
    half = {"INFERENCE_PRECISION_HINT": "bf16"}
    modes = (Device("cpu:0"), Device("half", processors=("cpu:0",), options=half))
    chosen = completed_cluster(Cluster(modes), OpenVinoRuntime()).devices
    inputs = [np.abs(value) for value in model.random_inputs(np.random.default_rng(1))]
    check = OutputCheck(model, chosen)
    expected = check.plain(inputs)
    with ConcurrentRunner(model, [OpSegment(1, *_whole(model))], chosen) as runner:
        found = runner.run([inputs[0]]).outputs
    assert np.abs(found[0][:, 0] - expected[0][:, 0]).max() > 5e-4 * np.abs(expected[0]).max()
    (judged,) = check.judged(inputs, found, expected)
    assert judged.excess <= 1.0
    assert judged.scatter > 0.5  # of the column
    found[0][:, 1] *= 1.5  # a wrong column is still one
    assert check.judged(inputs, found, expected)[0].excess > 1.0


def test_outputs_in_bfloat16_become_float32(tmp_path: Path) -> None:
    """NumPy lacks the type, and OpenVINO gives its bits as float16."""
    x = ops.parameter([2, 3], np.float32, name="x")
    made = ov.Model([ops.result(ops.convert(ops.relu(x), "bf16"))], [x], "half")
    ov.save_model(made, str(tmp_path / "half.xml"), compress_to_fp16=False)
    graph, source = read_openvino(tmp_path / "half.xml")
    model = OpenVinoRuntime().load(source, graph)
    values = np.array([[1.5, -2.0, 96.0], [-0.25, 3.0, 0.125]], dtype=np.float32)
    device = core_device()
    found = model.plain(device)([values])
    with ConcurrentRunner(model, [OpSegment(0, *_whole(model))], [device]) as runner:
        found += runner.run([values]).outputs
    with model.throughput_mode(device) as server:
        found += server.run_many([[values]])[0].outputs
    assert len(found) == 3
    for output in found:
        assert output.dtype == np.float32
        np.testing.assert_array_equal(output, np.maximum(values, 0.0))


def test_a_state_that_takes_over_another_is_a_call_behind_it(tmp_path: Path) -> None:
    """A delay: what is returned is the sum of this call's input and that of two calls ago."""
    x, newer, older = (
        ops.parameter([1, 4], np.float32, name=name) for name in ("x", "newer", "older")
    )
    results = [
        ops.result(ops.add(x, older), name="y"),
        ops.result(ops.relu(x), name="next"),
        ops.result(newer, name="passed"),
    ]
    made = ov.Model(results, [x, newer, older], "delay")
    ov.save_model(made, str(tmp_path / "delay.xml"), compress_to_fp16=False)
    state = {"next": "newer", "newer": "older"}  # an output takes the name of its input
    graph, source = read_openvino(tmp_path / "delay.xml", state=state)
    model = OpenVinoRuntime().load(source, graph)
    instance = model.reference(core_device()).instance()
    found = []
    for value in range(1, 6):
        (y,) = instance.run([model.from_host(np.full((1, 4), value, np.float32))])
        found.append(model.to_host(y).tolist())
    assert found == [[[value] * 4] for value in (1, 2, 3 + 1, 4 + 2, 5 + 3)]


def test_equal_segments_are_compiled_once(model: OpenVinoModel) -> None:
    order = model.graph.topological_order.tolist()
    halves = segments_of_ops(model.graph, [(0, order[:4]), (0, order[4:])])
    first = model.compile(halves, [core_device()])
    again = model.compile(halves, [core_device()])
    assert all(a is b for a, b in zip(first, again, strict=True))


def test_cores_do_not_wait_for_each_other_in_one_compiled_model(model: OpenVinoModel) -> None:
    """OpenVINO lets one request at a time into a compiled model with one stream."""
    order = model.graph.topological_order.tolist()
    parts = segments_of_ops(model.graph, [(0, order[:4]), (1, order[4:])])
    first = core_device()
    other = replace(first, name="cpu:1", options={**first.options, "core": "1"})
    mine = model.compile(parts, [first, first])[0]
    assert model.compile(parts, [first, first])[0] is mine
    assert model.compile(parts, [other, first])[0].compiled is not mine.compiled  # type: ignore[attr-defined]


def test_convolution_and_activation_are_one_kernel(model: OpenVinoModel) -> None:
    graph = model.graph
    fused = model.fused_groups(core_device())
    convolutions = [op for op, kind in enumerate(graph.op_kinds) if kind == "Convolution"]
    assert len(convolutions) == 3
    for op in convolutions:
        (relu,) = graph.successors.row(op).tolist()
        assert fused.group_of[op] == fused.group_of[relu]
    units = common_units(graph, [fused])
    assert quotient(graph, units).graph.n_ops == units.n_groups < graph.n_ops


def test_kernel_times_are_positive_where_the_work_is(model: OpenVinoModel) -> None:
    seconds = model.profiler(core_device())()
    assert seconds.shape == (model.graph.n_ops,)
    assert np.isfinite(seconds).all()
    assert (seconds >= 0).all()


@pytest.mark.parametrize("before", [0, 1])
def test_the_cold_first_run_is_in_no_later_seconds(before: int) -> None:
    """The processor's timers give the mean of all runs since the model was compiled."""
    means, total = RunningMeans(), np.array([90.0, 9.0]) * before
    means.runs = before
    found = []
    for run in ([100.0, 10.0], [10.0, 10.0], [12.0, 0.0]):
        total = total + run
        found.append(means.warm(total / (means.runs + 1)))
    np.testing.assert_allclose(found[0], [100.0 - 5 * before, 10.0 - 0.5 * before])
    np.testing.assert_allclose(found[1:], [[10.0, 10.0], [11.0, 5.0]])


def test_equal_ops_have_equal_labels(model: OpenVinoModel) -> None:
    units = Grouping.identity(model.graph.n_ops)
    labels = model.unit_labels(units)
    convolutions = [op for op, kind in enumerate(model.graph.op_kinds) if kind == "Convolution"]
    of_convolutions = {labels[int(units.group_of[op])] for op in convolutions}
    assert len(of_convolutions) == 1
    assert len(set(labels)) > 1


def test_a_changed_model_is_refused(model_path: Path) -> None:
    graph, source = read_openvino(model_path)
    changed = model_path.with_name("changed.xml")
    x = ops.parameter([1, 4, 16, 16], np.float32, name="x")
    ov.save_model(ov.Model([ops.tanh(x)], [x], "other"), str(changed))
    other = type(source)(str(changed), source.sha256, source.format)
    with pytest.raises(StalePlanError, match="has changed: op"):
        OpenVinoRuntime().load(other, graph)


def test_a_refused_segment_is_named(model: OpenVinoModel) -> None:
    device = type(core_device())("bad", options={"device": "CPU", "NUM_STREAMS": "many"})
    with pytest.raises(RuntimeFailure, match=r"cannot compile a segment of .* for 'bad'"):
        model.reference(device)


def test_an_unknown_device_is_named() -> None:
    device = type(core_device())("GPU.7", "gpu")
    if any(name.startswith("GPU") for name in ov.Core().available_devices):
        pytest.skip("this machine has a GPU")
    with pytest.raises(UnknownNameError, match=r"GPU\.7"):
        OpenVinoRuntime().completed(device)


def _whole(model: OpenVinoModel) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    (segment,) = segments_of_ops(model.graph, [(0, model.graph.topological_order.tolist())])
    return segment.ops, segment.inputs, segment.outputs


def test_segments_know_the_shapes_that_other_segments_were_asked_for(tmp_path: Path) -> None:
    """A sum over axes 0 .. rank - 1, as converters write it: cut from the op whose rank it asks,
    it would have axes of unknown number, which the CPU plug-in refuses."""
    x = ops.parameter([-1, 4], np.float32, name="x")
    relu = ops.relu(x)
    rank = ops.squeeze(ops.shape_of(ops.shape_of(relu)), ops.constant(0))
    axes = ops.range(ops.constant(0), ops.convert(rank, "i32"), ops.constant(1), "i32")
    total = ops.reduce_sum(relu, axes, keep_dims=False)
    path = tmp_path / "sum.xml"
    ov.save_model(ov.Model([ops.exp(total)], [x], "sum"), str(path), compress_to_fp16=False)
    graph, source = read_openvino(path, shapes={"x": (3, 4)})
    assert graph.op_kinds == ("Relu", "ReduceSum", "Exp")
    model, device = OpenVinoRuntime().load(source, graph), core_device()
    segments = segments_of_ops(graph, [(0, [op]) for op in graph.topological_order.tolist()])
    inputs = model.random_inputs(np.random.default_rng(0))
    with ConcurrentRunner(model, segments, [device]) as runner:
        (found,) = runner.run(inputs).outputs
    np.testing.assert_allclose(found, np.exp(np.maximum(inputs[0], 0).sum()), rtol=1e-5)


class CoreWithGpus:
    """Reports a processor, an integrated GPU, a card and an NPU whose plugin knows no memory."""

    available_devices = ("CPU", "GPU.0", "GPU.1", "NPU")

    def get_property(self, name: str, entry: str) -> Any:
        types = ov.properties.device.Type
        known = {
            "DEVICE_TYPE": {"GPU.0": types.INTEGRATED, "GPU.1": types.DISCRETE},
            "GPU_DEVICE_TOTAL_MEM_SIZE": {"GPU.0": 12 * 2**30, "GPU.1": 8 * 2**30},
            "GPU_DRIVER_VERSION": {"GPU.1": "32.0.1"},
            "FULL_DEVICE_NAME": {"CPU": "a processor", "GPU.0": "a GPU", "GPU.1": "a card"},
        }
        if name not in known.get(entry, {}):
            raise RuntimeError(f"{name} does not report {entry}")
        return known[entry][name]


def test_an_integrated_gpu_has_the_memory_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "openvino_core", CoreWithGpus)
    found = {device.name: device for device in devices.discovered()}
    pools = {name: found[name].pool for name in ("GPU.0", "GPU.1", "NPU")}
    assert pools == {"GPU.0": "ram", "GPU.1": None, "NPU": None}
    assert found["GPU.0"].memory_bytes == 12 * 2**30
    assert found["GPU.1"].memory_bytes == 8 * 2**30
    assert found["NPU"].memory_bytes == math.inf


def test_another_driver_is_another_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs of the driver before an update were taken."""
    monkeypatch.setattr(devices, "openvino_core", CoreWithGpus)
    found = {device.name: device.fingerprint for device in devices.discovered()}
    assert found["GPU.0"].startswith("a GPU {")  # its plugin reports no driver
    assert found["GPU.1"].startswith("a card; driver 32.0.1 {")
    assert found["NPU"].startswith("NPU {")


@pytest.mark.parametrize(
    ("native", "is_here"),
    [
        *[("GPU", True), ("GPU.0", True), ("GPU.1", True), ("GPU.1.0", True), ("GPU.2", False)],
        *[("CPU", True), ("CPU.0", True), ("CPU.7", False), ("NPU.3720", True), ("GNA", False)],
    ],
)
def test_a_number_of_a_device_that_is_not_here_is_refused(
    native: str, is_here: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "openvino_core", CoreWithGpus)
    device = Device("mine", native.partition(".")[0].lower(), options={"device": native})
    if is_here:
        assert devices.completed(device).options["device"] == native
    else:
        with pytest.raises(UnknownNameError, match="mine"):
            devices.completed(device)

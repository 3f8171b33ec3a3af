"""Weights of few bits count as OpenVINO keeps them, beside what its compiled models hold."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

openvino = pytest.importorskip("openvino")

from openvino import opset13 as ops  # noqa: E402
from support.openvino_graphs import graph_of_openvino_model  # noqa: E402

from placewright.frameworks.openvino.reader import read_openvino as read  # noqa: E402
from placewright.profiling.catalogue import catalogue_cluster  # noqa: E402
from placewright.profiling.roofline import roofline_problem  # noqa: E402

SIZE = 128
SHAPES: dict[str, tuple[list[int], list[int]]] = {  # of the input and of the weights
    "matmul": ([4, SIZE], [SIZE, SIZE]),
    "three-dimensional matmul": ([2, 4, SIZE], [2, SIZE, SIZE]),
    "convolution": ([1, 64, 14, 14], [256, 64, 3, 3]),
    "depthwise convolution": ([1, 256, 14, 14], [256, 1, 1, 3, 3]),
    "gather": ([4], [1000, SIZE]),
    "addition": ([SIZE, SIZE], [SIZE, SIZE]),
}
KEEP_PACKED = ("matmul", "three-dimensional matmul", "gather")
TYPES = ("i8", "u8", "i4", "u4")


def unpacked(shape: list[int], kind: str, zero_point: bool) -> Any:
    """Integers through Convert, Subtract and Multiply."""
    values = np.random.default_rng(0).integers(0, 7, math.prod(shape)).tolist()
    element = getattr(openvino.Type, kind)
    weights = ops.convert(openvino.op.Constant(element, openvino.Shape(shape), values), "f32")
    per_channel = [shape[0], *[1] * (len(shape) - 1)]
    if zero_point:
        zeros = np.full(per_channel, 3, np.uint8 if kind[0] == "u" else np.int8)
        weights = ops.subtract(weights, ops.convert(ops.constant(zeros), "f32"))
    return ops.multiply(weights, ops.constant(np.full(per_channel, 0.01, np.float32)))


def quantized(value: Any, low: float, high: float, levels: int = 256) -> Any:
    ends = [ops.constant(np.float32(end)) for end in (low, high, low, high)]
    return ops.fake_quantize(value, *ends, levels)


def model_of(
    reader: str,
    weights: Callable[[list[int]], Any],
    quantized_activations: bool = False,
    element: Any = np.float32,
) -> Any:
    shape, weight_shape = SHAPES[reader]
    made = weights(weight_shape)
    if reader == "gather":
        indices = ops.parameter(shape, np.int32)
        found = ops.gather(made, indices, ops.constant(np.int32(0)))
        return openvino.Model([ops.relu(found)], [indices], "m")
    x = ops.parameter(shape, element)
    entering = quantized(x, 0.0, 2.55) if quantized_activations else x
    if "matmul" in reader:
        found = ops.matmul(entering, made, False, True)
    elif reader == "addition":
        found = ops.add(entering, made)
    else:
        is_depthwise = reader == "depthwise convolution"
        convolve = ops.group_convolution if is_depthwise else ops.convolution
        found = convolve(entering, made, [1, 1], [1, 1], [1, 1], [1, 1])
    return openvino.Model([ops.relu(found)], [x], "m")


def largest_constant_bytes(model: Any) -> float:
    """Of the compiled model: the independent side."""
    config = {"ENABLE_CPU_PINNING": False, "INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(model.clone(), "CPU", config)
    found = [0.0]
    for node in compiled.get_runtime_model().get_ordered_ops():
        info = node.get_rt_info()
        if str(info["layerType"].astype(str)) == "Const":
            kind = str(info["outputPrecisions"].astype(str))
            bits = {"f32": 32, "f16": 16}.get(kind) or int("".join(filter(str.isdigit, kind)) or 0)
            found.append(math.prod(node.output(0).get_partial_shape().to_shape()) * bits / 8)
    return max(found)


def counted(model: Any) -> float:
    graph, _ = graph_of_openvino_model(model)
    return float(graph.weight_bytes.max())


def dtype_of_largest(model: Any) -> str:
    graph, _ = graph_of_openvino_model(model)
    return graph.weight_dtypes[int(graph.weight_bytes.argmax())]


def check(model: Any) -> None:
    kept, told = largest_constant_bytes(model), counted(model)
    assert kept <= told <= kept * 1.1 + 8192, "scales and zero points come on top"


@pytest.mark.parametrize("zero_point", [False, True])
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("reader", SHAPES)
def test_weights_with_a_scale(reader: str, kind: str, zero_point: bool) -> None:
    model = model_of(reader, lambda shape: unpacked(shape, kind, zero_point))
    check(model)
    assert dtype_of_largest(model) == (kind if reader in KEEP_PACKED else "f32")


@pytest.mark.parametrize("kind", ["i8", "u8"])
@pytest.mark.parametrize("reader", ["matmul", "convolution", "depthwise convolution", "addition"])
def test_weights_of_quantized_activations(reader: str, kind: str) -> None:
    check(model_of(reader, lambda shape: unpacked(shape, kind, False), True))


@pytest.mark.parametrize("activations", [False, True])
@pytest.mark.parametrize("reader", ["matmul", "convolution"])
def test_weights_that_are_quantized_by_the_compiler(reader: str, activations: bool) -> None:
    def weights(shape: list[int]) -> Any:
        values = np.random.default_rng(0).normal(size=shape).astype(np.float32)
        return quantized(ops.constant(values), -1.27, 1.27, 255)

    check(model_of(reader, weights, activations))


@pytest.mark.parametrize("reader", ["matmul", "convolution", "gather", "addition"])
def test_weights_in_half_precision_that_an_op_reads_itself(reader: str) -> None:
    """The plugin converts them to f32; they counted as two bytes each."""

    def weights(shape: list[int]) -> Any:
        values = np.random.default_rng(0).normal(size=shape).astype(np.float16)
        return ops.constant(values)

    model = model_of(reader, weights, element=np.float16)
    assert counted(model) == 4 * math.prod(SHAPES[reader][1])
    assert dtype_of_largest(model) == "f32"
    check(model)


@pytest.mark.parametrize("device", ["cpu-i9-12900k", "gpu-t4"])
def test_weights_in_half_precision_have_the_bytes_of_the_model_on_data_sheets(device: str) -> None:
    def weights(shape: list[int]) -> Any:
        return ops.constant(np.ones(shape, np.float16))

    graph, _ = graph_of_openvino_model(model_of("matmul", weights, element=np.float16))
    problem = roofline_problem(graph, catalogue_cluster([device]))
    assert problem.graph.weight_bytes.tolist() == [2 * SIZE * SIZE]
    assert problem.graph.weight_dtypes == ("f16",)


def test_a_weight_that_an_addition_reads_too_is_unpacked_for_it() -> None:
    x = ops.parameter([SIZE, SIZE], np.float32)
    weights = unpacked([SIZE, SIZE], "i8", False)
    model = openvino.Model([ops.add(ops.matmul(x, weights, False, True), weights)], [x], "m")
    assert counted(model) == 4 * SIZE * SIZE


@pytest.mark.parametrize("layers", [1, 6])
def test_an_int8_onnx_file_counts_about_its_size(layers: int, tmp_path: Path) -> None:
    """The promise: bytes of weights are those of the file, not four times as many."""
    onnx = pytest.importorskip("onnx")
    helper, numpy_helper = onnx.helper, onnx.numpy_helper
    nodes, held, name = [], [], "x"
    for number in range(layers):
        values = np.random.default_rng(number).integers(-127, 127, (512, 512)).astype(np.int8)
        held.append(numpy_helper.from_array(values, f"w{number}"))
        held.append(numpy_helper.from_array(np.full(512, 0.01, np.float32), f"s{number}"))
        held.append(numpy_helper.from_array(np.zeros(512, np.int8), f"z{number}"))
        stored = [f"w{number}", f"s{number}", f"z{number}"]
        nodes.append(helper.make_node("DequantizeLinear", stored, [f"d{number}"], axis=1))
        nodes.append(helper.make_node("MatMul", [name, f"d{number}"], [f"y{number}"]))
        name = f"y{number}"
    inputs = [helper.make_tensor_value_info("x", 1, [1, 512])]
    outputs = [helper.make_tensor_value_info(name, 1, [1, 512])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, held)
    opsets = [helper.make_opsetid("", 17)]
    path = tmp_path / "int8.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), str(path))
    found, _ = read(path)
    size = path.stat().st_size
    assert 0.95 * size < found.weight_bytes.sum() < 1.05 * size

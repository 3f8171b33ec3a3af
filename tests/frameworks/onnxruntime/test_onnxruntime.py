"""ONNX Runtime: sub-models of unusual models, kernels mapped to ops, shared weights, options."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.branching_model import branching_model

from placewright.core.cluster import Device
from placewright.errors import InputError, MissingExtraError, RuntimeFailure, UnknownNameError
from placewright.execution.runner import ConcurrentRunner
from placewright.execution.runtime import OpSegment, segments_of_ops
from placewright.frameworks.onnxruntime.conversion import OnnxConverter
from placewright.frameworks.onnxruntime.kernels import KernelMap
from placewright.frameworks.onnxruntime.reader import read_onnx
from placewright.frameworks.onnxruntime.runtime import OnnxModel, OnnxRuntime
from placewright.io.model_parts import every_message
from placewright.profiling.units import common_units
from placewright.testing.framework_contract import check_split, random_segments

AFFINITY = "session.intra_op_thread_affinities"  # wants one entry per thread but the first


def saved(
    path: Path,
    nodes: Sequence[Any],
    inputs: Sequence[tuple[str, int, list[int]]],
    outputs: Sequence[tuple[str, int, list[int] | None]],
    initializers: dict[str, np.ndarray[Any, Any]],
) -> Path:
    """A model file with these nodes."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        list(nodes),
        "g",
        [value(*one) for one in inputs],
        [value(*one) for one in outputs],
        [numpy_helper.from_array(array, name) for name, array in initializers.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, str(path))
    return path


def loaded(path: Path) -> OnnxModel:
    graph, source = read_onnx(path)
    return OnnxRuntime().load(source, graph)


def cores() -> list[Device]:
    return [device for device in OnnxRuntime().discover() if device.name.startswith("cpu:")][:2]


def split_outputs(model: OnnxModel, inputs: Sequence[np.ndarray[Any, Any]]) -> list[Any]:
    """Outputs with every op in a segment of its own, devices in turn."""
    order = model.graph.topological_order.tolist()
    parts = segments_of_ops(model.graph, [(at % 2, [op]) for at, op in enumerate(order)])
    devices = (cores() * 2)[:2]
    with ConcurrentRunner(model, parts, devices) as runner:
        return list(runner.run(inputs).outputs)


def session_outputs(path: Path, inputs: Sequence[np.ndarray[Any, Any]]) -> list[Any]:
    """Outputs of the file itself, by ONNX Runtime alone."""
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]
    return list(session.run(None, dict(zip(names, inputs, strict=True))))


def make_branching(path: Path) -> Path:
    onnx.save(branching_model(), str(path))
    return path


def make_external(path: Path) -> Path:
    """Weights in a file of their own; the small ones too."""
    onnx.save(
        branching_model(),
        str(path),
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=0,
    )
    return path


def make_value_dependent(path: Path) -> Path:
    """The number of non-zero elements depends on the input's values."""
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("NonZero", ["r"], ["where"]),
        helper.make_node("Cast", ["where"], ["float"], to=TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["float"], ["y"], keepdims=0),
    ]
    outputs = [("where", TensorProto.INT64, [2, None]), ("y", TensorProto.FLOAT, [])]
    return saved(path, nodes, [("x", TensorProto.FLOAT, [3, 5])], outputs, {})  # type: ignore[list-item]


def make_captured(path: Path) -> Path:
    """A branch whose subgraphs read a value and an initializer of the graph around them."""

    def branch(kind: str) -> Any:
        output = helper.make_tensor_value_info(f"{kind}_out", TensorProto.FLOAT, [2, 3])
        inner = helper.make_node(kind, ["doubled", "w"], [f"{kind}_out"])
        return helper.make_graph([inner], kind, [], [output])

    nodes = [
        helper.make_node("Add", ["x", "x"], ["doubled"]),
        helper.make_node("ReduceSum", ["x"], ["total"], keepdims=0),
        helper.make_node("Greater", ["total", "zero"], ["positive"]),
        helper.make_node(
            "If", ["positive"], ["z"], then_branch=branch("Add"), else_branch=branch("Mul")
        ),
        helper.make_node("Neg", ["z"], ["y"]),
    ]
    weights = {"w": np.full((2, 3), 3.0, np.float32), "zero": np.float32(0)}
    inputs = [("x", TensorProto.FLOAT, [2, 3])]
    return saved(path, nodes, inputs, [("y", TensorProto.FLOAT, [2, 3])], weights)  # type: ignore[dict-item]


def make_constant_chain(path: Path) -> Path:
    """A weight that nodes compute from constants, read by two ops; a large ``Constant`` node."""
    large = numpy_helper.from_array(np.arange(4096, dtype=np.float32).reshape(64, 64) / 4096)
    nodes = [
        helper.make_node("Constant", [], ["c"], value=large),
        helper.make_node("Transpose", ["c"], ["t"]),
        helper.make_node("Mul", ["t", "half"], ["w"]),
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("MatMul", ["a", "w"], ["b"]),
        helper.make_node("Sub", ["b", "x"], ["y"]),
    ]
    inputs = [("x", TensorProto.FLOAT, [2, 64])]
    outputs = [("y", TensorProto.FLOAT, [2, 64])]
    return saved(path, nodes, inputs, outputs, {"half": np.float32(0.5)})  # type: ignore[dict-item]


def make_handed_on(path: Path) -> Path:
    """An output that is an input, and one tensor that is read twice by one node."""
    nodes = [helper.make_node("Mul", ["x", "x"], ["y"])]
    outputs = [("y", TensorProto.FLOAT, [4]), ("x", TensorProto.FLOAT, [4])]
    return saved(path, nodes, [("x", TensorProto.FLOAT, [4])], outputs, {})


def make_names_of_others(path: Path) -> Path:
    """Nodes that are called like positions, and one like a constant before it."""
    one = numpy_helper.from_array(np.ones(4, np.float32))
    nodes = [
        helper.make_node("Constant", [], ["one"], "sum", value=one),
        helper.make_node("Relu", ["x"], ["r"], "#3"),
        helper.make_node("Neg", ["r"], ["n"], "#x"),
        helper.make_node("Add", ["n", "one"], ["a"], "sum"),
        helper.make_node("Abs", ["a"], ["y"], "#0"),
    ]
    return saved(path, nodes, [("x", TensorProto.FLOAT, [2, 4])], [("y", 1, [2, 4])], {})


def saved_choice(path: Path, branch: Callable[[str], Any]) -> Path:
    """A model that adds or multiplies in a branch; `branch` makes one of a kind of node."""
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["total"], keepdims=0),
        helper.make_node("Greater", ["total", "zero"], ["positive"]),
        helper.make_node(
            "If", ["positive"], ["y"], then_branch=branch("Add"), else_branch=branch("Mul")
        ),
    ]
    square, zero = [4, 4], {"zero": np.float32(0)}
    return saved(path, nodes, [("x", 1, square)], [("y", 1, square)], zero)  # type: ignore[arg-type]


def make_sparse(path: Path) -> Path:
    """Branches with a sparse initializer of their own."""

    def branch(kind: str) -> Any:
        output = helper.make_tensor_value_info(f"{kind}_out", TensorProto.FLOAT, [4, 4])
        inner = helper.make_node(kind, ["x", "inner"], [f"{kind}_out"])
        made = helper.make_graph([inner], kind, [], [output])
        numbers = numpy_helper.from_array(np.array([1, 2, 3], np.float32), "inner")
        places = numpy_helper.from_array(np.array([0, 5, 10], np.int64))
        made.sparse_initializer.append(helper.make_sparse_tensor(numbers, places, [4, 4]))
        return made

    return saved_choice(path, branch)


def make_sparse_weights(path: Path) -> Path:
    """Sparse initializers of the model itself: one that two ops read, one behind a constant."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "w"], ["c"]),
        helper.make_node("Transpose", ["v"], ["turned"]),
        helper.make_node("Add", ["c", "turned"], ["y"]),
    ]
    saved(path, nodes, [("x", 1, [4, 4])], [("y", 1, [4, 4])], {})
    model = onnx.load(str(path))
    for name in ("w", "v"):
        numbers = numpy_helper.from_array(np.array([1, 2, 3], np.float32), name)
        places = numpy_helper.from_array(np.array([0, 6, 9], np.int64))
        model.graph.sparse_initializer.append(helper.make_sparse_tensor(numbers, places, [4, 4]))
    onnx.save(model, str(path))
    return path


def make_external_inside(path: Path) -> Path:
    """Weights of a branch in a file of their own."""
    weight = numpy_helper.from_array(np.full((4, 4), 2.0, np.float32), "inner")

    def branch(kind: str) -> Any:
        output = helper.make_tensor_value_info(f"{kind}_out", TensorProto.FLOAT, [4, 4])
        inner = helper.make_node(kind, ["x", "inner"], [f"{kind}_out"])
        return helper.make_graph([inner], kind, [], [output], [weight])

    saved_choice(path, branch)
    model = onnx.load(str(path))
    onnx.save(model, str(path), save_as_external_data=True, location="inside.bin", size_threshold=0)
    assert (path.parent / "inside.bin").stat().st_size >= weight.ByteSize() - 20
    return path


def make_leftover(path: Path) -> Path:
    """A weight inside the model that still names the file where it was."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    weights = {"w": np.ones((32, 32), np.float32)}
    saved(path, nodes, [("x", 1, [2, 32])], [("y", 1, [2, 32])], weights)
    model = onnx.load(str(path))
    model.graph.initializer[0].external_data.add(key="location", value="old.bin")
    path.write_bytes(model.SerializeToString())
    (path.parent / "old.bin").write_bytes(bytes(weights["w"].nbytes))
    return path


def make_linked(path: Path) -> Path:
    """The layout of a cache of downloads: links to files whose names are their hashes."""
    blobs, named = path.parent / "blobs", path.parent / "named"
    blobs.mkdir()
    named.mkdir()
    made = make_external(blobs / path.name)
    (blobs / "weights.bin").rename(blobs / "1b2c")
    made.rename(blobs / "0a1b")
    (named / path.name).symlink_to("../blobs/0a1b")
    (named / "weights.bin").symlink_to("../blobs/1b2c")
    return named / path.name


def make_never_begun(path: Path) -> Path:
    """A loop of four turns whose condition is false before the first."""
    value = helper.make_tensor_value_info
    turn = [value("at", TensorProto.INT64, []), value("on", TensorProto.BOOL, [])]
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["on"], ["still"]),
            helper.make_node("Add", ["state", "x"], ["next"]),
            helper.make_node("Identity", ["next"], ["kept"]),
        ],
        "body",
        [*turn, value("state", TensorProto.FLOAT, [2, 4])],
        [value("still", TensorProto.BOOL, []), value("next", 1, [2, 4]), value("kept", 1, [2, 4])],
    )
    nodes = [
        helper.make_node("Loop", ["turns", "begins", "x"], ["last", "all"], body=body),
        helper.make_node("Neg", ["last"], ["y"]),
        helper.make_node("Abs", ["all"], ["z"]),
    ]
    constants = {"turns": np.int64(4), "begins": np.bool_(False)}
    outputs = [("y", 1, [2, 4]), ("z", 1, [None, 2, 4])]
    return saved(path, nodes, [("x", 1, [2, 4])], outputs, constants)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "make",
    [
        make_branching,
        make_names_of_others,
        make_sparse,
        make_sparse_weights,
        make_external_inside,
        make_leftover,
        make_linked,
        make_never_begun,
        make_external,
        make_value_dependent,
        make_captured,
        make_constant_chain,
        make_handed_on,
    ],
)
def test_split_gives_what_the_file_gives(make: Callable[[Path], Path], tmp_path: Path) -> None:
    path = make(tmp_path / "model.onnx")
    model = loaded(path)
    for seed in range(3):
        inputs = model.random_inputs(np.random.default_rng(seed))
        expected = session_outputs(path, inputs)
        found = split_outputs(model, inputs)
        for mine, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5)


def test_half_precision(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Relu", ["a"], ["y"]),
    ]
    weight = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float16)
    kind = TensorProto.FLOAT16
    path = saved(
        tmp_path / "h.onnx", nodes, [("x", kind, [2, 64])], [("y", kind, [2, 64])], {"w": weight}
    )
    model = loaded(path)
    assert model.tolerance(cores()) == pytest.approx(3e-2)
    check_split(model, cores(), random_segments(model.graph, 1, np.random.default_rng(0)))


def test_brain_float_values_travel(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["b"], to=TensorProto.BFLOAT16),
        helper.make_node("Cast", ["b"], ["y"], to=TensorProto.FLOAT),
    ]
    kind = TensorProto.FLOAT
    outputs = [("b", TensorProto.BFLOAT16, [2, 3]), ("y", kind, [2, 3])]
    path = saved(tmp_path / "b.onnx", nodes, [("x", kind, [2, 3])], outputs, {})  # type: ignore[arg-type]
    x = np.array([[1.0, 2.5, -3.0], [0.0, 1e20, -0.125]], np.float32)
    rounded, widened = split_outputs(loaded(path), [x])
    np.testing.assert_allclose(rounded, x, rtol=4e-3)
    np.testing.assert_array_equal(rounded, widened)


@pytest.mark.parametrize("kind", ["INT4", "FLOAT8E4M3FN"])
def test_an_input_without_arrays_is_refused(kind: str, tmp_path: Path) -> None:
    nodes = [helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)]
    number = TensorProto.DataType.Value(kind)
    path = saved(tmp_path / "packed.onnx", nodes, [("x", number, [4])], [("y", 1, [4])], {})
    model = onnx.load(str(path))
    model.opset_import[0].version, model.ir_version = 21, 10
    onnx.save(model, str(path))
    with pytest.raises(InputError, match=r"'x' of .* has no arrays"):
        loaded(path)


def test_convolution_and_activation_are_one_kernel(tmp_path: Path) -> None:
    model = loaded(make_branching(tmp_path / "m.onnx"))
    graph, fused = model.graph, model.fused_groups(cores()[0])
    at = {model.parts.value_of_tensor[graph.op_outputs.row(op)[0]]: op for op in range(graph.n_ops)}
    for convolution, activation in (("a", "b"), ("c", "d"), ("e", "f")):
        assert fused.group_of[at[convolution]] == fused.group_of[at[activation]]
    assert fused.group_of[at["a"]] != fused.group_of[at["c"]]
    assert fused.group_of[at["j"]] == fused.group_of[at["logits"]]
    units = common_units(graph, [fused])
    assert units.n_groups == fused.n_groups == graph.n_ops - 4


def optimized_kinds(model: OnnxModel, segment: OpSegment, folder: Path) -> list[str]:
    """Kinds of the nodes that ONNX Runtime makes of a segment."""
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    content = model.parts.standalone(segment).SerializeToString()
    ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return [node.op_type for node in onnx.load(folder / "optimized.onnx").graph.node]


def test_each_unit_of_a_quantized_model_computes_in_integers(tmp_path: Path) -> None:
    """A cut inside an integer kernel would make its segment unpack, and compute in floats."""
    nodes = [helper.make_node("QuantizeLinear", ["x", "s", "u"], ["q0"])]
    for at in range(2):
        nodes += [
            helper.make_node("DequantizeLinear", [f"q{at}", "s", "u"], [f"d{at}"]),
            helper.make_node("DequantizeLinear", ["w", "s", "i"], [f"w{at}"]),
            helper.make_node("Conv", [f"d{at}", f"w{at}"], [f"c{at}"], pads=[1, 1, 1, 1]),
            helper.make_node("Relu", [f"c{at}"], [f"r{at}"]),
            helper.make_node("QuantizeLinear", [f"r{at}", "s", "u"], [f"q{at + 1}"]),
        ]
    nodes.append(helper.make_node("DequantizeLinear", ["q2", "s", "u"], ["y"]))
    constants = {"w": np.ones((8, 8, 3, 3), np.int8), "s": np.array(0.1, np.float32),
                 "u": np.array(0, np.uint8), "i": np.array(0, np.int8)}  # fmt: skip
    kind, shape = TensorProto.FLOAT, [1, 8, 6, 6]
    path = saved(tmp_path / "q.onnx", nodes, [("x", kind, shape)], [("y", kind, shape)], constants)
    model = loaded(path)
    units = model.fused_groups(cores()[0])
    labels = dict.fromkeys(units.group_of.tolist())
    parts = [(0, np.flatnonzero(units.group_of == label).tolist()) for label in labels]
    computed = [
        [kind for kind in optimized_kinds(model, segment, tmp_path) if kind != "Transpose"]
        for segment in segments_of_ops(model.graph, parts)
    ]
    assert computed == [["QuantizeLinear"], ["QLinearConv"], ["QLinearConv"], ["DequantizeLinear"]]


def add_quantized(
    path: Path, number: int, size: int, blocks: int, rng: np.random.Generator
) -> None:
    """Add a square weight "q" of small integers to a file, and "z", its zero points by blocks."""
    model = onnx.load(str(path))
    model.opset_import[0].version, model.ir_version = 21, 10
    model.graph.initializer.extend([
        helper.make_tensor("q", number, (size, size), rng.integers(0, 16, size * size).tolist()),
        helper.make_tensor("z", number, (size // blocks, size), [3] * (size * size // blocks)),
    ])  # fmt: skip
    onnx.save(model, str(path))


@pytest.mark.parametrize("kind", ["INT8", "UINT4"])
def test_a_cut_between_two_products_of_an_unpacked_weight_changes_nothing(
    kind: str, tmp_path: Path
) -> None:
    """The whole model multiplies in floats; a product alone with the weight would in integers."""
    rng, size, blocks = np.random.default_rng(0), 128, 32
    number = TensorProto.DataType.Value(kind)
    path = saved(
        tmp_path / "shared.onnx",
        [
            helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"], axis=0, block_size=blocks),
            helper.make_node("MatMul", ["x", "d"], ["p"]),
            helper.make_node("Softmax", ["p"], ["r"]),
            helper.make_node("MatMul", ["r", "d"], ["y"]),
        ],
        [("x", 1, [2, size])],
        [("y", 1, [2, size])],
        {"s": rng.uniform(0.01, 0.03, (size // blocks, size)).astype(np.float32)},
    )
    add_quantized(path, number, size, blocks, rng)
    whole = loaded(path)
    inputs = [rng.standard_normal((2, size)).astype(np.float32)]
    (expected,) = session_outputs(path, inputs)
    ops = [(0, [int(op)]) for op in whole.graph.topological_order]
    value: Any = inputs
    for segment in segments_of_ops(whole.graph, ops):
        content = whole.parts.standalone(segment).SerializeToString()
        session = ort.InferenceSession(content, providers=["CPUExecutionProvider"])
        names = [port.name for port in session.get_outputs()]
        assert [name.endswith("/size") for name in names] == [False] + [True] * (len(names) - 1)
        value = session.run(names[:1], {session.get_inputs()[0].name: value[0]})
    np.testing.assert_allclose(value[0], expected, rtol=1e-6)
    np.testing.assert_allclose(split_outputs(whole, inputs)[0], expected, rtol=1e-6)


def test_a_cut_of_a_tied_embedding_leaves_it_unpacked(tmp_path: Path) -> None:
    """A Transpose, which is no op, reads the weight for the product. The product read it alone."""
    rng, size, blocks = np.random.default_rng(0), 128, 32
    path = saved(
        tmp_path / "tied.onnx",
        [
            helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"], axis=1, block_size=blocks),
            helper.make_node("Gather", ["d", "ids"], ["h"]),
            helper.make_node("Transpose", ["d"], ["t"], perm=[1, 0]),
            helper.make_node("MatMul", ["h", "t"], ["y"]),
        ],
        [("ids", TensorProto.INT64, [2])],
        [("y", 1, [2, size])],
        {"s": rng.uniform(0.01, 0.03, (size, size // blocks)).astype(np.float32)},
    )
    model = onnx.load(str(path))
    model.opset_import[0].version, model.ir_version = 21, 10
    number = TensorProto.INT8
    model.graph.initializer.extend([
        helper.make_tensor("q", number, (size, size), rng.integers(0, 16, size * size).tolist()),
        helper.make_tensor("z", number, (size, size // blocks), [3] * (size * size // blocks)),
    ])  # fmt: skip
    onnx.save(model, str(path))
    whole = loaded(path)
    assert whole.graph.op_kinds == ("Gather", "MatMul")
    for segment in segments_of_ops(whole.graph, [(0, [0]), (0, [1])]):
        names = [port.name for port in whole.parts.standalone(segment).graph.output]
        assert names[1:] == ["d/size"]
    (all_ops,) = segments_of_ops(whole.graph, [(0, [0, 1])])
    assert [port.name for port in whole.parts.standalone(all_ops).graph.output] == ["y"]
    inputs = [np.array([3, 70])]
    (expected,) = session_outputs(path, inputs)
    np.testing.assert_allclose(split_outputs(whole, inputs)[0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("is_output", [False, True])
def test_a_node_that_nothing_needs_is_no_reader_of_an_unpacked_weight(
    is_output: bool, tmp_path: Path
) -> None:
    """ONNX Runtime removes it, and multiplies in integers; a cut computed in floating point.

    It keeps one that makes an output.
    """
    rng, size, blocks = np.random.default_rng(0), 128, 32
    path = saved(
        tmp_path / "unread.onnx",
        [
            helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"], axis=0, block_size=blocks),
            helper.make_node("Transpose", ["d"], ["t"], perm=[1, 0]),
            helper.make_node("MatMul", ["x", "d"], ["y"]),
        ],
        [("x", 1, [2, size])],
        [("y", 1, [2, size]), ("t", 1, [size, size])][: 2 if is_output else 1],
        {"s": rng.uniform(0.01, 0.03, (size // blocks, size)).astype(np.float32)},
    )
    add_quantized(path, TensorProto.INT8, size, blocks, rng)
    whole = loaded(path)
    assert whole.graph.op_kinds == ("MatMul",)
    assert whole.graph.weight_dtypes == (("i8", "f32", "i8") if is_output else ("u8",))
    (segment,) = segments_of_ops(whole.graph, [(0, [0])])
    names = [port.name for port in whole.parts.standalone(segment).graph.output]
    assert names == (["y", "d/size"] if is_output else ["y"])


def test_long_chains_of_constants_are_looked_through_once(tmp_path: Path) -> None:
    """Each reads the one before twice: as many ways lead to the first as no machine could walk."""
    chain = [helper.make_node("Mul", [f"c{at}", f"c{at}"], [f"c{at + 1}"]) for at in range(2000)]
    readers = [
        helper.make_node("Add", ["x", "c2000"], ["a"]),
        helper.make_node("Add", ["a", "c2000"], ["y"]),
    ]
    path = saved(tmp_path / "chain.onnx", [*chain, *readers], [("x", 1, [4])], [("y", 1, [4])],
                 {"c0": np.ones(4, np.float32)})  # fmt: skip
    given = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(split_outputs(loaded(path), [given])[0], given + 2)


def test_convolutions_that_share_an_unpacked_weight_stay_in_integers(tmp_path: Path) -> None:
    """ONNX Runtime copies the DequantizeLinear for each of them."""
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "u"], ["q0"]),
        helper.make_node("DequantizeLinear", ["w", "s", "i"], ["d"]),
    ]
    for at in range(2):
        nodes += [
            helper.make_node("DequantizeLinear", [f"q{at}", "s", "u"], [f"d{at}"]),
            helper.make_node("Conv", [f"d{at}", "d"], [f"c{at}"], pads=[1, 1, 1, 1]),
            helper.make_node("QuantizeLinear", [f"c{at}", "s", "u"], [f"q{at + 1}"]),
        ]
    nodes.append(helper.make_node("DequantizeLinear", ["q2", "s", "u"], ["y"]))
    rng = np.random.default_rng(0)
    constants = {"w": rng.integers(-9, 9, (8, 8, 3, 3)).astype(np.int8),
                 "s": np.array(0.1, np.float32),
                 "u": np.array(0, np.uint8), "i": np.array(0, np.int8)}  # fmt: skip
    kind, shape = TensorProto.FLOAT, [1, 8, 6, 6]
    path = saved(tmp_path / "q.onnx", nodes, [("x", kind, shape)], [("y", kind, shape)], constants)
    model = loaded(path)
    units = model.fused_groups(cores()[0])
    parts = [
        (0, np.flatnonzero(units.group_of == label).tolist())
        for label in dict.fromkeys(units.group_of.tolist())
    ]
    kinds = [
        kind
        for segment in segments_of_ops(model.graph, parts)
        for kind in optimized_kinds(model, segment, tmp_path)
        if "Conv" in kind
    ]
    assert kinds == ["QLinearConv", "QLinearConv"]


def test_seconds_are_where_the_work_is(tmp_path: Path) -> None:
    """A product of 512 x 512 takes longer than the sum of 512 values that follows it."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("ReduceSum", ["a"], ["y"], keepdims=0),
    ]
    weight = np.ones((512, 512), np.float32)
    kind = TensorProto.FLOAT
    path = saved(
        tmp_path / "w.onnx", nodes, [("x", kind, [512, 512])], [("y", kind, [])], {"w": weight}
    )
    product, total = loaded(path).profiler(cores()[0])()
    assert product > total > 0


def test_kernels_of_constants_have_names_of_their_own(tmp_path: Path) -> None:
    """The profiler would name them itself, and their seconds would belong to no operator."""
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["d"]),
        helper.make_node("MatMul", ["x", "d"], ["a"]),
        helper.make_node("DequantizeLinear", ["v", "s", "z"], ["e"]),
        helper.make_node("MatMul", ["a", "e"], ["y"]),
    ]
    ones, kind, shape = np.ones((64, 64), np.int8), TensorProto.FLOAT, [64, 64]
    constants = {"w": ones, "v": ones, "s": np.array(0.1, np.float32), "z": np.array(0, np.int8)}
    path = saved(tmp_path / "w.onnx", nodes, [("x", kind, shape)], [("y", kind, shape)], constants)
    names = [node.name for node in loaded(path).parts.nodes]
    assert len(set(names)) == len(nodes)
    assert "" not in names


def test_large_weights_are_shared_between_sessions(tmp_path: Path) -> None:
    model = loaded(make_constant_chain(tmp_path / "m.onnx"))
    order = model.graph.topological_order.tolist()
    parts = segments_of_ops(model.graph, [(0, [op]) for op in order])
    products = [s for s in parts if model.graph.op_kinds[s.ops[0]] == "MatMul"]
    cut = [model.parts.cut(segment) for segment in products]
    assert [part.shared for part in cut] == [("c",), ("c",)]
    assert all(len(part.content) < 64 * 64 * 4 for part in cut)
    model.compile(parts, cores())
    assert list(model._shared) == ["c"]


def test_equal_segments_make_one_session(tmp_path: Path) -> None:
    model = loaded(make_branching(tmp_path / "m.onnx"))
    order = model.graph.topological_order.tolist()
    halves = segments_of_ops(model.graph, [(0, order[:4]), (0, order[4:])])
    first, again = model.compile(halves, cores()), model.compile(halves, cores())
    assert all(a is b for a, b in zip(first, again, strict=True))


def test_a_refused_segment_is_named(tmp_path: Path) -> None:
    model = loaded(make_branching(tmp_path / "m.onnx"))
    device = replace(cores()[0], options={"intra_op_num_threads": "3", AFFINITY: "none"})
    with pytest.raises(RuntimeFailure, match=r"session of 12 ops \(.*'cpu:0'"):
        model.reference(device)


def test_a_fixed_dimension_stays(tmp_path: Path) -> None:
    graph, source = read_onnx(make_branching(tmp_path / "m.onnx"))
    name, shape = next(iter(source.shapes.items()))
    wanted = (shape[0] + 1, *shape[1:])
    path = str(tmp_path / "m.onnx")
    graph, source = read_onnx(path, shapes={name: wanted})
    with pytest.raises(InputError, match="ONNX Runtime changes no fixed dimension"):
        OnnxRuntime().load(source, graph)


def test_options_that_mean_nothing_are_refused() -> None:
    runtime = OnnxRuntime()
    with pytest.raises(UnknownNameError, match="INFERENCE_PRECISION_HINT"):
        runtime.completed(Device("cpu", options={"INFERENCE_PRECISION_HINT": "bf16"}))
    with pytest.raises(UnknownNameError, match="execution provider 'NoProvider'"):
        runtime.completed(Device("x", options={"provider": "NoProvider"}))
    with pytest.raises(UnknownNameError, match="graph_optimization_level 'most'"):
        runtime.completed(Device("cpu", options={"graph_optimization_level": "most"}))
    with pytest.raises(InputError, match="must be a number of at most 9 digits, got 'many'"):
        runtime.completed(Device("cpu", options={"intra_op_num_threads": "many"}))
    with pytest.raises(InputError, match="device_id must be a number, got 'first'"):
        runtime.completed(Device("cpu", options={"device_id": "first"}))
    with pytest.raises(InputError, match="takes 1024 letters for the name of a config"):
        runtime.completed(Device("cpu", options={"session." + "a" * 1024: "1"}))


def test_levels_of_optimisation_fuse_differently(tmp_path: Path) -> None:
    model = loaded(make_branching(tmp_path / "m.onnx"))
    runtime = OnnxRuntime()
    plain = runtime.completed(Device("cpu:0", options={"graph_optimization_level": "disabled"}))
    assert model.fused_groups(plain).n_groups == model.graph.n_ops
    assert plain.fingerprint != runtime.completed(Device("cpu:0")).fingerprint


def test_other_formats_are_refused(tmp_path: Path) -> None:
    graph, source = read_onnx(make_branching(tmp_path / "m.onnx"))
    with pytest.raises(InputError, match=r"runs \.onnx models"):
        OnnxRuntime().load(replace(source, format="openvino"), graph)


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'placewright\[onnxruntime\]'"):
        OnnxRuntime().discover()


def test_additions_go_with_the_kernel_that_they_serve(tmp_path: Path) -> None:
    """By hand: x -> MatMul a -> Add b -> (Tanh c, Erf d).

    As executed: a reshape, a product that took the addition's bias, and a reshape that makes b;
    then a conversion that only the last kernel reads.
    """
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Add", ["a", "n"], ["b"]),
        helper.make_node("Tanh", ["b"], ["c"]),
        helper.make_node("Erf", ["b"], ["d"]),
    ]
    kind = TensorProto.FLOAT
    path = saved(
        tmp_path / "a.onnx",
        nodes,
        [("x", kind, [2, 4])],
        [("c", kind, [2, 4]), ("d", kind, [2, 4])],
        {"w": np.ones((4, 4), np.float32), "n": np.ones(4, np.float32)},
    )
    model = loaded(path)
    executed = [
        helper.make_node("Reshape", ["x"], ["new1"], name="reshape_token_1"),
        helper.make_node("Gemm", ["new1", "w", "n"], ["new2"], name="op<0>/MatMulAddFusion"),
        helper.make_node("Reshape", ["new2"], ["b"], name="reshape_token_2"),
        helper.make_node("Tanh", ["b"], ["new3"], name="c_nchwc_token_7"),
        helper.make_node("ReorderOutput", ["new3"], ["c"], name="ReorderOutput"),
        helper.make_node("Reorder", ["b"], ["new4"], name="reorder"),
        helper.make_node("Erf", ["new4"], ["d"], name="op<3>"),
    ]
    kernels = KernelMap(model.graph, executed, model.parts.op_of_value)
    assert kernels.grouping.group_of.tolist() == [0, 0, 1, 2]
    seconds = kernels.seconds({node.name: 10.0 for node in executed})
    np.testing.assert_allclose(seconds, [21e-6, 10.5e-6, 21e-6, 21e-6])


def test_bfloat16_in_the_memory_of_a_gpu_is_not_read_by_its_address(tmp_path: Path) -> None:
    """No GPU is here: the value says that it lies in the memory of one."""

    class OnGpu:
        def device_name(self) -> str:
            return "cuda"

        def data_type(self) -> str:
            return "tensor(bfloat16)"

    node = helper.make_node("Relu", ["x"], ["y"])
    floats = TensorProto.FLOAT
    path = saved(tmp_path / "m.onnx", [node], [("x", floats, [1])], [("y", floats, [1])], {})
    graph, source = read_onnx(path)
    with pytest.raises(RuntimeFailure, match="bfloat16 values in the memory of cuda"):
        OnnxRuntime().load(source, graph).to_host(OnGpu())


def test_a_converted_model_keeps_no_note_of_its_exporter(tmp_path: Path) -> None:
    """Notes hold paths of source files; those in branches, too."""
    torch = pytest.importorskip("torch")

    class Branching(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))

    example = (torch.ones(2, 3),)
    file = OnnxConverter().file_of_module("m", Branching().eval(), example, folder=tmp_path)
    messages = list(every_message(onnx.load(str(file))))
    assert sum(one.DESCRIPTOR.name == "GraphProto" for one in messages) == 3
    for one in messages:
        assert not getattr(one, "doc_string", "")
        assert not getattr(one, "metadata_props", [])

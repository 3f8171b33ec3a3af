"""Reading ONNX node by node: folding, names, subgraphs, shapes, and refusals."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from model_makers import BIAS, WEIGHT, write_onnx
from onnx import TensorProto, helper, numpy_helper

from placewright.errors import FileFormatError, GraphError, InputError, UnknownNameError
from placewright.frameworks import flops
from placewright.frameworks.onnxruntime.conversion import OnnxConverter
from placewright.frameworks.onnxruntime.flops import NodeShapes, flops_of
from placewright.frameworks.onnxruntime.reader import read_onnx
from placewright.frameworks.onnxruntime.runtime import OnnxRuntime

FLOAT = TensorProto.FLOAT


def write(path: Path, nodes: list[Any], constants: dict[str, Any] | None = None, **io: Any) -> Path:
    """A model with input x (2, 4) and output y, unless `io` says otherwise."""
    inputs = io.get("inputs", {"x": [2, 4]})
    outputs = io.get("outputs", ["y"])
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, io.get("type", FLOAT), None) for name in outputs],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in (constants or {}).items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    path.write_bytes(model.SerializeToString())
    return path


def test_one_op_per_node(tmp_path: Path) -> None:
    write_onnx(tmp_path / "small.onnx")
    graph, source = read_onnx(tmp_path / "small.onnx")
    assert graph.op_names == ("dense/product", "dense/sum", "activation")
    assert graph.op_kinds == ("MatMul", "Add", "Relu")
    assert graph.op_flops.tolist() == [24, 3, 3]
    assert graph.op_weight_bytes.tolist() == [WEIGHT.nbytes, BIAS.nbytes, 0]
    assert graph.tensor_bytes.tolist() == [16, 12, 12, 12]
    assert graph.tensor_is_output.tolist() == [False, False, False, True]
    assert source.format == "onnx"
    assert source.native_names == {}


def test_nodes_of_constants_fold_into_one_weight(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Cast", ["half"], ["weight"], name="decompress", to=FLOAT),
        helper.make_node("MatMul", ["x", "weight"], ["p"], name="first"),
        helper.make_node("MatMul", ["p", "weight"], ["y"], name="second"),
    ]
    path = write(tmp_path / "tied.onnx", nodes, {"half": np.ones((4, 4), np.float16)})
    graph, _ = read_onnx(path)
    assert graph.op_names == ("first", "second")
    assert graph.weight_bytes.tolist() == [64]
    assert graph.weight_dtypes == ("f32",)
    raw, source = read_onnx(path, fold_constants=False)
    assert raw.op_names == ("decompress", "first", "second")
    assert raw.weight_dtypes == ("f16",)
    assert source.options == {"fold_constants": "no"}


def bytes_that_onnx_runtime_holds(path: Path) -> int:
    """Bytes of all initializers of the model as ONNX Runtime executes it."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(path.with_name("optimized.onnx"))
    options.log_severity_level = 4
    onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    held = onnx.load(options.optimized_model_filepath).graph.initializer
    return sum(numpy_helper.to_array(tensor).nbytes for tensor in held)


UNPACK = helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"], name="unpack", axis=1)
TURN = helper.make_node("Transpose", ["d"], ["t"], name="turn", perm=[1, 0])
PACK = helper.make_node("QuantizeLinear", ["w", "s", "z"], ["q"], name="pack", axis=1)


@pytest.mark.parametrize(
    ("before", "weight"), [([UNPACK], "d"), ([UNPACK, TURN], "t"), ([PACK, UNPACK], "d")]
)
def test_quantized_weights_count_as_onnx_runtime_holds_them(
    before: list[Any], weight: str, tmp_path: Path
) -> None:
    products = [
        helper.make_node("MatMul", ["x", weight], ["p"], name="first"),
        helper.make_node("Softmax", ["p"], ["r"], name="between"),
        helper.make_node("MatMul", ["r", weight], ["y"], name="second"),
    ]
    stored = {"w": np.ones((256, 256), np.float32)} if PACK in before else {
        "q": np.ones((256, 256), np.int8)
    }  # fmt: skip
    scales = {"s": np.full(256, 0.1, np.float32), "z": np.zeros(256, np.int8)}
    path = write(tmp_path / "int8.onnx", [*before, *products], stored | scales,
                 inputs={"x": [2, 256]})  # fmt: skip
    graph, _ = read_onnx(path)
    assert graph.op_names == ("first", "between", "second")
    assert sorted(graph.weight_dtypes) == ["f32", "i8", "i8"]
    assert graph.weight_bytes.sum() == 256 * 256 + 256 * 4 + 256
    assert graph.weight_bytes.sum() == pytest.approx(bytes_that_onnx_runtime_holds(path), rel=0.1)


PLAIN = helper.make_node("MatMul", ["x", "d"], ["y"], name="product")
TURNED = helper.make_node("MatMul", ["x", "t"], ["y"], name="product")
BIASED = helper.make_node("Gemm", ["x", "d", "b"], ["y"], name="product")
BLOCKS = helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"], axis=0, block_size=64)
ROWS = helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"], axis=0)


@pytest.mark.parametrize(
    ("nodes", "packed", "scales"),
    [
        ([UNPACK, PLAIN], (70, 33), (33,)),
        ([UNPACK, PLAIN], (70, 33), ()),
        ([UNPACK, BIASED], (70, 33), (33,)),
        ([ROWS, TURN, TURNED], (33, 70), (33,)),
        ([BLOCKS, PLAIN], (70, 33), (2, 33)),
    ],
)
@pytest.mark.parametrize("number", [TensorProto.INT8, TensorProto.UINT4])
def test_the_weight_of_one_product_counts_in_its_blocks(
    nodes: list[Any], packed: tuple[int, int], scales: tuple[int, ...], number: int, tmp_path: Path
) -> None:
    path = write(tmp_path / "blocks.onnx", nodes, {"b": np.ones(33, np.float32)},
                 inputs={"x": [2, 70]})  # fmt: skip
    model = onnx.load(str(path))
    model.ir_version, model.opset_import[0].version = 10, 21
    model.graph.initializer.extend([
        helper.make_tensor("q", number, packed, [1] * (70 * 33)),
        helper.make_tensor("z", number, scales, [1] * math.prod(scales)),
        numpy_helper.from_array(np.full(scales, 0.1, np.float32), "s"),
    ])  # fmt: skip
    if BIASED not in nodes:
        del model.graph.initializer[0]
    onnx.save(model, str(path))
    held = bytes_that_onnx_runtime_holds(path)
    optimized = onnx.load(str(path.with_name("optimized.onnx"))).graph
    assert "MatMulNBits" in [node.op_type for node in optimized.node]
    assert held <= read_onnx(path)[0].weight_bytes.sum() <= 1.01 * held


def test_the_shape_of_unpacked_weights_holds_none_of_them(tmp_path: Path) -> None:
    nodes = [
        UNPACK,
        helper.make_node("Shape", ["d"], ["extents"], name="extents"),
        helper.make_node("Reshape", ["x", "extents"], ["y"], name="reshape"),
    ]
    stored = {"q": np.ones((4, 2), np.int8), "s": np.ones(2, np.float32), "z": np.zeros(2, np.int8)}
    graph, _ = read_onnx(write(tmp_path / "shape.onnx", nodes, stored, inputs={"x": [2, 4]}))
    assert graph.weight_bytes.tolist() == [16]


def test_a_sparse_weight_counts_its_numbers_and_their_places(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="first"),
        helper.make_node("Add", ["a", "w"], ["y"], name="second"),
    ]
    path = write(tmp_path / "sparse.onnx", nodes, inputs={"x": [4, 4]})
    model = onnx.load(str(path))
    numbers = numpy_helper.from_array(np.array([1, 2, 3], np.float32), "w")
    places = numpy_helper.from_array(np.array([0, 6, 9], np.int64))
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(numbers, places, [4, 4]))
    onnx.save(model, str(path))
    graph, _ = read_onnx(path)
    assert graph.op_flops.tolist() == [2 * 4**3, 4**2]
    assert graph.weight_bytes.tolist() == [3 * 4 + 3 * 8], "one weight, which both ops read"
    assert graph.weight_dtypes == ("f32",)


def test_an_identity_of_a_weight_is_no_second_one(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Identity", ["w"], ["v"], name="same"),
        helper.make_node("Identity", ["v"], ["u"], name="again"),
        helper.make_node("MatMul", ["x", "w"], ["a"], name="first"),
        helper.make_node("MatMul", ["a", "u"], ["y"], name="second"),
    ]
    path = write(tmp_path / "tied.onnx", nodes, {"w": np.ones((4, 4), np.float32)})
    graph, _ = read_onnx(path)
    assert graph.weight_bytes.tolist() == [64]


def test_nodes_without_a_name_are_found_by_position(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Tanh", ["a"], ["b"], name="same"),
        helper.make_node("Exp", ["b"], ["y"], name="same"),
    ]
    graph, source = read_onnx(write(tmp_path / "names.onnx", nodes))
    assert graph.op_names == ("a", "same", "same_1")
    assert source.native_names == {"a": "#0", "same_1": "#2"}


def test_a_branch_reads_what_it_captures(tmp_path: Path) -> None:
    def branch(kind: str) -> Any:
        out = helper.make_tensor_value_info("inner", FLOAT, [2, 4])
        return helper.make_graph([helper.make_node(kind, ["a"], ["inner"])], kind, [], [out])

    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="before"),
        helper.make_node("ReduceSum", ["x"], ["s"], name="sum", keepdims=0),
        helper.make_node("Cast", ["s"], ["c"], name="condition", to=TensorProto.BOOL),
        helper.make_node("If", ["c"], ["y"], name="choice",
                         then_branch=branch("Exp"), else_branch=branch("Neg")),
    ]  # fmt: skip
    graph, _ = read_onnx(write(tmp_path / "branch.onnx", nodes))
    choice = graph.op_index["choice"]
    names = [graph.op_names[op] for op in graph.predecessors.row(choice)]
    assert names == ["before", "condition"]


def body(nodes: list[Any], inputs: list[Any], outputs: list[Any]) -> Any:
    return helper.make_graph(nodes, "body", inputs, outputs)


def test_the_more_expensive_branch_counts(tmp_path: Path) -> None:
    """It multiplies what it captures, (2, 4), by a weight of its own, (4, 5); the other copies."""
    out = helper.make_tensor_value_info("inner", FLOAT, None)
    weight = helper.make_tensor("w", FLOAT, [4, 5], np.zeros(20, np.float32))
    product = helper.make_node("MatMul", ["x", "w"], ["inner"])
    multiply = helper.make_graph([product], "then", [], [out], [weight])
    other = helper.make_tensor("v", FLOAT, [2, 5], np.zeros(10, np.float32))
    copy = helper.make_graph(
        [helper.make_node("Identity", ["v"], ["inner"])], "else", [], [out], [other]
    )
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["s"], name="sum", keepdims=0),
        helper.make_node("Cast", ["s"], ["c"], name="condition", to=TensorProto.BOOL),
        helper.make_node("If", ["c"], ["y"], name="choice", then_branch=multiply, else_branch=copy),
    ]
    graph, _ = read_onnx(write(tmp_path / "branch.onnx", nodes))
    assert graph.op_flops[graph.op_index["choice"]] == 2 * (2 * 5) * 4


@pytest.mark.parametrize("trips", [3, 2**63 - 1, None])
def test_a_loop_counts_as_often_as_it_runs(trips: int | None, tmp_path: Path) -> None:
    """Two element-wise operations on 2 x 4 values a turn; once where only running it tells."""
    value = helper.make_tensor_value_info
    inside = body(
        [
            helper.make_node("Identity", ["again"], ["on"]),
            helper.make_node("Exp", ["state"], ["e"]),
            helper.make_node("Add", ["e", "x"], ["next"]),
        ],
        [value("turn", TensorProto.INT64, []), value("again", TensorProto.BOOL, []),
         value("state", FLOAT, [2, 4])],
        [value("on", TensorProto.BOOL, []), value("next", FLOAT, [2, 4])],
    )  # fmt: skip
    first = "" if trips is None else "trips"
    nodes = [helper.make_node("Loop", [first, "on_at_first", "x"], ["y"], name="loop", body=inside)]
    constants = {"on_at_first": np.array(True)}
    constants |= {} if trips is None else {"trips": np.array(trips)}
    graph, _ = read_onnx(write(tmp_path / "loop.onnx", nodes, constants))
    once = flops.elementwise((2, 4)) * 2
    assert graph.op_flops[graph.op_index["loop"]] == once * (3 if trips == 3 else 1)


def test_a_scan_counts_each_step(tmp_path: Path) -> None:
    """Over the four columns of x, (2, 4): two values a step."""
    value = helper.make_tensor_value_info
    inside = body(
        [helper.make_node("Exp", ["column"], ["made"])],
        [value("column", FLOAT, [2])],
        [value("made", FLOAT, [2])],
    )
    nodes = [
        helper.make_node("Scan", ["x"], ["y"], name="scan", num_scan_inputs=1, body=inside,
                         scan_input_axes=[1], scan_output_axes=[1]),
    ]  # fmt: skip
    graph, _ = read_onnx(write(tmp_path / "scan.onnx", nodes))
    assert graph.op_flops[graph.op_index["scan"]] == 4 * flops.elementwise((2,))


@pytest.mark.parametrize("rows", ["batch", 3])
def test_shapes_stored_in_branches_are_those_of_another_batch(
    rows: str | int, tmp_path: Path
) -> None:
    """They were inferred for one row; three rows were refused, also those that the file fixes."""
    value = helper.make_tensor_value_info

    def branch(kind: str) -> Any:
        nodes = [
            helper.make_node("Exp", ["x"], ["mid"]),
            helper.make_node(kind, ["mid"], ["inner"]),
        ]
        inner, mid = (value(name, FLOAT, [1, 4]) for name in ("inner", "mid"))
        return helper.make_graph(nodes, kind, [], [inner], value_info=[mid])

    nodes = [
        helper.make_node("ReduceSum", ["x"], ["s"], name="sum", keepdims=0),
        helper.make_node("Cast", ["s"], ["c"], name="condition", to=TensorProto.BOOL),
        helper.make_node("If", ["c"], ["y"], name="choice",
                         then_branch=branch("Exp"), else_branch=branch("Neg")),
    ]  # fmt: skip
    path = write(tmp_path / "branch.onnx", nodes, inputs={"x": [rows, 4]})
    graph, _ = read_onnx(path, shapes={"x": (3, 4)})
    choice = graph.op_index["choice"]
    assert graph.op_flops[choice] == 2 * flops.elementwise((3, 4))
    assert graph.tensor_shapes[int(graph.op_outputs.row(choice)[0])] == (3, 4)


def test_shapes_stored_in_branches_stay_if_the_file_fixes_its_inputs(tmp_path: Path) -> None:
    """ONNX does not infer them behind operators of other domains; they were thrown away."""
    value = helper.make_tensor_value_info

    def branch(name: str) -> Any:
        nodes = [
            helper.make_node("FastGelu", ["x"], ["mid"], domain="com.microsoft"),
            helper.make_node("Exp", ["mid"], ["inner"]),
        ]
        inner, mid = (value(name, FLOAT, [2, 4]) for name in ("inner", "mid"))
        return helper.make_graph(nodes, name, [], [inner], value_info=[mid])

    nodes = [
        helper.make_node("ReduceSum", ["x"], ["s"], name="sum", keepdims=0),
        helper.make_node("Cast", ["s"], ["c"], name="condition", to=TensorProto.BOOL),
        helper.make_node("If", ["c"], ["y"], name="choice",
                         then_branch=branch("then"), else_branch=branch("else")),
    ]  # fmt: skip
    graph, _ = read_onnx(write(tmp_path / "branch.onnx", nodes))
    assert graph.op_flops[graph.op_index["choice"]] == 2 * flops.elementwise((2, 4))


def test_shapes_stored_in_a_scan_are_those_of_another_batch(tmp_path: Path) -> None:
    value = helper.make_tensor_value_info
    inside = body(
        [helper.make_node("Exp", ["column"], ["made"])],
        [value("column", FLOAT, [1])],
        [value("made", FLOAT, [1])],
    )
    nodes = [
        helper.make_node("Scan", ["x"], ["y"], name="scan", num_scan_inputs=1, body=inside,
                         scan_input_axes=[1], scan_output_axes=[1]),
    ]  # fmt: skip
    path = write(tmp_path / "scan.onnx", nodes, inputs={"x": ["batch", 4]})
    graph, _ = read_onnx(path, shapes={"x": (2, 4)})
    assert graph.op_flops[graph.op_index["scan"]] == 4 * flops.elementwise((2,))


@pytest.mark.parametrize("stated", [[], ["a"], ["a", "b", "c"]])
def test_a_wrong_rank_of_an_output_is_not_taken(stated: list[str], tmp_path: Path) -> None:
    """ONNX Runtime only warns of it; the file was refused."""
    path = write(tmp_path / "rank.onnx", [helper.make_node("Relu", ["x"], ["y"], name="relu")])
    model = onnx.load(path)
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", FLOAT, stated))
    onnx.save(model, path)
    graph, source = read_onnx(path)
    assert graph.tensor_shapes[int(graph.op_outputs.row(0)[0])] == (2, 4)
    assert source.signature is not None
    assert source.signature.outputs[0].shape == (2, 4)


def test_flops_follow_the_common_rules(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "k", "b"], ["c"], name="conv", group=4),
        helper.make_node("ConvTranspose", ["x", "t"], ["d"], name="transposed"),
        helper.make_node("MaxPool", ["x"], ["p"], name="pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("GlobalAveragePool", ["x"], ["g"], name="mean"),
        helper.make_node("Softmax", ["x"], ["s"], name="softmax"),
        helper.make_node("Transpose", ["x"], ["m"], name="turn", perm=[0, 2, 3, 1]),
        helper.make_node("Einsum", ["x", "t"], ["e"], name="sum", equation="bchw, coij -> bohw"),
    ]
    constants = {
        "k": np.zeros((16, 2, 3, 3), np.float32),
        "b": np.zeros(16, np.float32),
        "t": np.zeros((8, 16, 3, 3), np.float32),
    }
    path = write(tmp_path / "flops.onnx", nodes, constants,
                 inputs={"x": [1, 8, 10, 10]}, outputs=list("cdpgsme"))  # fmt: skip
    graph, _ = read_onnx(path)
    assert dict(zip(graph.op_names, graph.op_flops.tolist(), strict=True)) == {
        "conv": 2 * 16 * 8 * 8 * 3 * 3 * 2 + 16 * 8 * 8,
        "transposed": 2 * 8 * 10 * 10 * 3 * 3 * 16,
        "pool": 8 * 5 * 5 * 4,
        "mean": 800,
        "softmax": 4000,
        "turn": 0,
        "sum": 2 * 8 * 10 * 10 * 16 * 3 * 3,
    }


def test_a_function_of_the_model_is_not_the_operator_of_its_name(tmp_path: Path) -> None:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    functions = [
        helper.make_function("own", name, ["a", "b"], ["c"],
                             [helper.make_node("Add", ["a", "b"], ["c"])], opsets[:1])
        for name in ("Einsum", "MultiHeadAttention", "MatMul")
    ]  # fmt: skip
    nodes = [
        helper.make_node(made.name, [read, read], [made.name], domain="own", name=made.name)
        for read, made in zip(("x", "Einsum", "MultiHeadAttention"), functions, strict=True)
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [value("x", FLOAT, [4, 4])], [value("MatMul", FLOAT, [4, 4])]
    )
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9, functions=functions)
    (tmp_path / "f.onnx").write_bytes(model.SerializeToString())
    assert read_onnx(tmp_path / "f.onnx")[0].op_flops.tolist() == [16.0] * 3


@pytest.mark.parametrize("inside", [False, True], ids=["call", "branch"])
def test_a_call_counts_what_its_function_does_and_holds(inside: bool, tmp_path: Path) -> None:
    """A product with a constant, within a function that another calls twice."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    weight = numpy_helper.from_array(np.ones((4, 4), np.float32))
    held = helper.make_node("Constant", [], ["w"], value=weight)
    product = helper.make_node("MatMul", ["a", "w"], ["c"])
    inner = helper.make_function("own", "Inner", ["a"], ["c"], [held, product], opsets)
    nodes = [helper.make_node("Inner", [read], [made], domain="own") for read, made in ("ab", "bc")]
    outer = helper.make_function("own", "Outer", ["a"], ["c"], nodes, opsets)
    value = helper.make_tensor_value_info
    calls = [
        helper.make_node("Outer", [read], [made], name=made, domain="own")
        for read, made in (("x", "p"), ("p", "y"))
    ]
    if inside:
        branches = {
            f"{which}_branch": helper.make_graph(
                [helper.make_node("Outer", ["x"], [which], domain="own")],
                which, [], [value(which, FLOAT, [2, 4])],
            )
            for which in ("then", "else")
        }  # fmt: skip
        calls = [
            helper.make_node("ReduceSum", ["x"], ["t"], keepdims=0, name="t"),
            helper.make_node("Cast", ["t"], ["on"], to=TensorProto.BOOL, name="on"),
            helper.make_node("If", ["on"], ["y"], name="y", **branches),
        ]
    graph = helper.make_graph(calls, "g", [value("x", FLOAT, [2, 4])], [value("y", FLOAT, [2, 4])])
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9, functions=[inner, outer])
    path = tmp_path / "f.onnx"
    path.write_bytes(model.SerializeToString())
    read, _ = read_onnx(path)
    assert read.op_flops.tolist()[-1] == 2 * (2 * 2 * 4 * 4)
    assert read.op_weight_bytes.tolist()[-1] == (2 if inside else 1) * 2 * 64
    assert read.op_names == (("t", "on", "y") if inside else ("p", "y"))


@pytest.mark.parametrize("place", ["function", "branch"])
def test_numbers_that_are_drawn_inside_are_no_constant(place: str, tmp_path: Path) -> None:
    """All that the node reads is constant, and each segment would draw numbers of its own."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    value = helper.make_tensor_value_info
    draw = helper.make_node("RandomNormalLike", ["a"], ["c"])
    inner = helper.make_function("own", "Inner", ["a"], ["c"], [draw], opsets[:1])
    call = helper.make_node("Inner", ["a"], ["c"], domain="own")
    outer = helper.make_function("own", "Outer", ["a"], ["c"], [call], opsets)
    branches = {
        f"{which}_branch": helper.make_graph(
            [helper.make_node("RandomNormal", [], [which], shape=[2, 4])],
            which, [], [value(which, FLOAT, [2, 4])],
        )
        for which in ("then", "else")
    }  # fmt: skip
    noise = {
        "function": helper.make_node("Outer", ["w"], ["noise"], name="noise", domain="own"),
        "branch": helper.make_node("If", ["on"], ["noise"], name="noise", **branches),
    }
    nodes = [noise[place], helper.make_node("Add", ["x", "noise"], ["y"], name="sum")]
    constants: dict[str, Any] = {"w": np.ones((2, 4), np.float32), "on": np.array(True)}
    graph = helper.make_graph(
        nodes, "g", [value("x", FLOAT, [2, 4])], [value("y", FLOAT, [2, 4])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9, functions=[inner, outer])
    (tmp_path / "noise.onnx").write_bytes(model.SerializeToString())
    assert read_onnx(tmp_path / "noise.onnx")[0].op_names == ("noise", "sum")


def test_weights_that_are_shorter_than_their_shapes_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "short.onnx"
    for external in (None, "w.bin"):
        write_onnx(path, external=external)
        model = onnx.load(str(path), load_external_data=False)
        weight = model.graph.initializer[0]
        weight.dims[0] = model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 4096
        del weight.external_data[1:]  # offset and length
        (tmp_path / "w.bin").write_bytes(WEIGHT.tobytes())
        path.write_bytes(model.SerializeToString())
        graph, source = read_onnx(path)
        with pytest.raises(FileFormatError, match=r"short\.onnx' is damaged"):
            OnnxRuntime().load(source, graph)


def test_a_deformable_convolution_counts_as_one(tmp_path: Path) -> None:
    nodes = [helper.make_node("DeformConv", ["x", "k", "o", "b"], ["y"], name="moved")]
    constants = {"k": np.zeros((16, 8, 3, 3), np.float32), "b": np.zeros(16, np.float32)}
    inputs = {"x": [1, 8, 10, 10], "o": [1, 18, 8, 8]}
    path = write(tmp_path / "moved.onnx", nodes, constants, inputs=inputs)
    model = onnx.load(str(path))
    model.opset_import[0].version = 19
    onnx.save(model, str(path))
    assert read_onnx(path)[0].op_flops[0] == 2 * 16 * 8 * 8 * 3 * 3 * 8 + 16 * 8 * 8


def node(kind: str, read: str, made: str, **attributes: Any) -> Any:
    """A node that is called as its first output; ``-`` is no value, ``ms:`` is `com.microsoft`."""
    inputs = [name if name != "-" else "" for name in read.split()]
    domain, _, name = kind.rpartition(":")
    return helper.make_node(name, inputs, made.split(), name=made.split()[0],
                            domain="com.microsoft" if domain else "", **attributes)  # fmt: skip


def test_integer_products_count_as_products_of_floats(tmp_path: Path) -> None:
    int8 = np.int8
    nodes = [
        node("DynamicQuantizeLinear", "x", "xq xs xz"),
        node("ConvInteger", "xq k xz", "conv"),
        node("QLinearConv", "xq xs xz k one zero one byte b", "conv_q"),
        node("DynamicQuantizeLinear", "m", "mq ms mz"),
        node("MatMulInteger", "mq w mz", "product"),
        node("QLinearMatMul", "mq ms mz w one zero one byte", "product_q"),
        node("ms:QGemm", "mq ms mz w one zero b9", "gemm"),
        node("ms:QGemm", "mq ms mz w one zero - one byte", "gemm_q"),
        node("ms:DynamicQuantizeMatMul", "m w one", "product_d"),
        node("ms:MatMulNBits", "m n ns", "product_n", K=32, N=9, bits=4, block_size=32),
        node("ms:FusedMatMul", "m m", "product_f", transA=1),
    ]
    constants = {
        "k": np.zeros((16, 8, 3, 3), int8), "w": np.zeros((32, 9), int8), "zero": int8(0),
        "b": np.zeros(16, np.int32), "b9": np.zeros(9, np.int32), "byte": np.uint8(0),
        "one": np.float32(1),
        "n": np.zeros((9, 1, 16), np.uint8), "ns": np.ones(9, np.float32),
    }  # fmt: skip
    path = write(tmp_path / "integer.onnx", nodes, constants,
                 inputs={"x": [1, 8, 10, 10], "m": [6, 32]}, outputs=["product_f"])  # fmt: skip
    graph, _ = read_onnx(path)
    convolution, product = 2 * 16 * 8 * 8 * 3 * 3 * 8, 2 * 6 * 32 * 9
    counted = dict(zip(graph.op_names, graph.op_flops.tolist(), strict=True))
    assert counted == {
        "xq": 800, "conv": convolution, "conv_q": convolution + 16 * 8 * 8,
        "mq": 192, "product": product, "product_q": product, "gemm": product + 6 * 9,
        "gemm_q": product, "product_d": product, "product_n": product,
        "product_f": 2 * 32 * 6 * 32,
    }  # fmt: skip


def test_attention_of_onnx_runtime_counts_as_that_of_others(tmp_path: Path) -> None:
    nodes = [
        node("ms:Attention", "t w b", "projected", num_heads=2),
        node("ms:MultiHeadAttention", "t k v", "plain", num_heads=2),
        node("ms:MultiHeadAttention", "t kv", "packed", num_heads=2),
        node("ms:GroupQueryAttention", "t s s past past length total", "grouped keys values",
             num_heads=2, kv_num_heads=1),
    ]  # fmt: skip
    constants = {
        "w": np.zeros((8, 24), np.float32), "b": np.zeros(24, np.float32),
        "length": np.full(2, 7, np.int32), "total": np.int32(8),
    }  # fmt: skip
    inputs = {
        "t": [2, 5, 8],
        "k": [2, 6, 8],
        "v": [2, 6, 8],
        "s": [2, 5, 4],
        "past": [2, 1, 3, 4],
        "kv": [2, 6, 2, 2, 4],
    }
    path = write(tmp_path / "attention.onnx", nodes, constants, inputs=inputs,
                 outputs=["projected", "plain", "packed", "grouped", "keys", "values"])  # fmt: skip
    graph, _ = read_onnx(path)
    queries = (2, 2, 5, 4)  # batch, heads, queries, width
    assert dict(zip(graph.op_names, graph.op_flops.tolist(), strict=True)) == {
        "projected": 2 * 10 * 8 * 24 + 10 * 24 + flops.attention(queries, 5, 4),
        "plain": flops.attention(queries, 6, 4),
        "packed": flops.attention(queries, 6, 4),
        "grouped": flops.attention(queries, 8, 4),
    }


@pytest.mark.parametrize("others", [[], [(24,)]], ids=["alone", "with a bias"])
def test_attention_with_queries_keys_and_values_in_one_tensor(
    others: list[tuple[int, ...]],
) -> None:
    """It reads no keys of their own; the next input is the bias."""
    inputs = [(2, 5, 2, 3, 4), *others]
    attention = NodeShapes("MultiHeadAttention", {"num_heads": 2}, inputs, [(2, 5, 8)])
    assert flops_of(attention) == flops.attention((2, 2, 5, 4), 5, 4)


def test_what_reduces_counts_what_it_reads() -> None:
    for kind in ("ArgMax", "ArgMin", "ReduceMax"):
        assert flops_of(NodeShapes(kind, {}, [(2, 10)], [(2, 1)])) == 20
    quantized = [(2, 10), (1,), (1,), (1,), (1,)]
    assert flops_of(NodeShapes("QLinearReduceMean", {}, quantized, [(2, 1)])) == 20
    assert flops_of(NodeShapes("GlobalLpPool", {}, [(1, 2, 10, 10)], [(1, 2, 1, 1)])) == 200
    pooled = NodeShapes("LpPool", {"kernel_shape": [2, 2]}, [(1, 2, 10, 10)], [(1, 2, 5, 5)])
    assert flops_of(pooled) == 200


def test_shapes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "open.onnx"
    write_onnx(path, batch="batch")
    with caplog.at_level(logging.WARNING):
        assert read_onnx(path)[1].shapes == {"x": (1, 4)}
    assert "`shapes`" in caplog.text
    graph, source = read_onnx(path, shapes={"x": (5, 4)})
    assert source.shapes == {"x": (5, 4)}
    assert graph.op_flops[0] == 5 * 24
    with pytest.raises(UnknownNameError, match=r"unknown model input 'z'; .*available: x"):
        read_onnx(path, shapes={"z": (1,)})
    with pytest.raises(InputError, match="do not fit") as caught:
        read_onnx(path, shapes={"x": (2, 9)})
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="must be >= 0"):
        read_onnx(path, shapes={"x": (-1, 4)})


def test_external_data_stays_in_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "outside.onnx"
    write_onnx(path, external="weights.data")
    (tmp_path / "weights.data").write_bytes(WEIGHT.tobytes())
    assert read_onnx(path)[0].op_weight_bytes[0] == 48
    write_onnx(path, external="../weights.data")
    with pytest.raises(FileFormatError, match="outside its own folder"):
        read_onnx(path)


def test_damaged_models_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "damaged.onnx"
    path.write_bytes(b"hello, this is text\n")
    with pytest.raises(FileFormatError, match=r"damaged\.onnx"):
        read_onnx(path)
    with pytest.raises(GraphError, match="no operator"):
        read_onnx(write(path, [helper.make_node("Exp", ["c"], ["y"])], {"c": np.ones(2, "f4")}))
    write_onnx(path)
    path.write_bytes(path.read_bytes().replace(b"dense/sum", b"dense/\xff\xfem"))
    with pytest.raises(InputError, match=r"damaged\.onnx"):
        read_onnx(path)
    with pytest.raises(InputError, match=r"damaged\.onnx"):
        read_onnx(write(path, [helper.make_node("Add", ["x", "ghost"], ["y"], name="sum")]))


def test_converting_a_program_says_nothing_of_what_cannot_be_folded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whose constant folding fails on a gather of Hugging Face's kind, which runs all the same."""
    import torch

    class Gathers(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("kinds", torch.zeros((1, 512), dtype=torch.int64))
            self.register_buffer("places", torch.arange(16)[None])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert isinstance(self.kinds, torch.Tensor)
            assert isinstance(self.places, torch.Tensor)
            return x + torch.gather(self.kinds, 1, self.places)

    made = OnnxConverter().file_of_module(
        "m", Gathers().eval(), (torch.randn(2, 16),), folder=tmp_path
    )
    assert made.exists()
    told = [entry.getMessage() for entry in caplog.records if entry.levelno >= logging.WARNING]
    assert [text for text in told if text.strip()] == []


def test_results_of_a_loop_have_the_shape_of_what_stays_the_same(tmp_path: Path) -> None:
    """A state of 2 x 4 after five turns, and the five states beside each other."""
    value = helper.make_tensor_value_info
    inside = body(
        [
            helper.make_node("Identity", ["again"], ["on"]),
            helper.make_node("Exp", ["state"], ["next"]),
            helper.make_node("Neg", ["next"], ["seen"]),
        ],
        [value("turn", TensorProto.INT64, []), value("again", TensorProto.BOOL, []),
         value("state", FLOAT, [2, 4])],
        [value("on", TensorProto.BOOL, []), value("next", FLOAT, [2, 4]),
         value("seen", FLOAT, [2, 4])],
    )  # fmt: skip
    nodes = [
        helper.make_node("Loop", ["trips", "", "x"], ["last", "all"], name="loop", body=inside),
        helper.make_node("Relu", ["last"], ["y"], name="after"),
        helper.make_node("Relu", ["all"], ["z"], name="after all"),
    ]
    graph, _ = read_onnx(write(tmp_path / "loop.onnx", nodes, {"trips": np.array(5)}))
    shapes = {graph.op_names[op]: [graph.tensor_shapes[t] for t in graph.op_outputs.row(op)]
              for op in range(graph.n_ops)}  # fmt: skip
    assert shapes == {"loop": [(2, 4), (5, 2, 4)], "after": [(2, 4)], "after all": [(5, 2, 4)]}


@pytest.mark.parametrize("form", ["initializer", "Constant"])
def test_constants_of_both_branches_are_weights_of_the_choice(form: str, tmp_path: Path) -> None:
    """A matrix of 4 x 5 and one of 4 x 3, each four bytes an element; one of them nested."""

    def branch(name: str, width: int) -> Any:
        tensor = helper.make_tensor(f"w{width}", FLOAT, [4, width], np.zeros(4 * width, np.float32))
        nodes = [helper.make_node("MatMul", ["x", f"w{width}"], ["wide"]),
                 helper.make_node("ReduceSum", ["wide"], ["inner"], keepdims=0)]  # fmt: skip
        if form == "Constant":
            nodes.insert(0, helper.make_node("Constant", [], [f"w{width}"], value=tensor))
        out = helper.make_tensor_value_info("inner", FLOAT, [])
        return helper.make_graph(nodes, name, [], [out], [tensor] * (form == "initializer"))

    def chosen(then: Any, other: Any) -> Any:
        return helper.make_node("If", ["c"], ["y"], name="choice", then_branch=then,
                                else_branch=other)  # fmt: skip

    out = helper.make_tensor_value_info("y", FLOAT, [])
    nested = helper.make_graph([chosen(branch("deep", 3), branch("deeper", 3))], "else", [], [out])
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["s"], name="sum", keepdims=0),
        helper.make_node("Cast", ["s"], ["c"], name="condition", to=TensorProto.BOOL),
        chosen(branch("then", 5), nested),
    ]
    graph, _ = read_onnx(write(tmp_path / "branch.onnx", nodes))
    assert graph.weight_bytes.sum() == 4 * 4 * (5 + 3 + 3)

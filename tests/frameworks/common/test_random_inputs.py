"""Random whole numbers are valid for a model, and as many of them occur as it knows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from placewright.execution.framework import ReadOptions
from placewright.frameworks.registry import framework_named

onnx = pytest.importorskip("onnx")
helper, types = pytest.importorskip("onnx.helper"), onnx.TensorProto
_N_DRAWN = 2000


def _embedding(table: str, ids: str) -> list[object]:
    return [helper.make_node("Gather", [table, ids], ["rows"], axis=0)]


_I64, _I32, _U8, _F32 = types.INT64, types.INT32, types.UINT8, types.FLOAT
# Name -> type of the input, nodes from "ids" to "rows", largest number that may and must occur.
_CASES = {
    "embedding": (_I64, _embedding("t50", "ids"), 49),
    "through a cast and a slice": (
        _I64,
        [
            helper.make_node("Cast", ["ids"], ["cast"], to=types.INT32),
            helper.make_node("Slice", ["cast", "zero", "many"], ["cut"]),
            *_embedding("t50", "cut"),
        ],
        49,
    ),
    "the smaller of two tables": (
        _I64,
        [
            helper.make_node("Gather", ["t50", "ids"], ["first"], axis=0),
            helper.make_node("Gather", ["t20", "ids"], ["second"], axis=0),
            helper.make_node("Add", ["first", "second"], ["rows"]),
        ],
        19,
    ),
    "a mask of padding is no table": (
        _I64,
        [
            helper.make_node("Equal", ["ids", "zero"], ["pad"]),
            helper.make_node("Cast", ["pad"], ["mask"], to=_F32),
            helper.make_node("Unsqueeze", ["mask", "one"], ["masks"]),
            helper.make_node("Gather", ["t50", "ids"], ["read"], axis=0),
            helper.make_node("Mul", ["masks", "read"], ["rows"]),
        ],
        49,
    ),
    "one-hot by comparison": (
        _I32,
        [
            helper.make_node("Unsqueeze", ["ids", "one"], ["wide"]),
            helper.make_node("Equal", ["wide", "count"], ["hot"]),
            helper.make_node("Cast", ["hot"], ["rows"], to=_F32),
        ],
        15,
    ),
    "bytes": (_U8, [helper.make_node("Cast", ["ids"], ["rows"], to=_F32)], 255),
    "a mask": (_I64, [helper.make_node("Cast", ["ids"], ["rows"], to=_F32)], 1),
    "an unknown reader": (
        _I64,
        [helper.make_node("Add", ["ids", "zero"], ["more"]), *_embedding("t50", "more")],
        1,
    ),
}


# Cases of ONNX Runtime, whose reader follows the numbers of constants.
_CASES_OF_ONNX = {
    "comparison with some of the numbers": (
        _I32,
        [
            helper.make_node("Unsqueeze", ["ids", "one"], ["wide"]),
            helper.make_node("Slice", ["count", "zero", "two", "one"], ["some"]),
            helper.make_node("Equal", ["wide", "some"], ["hot"]),
            helper.make_node("Cast", ["hot"], ["rows"], to=_F32),
        ],
        1,
    ),
}


def _model(folder: Path, case: str) -> Path:
    kind, nodes, _ = {**_CASES, **_CASES_OF_ONNX}[case]
    constants = {
        "t50": np.ones((50, 3), np.float32),
        "t20": np.ones((20, 3), np.float32),
        "zero": np.zeros(1, np.int64),
        "one": np.ones(1, np.int64),
        "two": np.full(1, 2, np.int64),
        "many": np.full(1, _N_DRAWN, np.int64),
        "count": np.arange(16, dtype=np.int32)[None],
    }
    read = {name for node in nodes for name in node.input}
    graph = helper.make_graph(
        nodes,
        case,
        [helper.make_tensor_value_info("ids", kind, [_N_DRAWN])],
        [helper.make_tensor_value_info("rows", _F32, None)],
        [onnx.numpy_helper.from_array(constants[name], name) for name in constants if name in read],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(made, folder / "model.onnx")
    return folder / "model.onnx"


@pytest.mark.parametrize(
    ("case", "runtime"),
    [
        *((case, runtime) for case in _CASES for runtime in ("onnxruntime", "openvino")),
        *((case, "onnxruntime") for case in _CASES_OF_ONNX),
    ],
)
def test_all_numbers_that_a_model_knows_occur(case: str, runtime: str, tmp_path: Path) -> None:
    pytest.importorskip(runtime)
    framework, path = framework_named(runtime), _model(tmp_path, case)
    graph, source = framework.read(str(path), lambda _: path, ReadOptions())
    model = framework.runtime(lambda _: path).load(
        framework.runnable(source, lambda _: path), graph
    )
    (drawn,) = model.random_inputs(np.random.default_rng(0))
    device = next(d for d in framework.runtime(lambda _: path).discover() if d.name == "cpu:0")
    model.plain(device)([drawn])  # the library takes them
    largest = {**_CASES, **_CASES_OF_ONNX}[case][2]
    assert drawn.min() == 0
    assert drawn.max() <= largest
    assert len(np.unique(drawn)) > 0.9 * (largest + 1)

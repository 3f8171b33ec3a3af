"""A small ONNX model with branches, a shared weight and two outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper


def branching_model() -> Any:
    """Convolutions that share a weight, a join, a pooled head and a gate: two outputs."""
    rng = np.random.default_rng(7)

    def weight(name: str, *shape: int) -> Any:
        return numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32) / 4, name)

    def node(kind: str, inputs: str, output: str, **attributes: Any) -> Any:
        return helper.make_node(kind, inputs.split(), output.split(), name=output, **attributes)

    same = {"pads": [1, 1, 1, 1]}
    nodes = [
        node("Conv", "x w", "a", **same),
        node("Relu", "a", "b"),
        node("Conv", "b w", "c", **same),
        node("Relu", "c", "d"),
        node("Conv", "x v", "e", **same),
        node("Sigmoid", "e", "f"),
        node("Concat", "d f", "g", axis=1),
        node("GlobalAveragePool", "g", "h"),
        node("Flatten", "h", "i"),
        node("MatMul", "i m", "j"),
        node("Add", "j n", "logits"),
        node("Mul", "b f", "gate"),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "branching",
        [value("x", TensorProto.FLOAT, [1, 4, 16, 16])],
        [
            value("logits", TensorProto.FLOAT, [1, 5]),
            value("gate", TensorProto.FLOAT, [1, 4, 16, 16]),
        ],
        [weight("w", 4, 4, 3, 3), weight("v", 4, 4, 3, 3), weight("m", 8, 5), weight("n", 5)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)

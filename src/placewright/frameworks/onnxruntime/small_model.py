"""The small model of `execution.small_model` as an ONNX file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from placewright.execution.small_model import ImageTower, MatrixTower, SmallModel


def small_model_file(folder: Path) -> Path:
    """Write the model into a folder."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    model = SmallModel()
    nodes: list[Any] = []
    constants: list[Any] = []
    inputs, outputs = [], []
    for at, (tower, branches) in enumerate(zip(model.towers, model.weights(), strict=True)):
        ends = []
        for branch, weights in enumerate(branches):
            value = f"x{at}"
            for depth, weight in enumerate(weights):
                name = f"{at}.{branch}.{depth}"
                constants.append(numpy_helper.from_array(weight, f"w{name}"))
                nodes += _pair(helper, tower, value, name)
                value = f"y{name}"
            ends.append(value)
        nodes.append(helper.make_node("Add", ends, [f"y{at}"], name=f"add {at}"))
        shape = list(tower.shape)
        inputs.append(helper.make_tensor_value_info(f"x{at}", TensorProto.FLOAT, shape))
        outputs.append(helper.make_tensor_value_info(f"y{at}", TensorProto.FLOAT, shape))
    graph = helper.make_graph(nodes, model.NAME, inputs, outputs, constants)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    path = folder / f"{model.NAME}.onnx"
    onnx.save(made, str(path))
    return path


def _pair(helper: Any, tower: ImageTower | MatrixTower, value: str, name: str) -> list[Any]:
    """A product and a light op."""
    ends = ([value, f"w{name}"], [f"p{name}"])
    if isinstance(tower, MatrixTower):
        product = helper.make_node("MatMul", *ends, name=f"product {name}")
        light = helper.make_node("Softmax", [f"p{name}"], [f"y{name}"], f"light {name}", axis=1)
        return [product, light]
    pads, three = [1, 1, 1, 1], [3, 3]
    return [
        helper.make_node("Conv", *ends, name=f"product {name}", kernel_shape=three, pads=pads),
        helper.make_node(
            "MaxPool", [f"p{name}"], [f"y{name}"], f"light {name}", kernel_shape=three, pads=pads
        ),
    ]

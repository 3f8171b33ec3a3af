"""The small model of `execution.small_model` as an OpenVINO IR file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from placewright.execution.small_model import ImageTower, MatrixTower, SmallModel


def small_model_file(folder: Path) -> Path:
    """Write the model into a folder."""
    import openvino
    import openvino.opset13 as ops

    model = SmallModel()
    inputs, results = [], []
    for tower, branches in zip(model.towers, model.weights(), strict=True):
        inputs.append(ops.parameter(list(tower.shape), np.float32))
        ends = [_branch(ops, tower, inputs[-1], weights) for weights in branches]
        results.append(ops.add(*ends))
    path = folder / f"{model.NAME}.xml"
    openvino.save_model(openvino.Model(results, inputs, model.NAME), path, compress_to_fp16=False)
    return path


def _branch(ops: Any, tower: ImageTower | MatrixTower, value: Any, weights: list[Any]) -> Any:
    for weight in weights:
        if isinstance(tower, MatrixTower):
            value = ops.softmax(ops.matmul(value, ops.constant(weight), False, False), 1)
            continue
        value = ops.convolution(value, ops.constant(weight), [1, 1], [1, 1], [1, 1], [1, 1])
        pooled = ops.max_pool(value, [1, 1], [1, 1], [1, 1], [1, 1], [3, 3])
        value = pooled.output(0)
    return value

"""The small model of `execution.small_model` as a PyTorch module."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from placewright.execution.framework import BuiltModule, ModelInMemory
from placewright.execution.small_model import BRANCHES, DEPTH, ImageTower, MatrixTower, SmallModel


def small_model_in_memory() -> ModelInMemory:
    """The model, which is built when it is needed."""
    model = SmallModel()
    name = f"module:{model.NAME}"
    return ModelInMemory(name, str(model.VERSION), lambda is_training: _built(model))


def _built(model: SmallModel) -> BuiltModule:
    import torch

    class Towers(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = torch.nn.ParameterList(
                torch.nn.Parameter(torch.from_numpy(weight), requires_grad=False)
                for branches in model.weights()
                for weights in branches
                for weight in weights
            )

        def forward(self, *inputs: Any) -> tuple[Any, ...]:
            left = iter(self.weights)
            towers = zip(model.towers, inputs, strict=True)
            return tuple(_tower(tower, x, left) for tower, x in towers)

    inputs = [torch.zeros(tower.shape) for tower in model.towers]
    return BuiltModule(Towers().eval(), inputs)


def _tower(tower: ImageTower | MatrixTower, x: Any, weights: Iterator[Any]) -> Any:
    from torch.nn.functional import conv2d, max_pool2d

    ends = []
    for _ in range(BRANCHES):
        value = x
        for _ in range(DEPTH):
            weight = next(weights)
            if isinstance(tower, MatrixTower):
                value = (value @ weight).softmax(1)
            else:
                value = max_pool2d(conv2d(value, weight, padding=1), 3, 1, 1)
        ends.append(value)
    return ends[0] + ends[1]

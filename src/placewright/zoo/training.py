"""A zoo model with its task's loss: what a training step is read from."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode

from placewright.zoo.model import ZooModel

_SMALLEST_BATCH = 2  # batch normalisation has no variance to divide by with one value


@dataclass(frozen=True)
class ZooTraining:
    """A module that returns its loss, with inputs and labels.

    Attributes:
        module: (inputs, then integer labels per output) -> scalar loss.
        example_inputs: positional inputs of `module`.
        input_names: one per example input.
    """

    module: nn.Module
    example_inputs: tuple[Tensor, ...]
    input_names: tuple[str, ...]


class _WithLoss(nn.Module):
    """Cross-entropy of each output's last axis against its target, summed over outputs."""

    def __init__(self, model: nn.Module, n_inputs: int) -> None:
        super().__init__()
        self.model = model
        self.n_inputs = n_inputs

    def forward(self, *values: Tensor) -> Tensor:
        """Inputs, then a target of shape (rows,) for each output (..., classes) -> scalar."""
        outputs = self.model(*values[: self.n_inputs])
        every = (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)
        losses = [
            nn.functional.cross_entropy(output.flatten(0, -2), target)
            for output, target in zip(every, values[self.n_inputs :], strict=True)
        ]
        return torch.stack(losses).sum() if len(losses) > 1 else losses[0]


def training_of(model: ZooModel) -> ZooTraining:
    """The training step's module of a zoo model.

    Classification of images, and of the next token for `gpt2`, `gnmt`, `rnnlm` and `moe`. BERT is
    built without a head: its hidden and its pooled output are classified as they are. A model with
    batch normalisation gets a batch of two.
    """
    inputs = model.example_inputs
    if any(isinstance(part, nn.BatchNorm2d) for part in model.module.modules()):
        inputs = tuple(_widened(value) for value in inputs)
    shapes = _output_shapes(model.module, inputs)
    targets = tuple(_target(shape) for shape in shapes)
    names = ("labels",) if len(targets) == 1 else tuple(f"labels_{i}" for i in range(len(targets)))
    return ZooTraining(
        _WithLoss(model.module, len(inputs)), (*inputs, *targets), (*model.input_names, *names)
    )


def _widened(value: Tensor) -> Tensor:
    """At least two different samples along the first axis."""
    missing = _SMALLEST_BATCH - value.shape[0]
    return torch.cat([value, *(value.flip(-1) for _ in range(missing))]) if missing > 0 else value


def _target(shape: tuple[int, ...]) -> Tensor:
    """The target of row r among n classes is ``7919 r mod n``, as in `ZooModel.loss`."""
    rows = torch.Size(shape[:-1]).numel()
    return torch.arange(rows) * 7919 % shape[-1]


def _output_shapes(module: nn.Module, inputs: tuple[Tensor, ...]) -> list[tuple[int, ...]]:
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.no_grad():
        outputs = module(*[mode.from_tensor(value) for value in inputs])
    every = (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)
    return [tuple(output.shape) for output in every]

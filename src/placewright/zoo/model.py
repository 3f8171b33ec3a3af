"""Zoo models: a module with seeded weights, its example inputs, and its training step."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode

_SEED = 20170612  # any constant: weights must be the same on every call
_DEFAULT = threading.Lock()  # of the default generator: two threads would draw in turn


@dataclass(frozen=True)
class ZooModel:
    """A model with its example inputs."""

    name: str  # in the zoo
    module: nn.Module  # in evaluation mode, float32, with seeded weights
    example_inputs: tuple[Tensor, ...]  # positional inputs of `module`
    input_names: tuple[str, ...]  # one per example input
    description: str  # architecture, sizes and source in one line


def seeded(construct: Callable[[], nn.Module]) -> nn.Module:
    """Construct a module with the zoo's seed; the caller's random state stays unchanged."""
    with _DEFAULT, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(_SEED)
        return construct().eval()


def example_generator() -> torch.Generator:
    """The random generator of example inputs."""
    return torch.Generator().manual_seed(_SEED)


def example_image(size: int) -> Tensor:
    """One normally distributed image, shape (1, 3, size, size)."""
    return torch.randn(1, 3, size, size, generator=example_generator())


def keep_signal(module: nn.Module) -> nn.Module:
    """Initialise a module so that activations neither vanish nor explode with depth.

    Convolutions and linear layers follow He et al. 2015; batch normalisation gets statistics that
    differ from the identity. If activations vanished, two different networks would have equal
    outputs, and a check of outputs would prove nothing.
    """
    for part in module.modules():
        if isinstance(part, nn.Conv2d | nn.Linear):
            fan_in = part.weight[0].numel()
            nn.init.normal_(part.weight, std=math.sqrt(2.0 / fan_in))
            if part.bias is not None:
                nn.init.normal_(part.bias, std=0.02)
        elif isinstance(part, nn.BatchNorm2d) and part.running_mean is not None:
            nn.init.uniform_(part.weight, 0.7, 1.0)
            nn.init.normal_(part.bias, std=0.1)
            nn.init.normal_(part.running_mean, std=0.1)
            assert part.running_var is not None
            nn.init.uniform_(part.running_var, 0.8, 1.2)
    return module


_SMALLEST_BATCH = 2  # one value has no variance, and batch normalisation divides by it


@dataclass(frozen=True)
class ZooTraining:
    """A module that returns its loss, with inputs and labels."""

    module: nn.Module  # (inputs, then integer labels per output) -> scalar loss
    example_inputs: tuple[Tensor, ...]  # positional inputs of `module`
    input_names: tuple[str, ...]  # one per example input


class _WithLoss(nn.Module):
    """Cross-entropy of each output's last axis against its target, summed over outputs."""

    def __init__(self, model: nn.Module, n_inputs: int) -> None:
        super().__init__()
        self.model = model
        self.n_inputs = n_inputs

    def forward(self, *values: Tensor) -> Tensor:
        """Inputs, then a target of shape (rows,) for each output (..., classes) -> scalar."""
        outputs = self.model(*values[: self.n_inputs])
        losses = _cross_entropies(_all_of(outputs), values[self.n_inputs :])
        return torch.stack(losses).sum() if len(losses) > 1 else losses[0]


def training_of(model: ZooModel) -> ZooTraining:
    """The module of a zoo model's training step.

    Image models classify images; `gpt2`, `gnmt`, `rnnlm` and `moe` classify the next token. BERT
    has no head, so its hidden and its pooled output are classified directly. A model with batch
    normalisation gets a batch of two.
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
    """Extend a value to at least two different samples along the first axis."""
    missing = _SMALLEST_BATCH - value.shape[0]
    return torch.cat([value, *(value.flip(-1) for _ in range(missing))]) if missing > 0 else value


def _all_of(outputs: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)


def _cross_entropies(outputs: Sequence[Tensor], targets: Sequence[Tensor]) -> list[Tensor]:
    """Cross-entropy of each output's last axis against its targets of shape (rows,)."""
    return [
        nn.functional.cross_entropy(output.flatten(0, -2), target)
        for output, target in zip(outputs, targets, strict=True)
    ]


def _target(shape: Sequence[int]) -> Tensor:
    """Fixed targets for an output of this shape: ``7919 r mod n`` for row r and n classes."""
    rows = torch.Size(shape[:-1]).numel()
    return torch.arange(rows) * 7919 % shape[-1]


def _output_shapes(module: nn.Module, inputs: tuple[Tensor, ...]) -> list[tuple[int, ...]]:
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.no_grad():
        outputs = module(*[mode.from_tensor(value) for value in inputs])
    return [tuple(output.shape) for output in _all_of(outputs)]

"""What the zoo hands out, and how its weights are seeded."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

_SEED = 20170612  # any constant: weights must be the same on every call


@dataclass(frozen=True)
class ZooModel:
    """A model and what is needed to run or train it.

    Attributes:
        name: of the zoo.
        module: in evaluation mode, float32, with seeded weights.
        example_inputs: positional inputs of `module`.
        input_names: one per example input.
        description: architecture, sizes and source, one line.
    """

    name: str
    module: nn.Module
    example_inputs: tuple[Tensor, ...]
    input_names: tuple[str, ...]
    description: str

    def loss(self, outputs: Tensor | tuple[Tensor, ...]) -> Tensor:
        """Cross-entropy of every output's last axis against fixed targets, summed; a scalar.

        The target of row r among n classes is ``7919 r mod n``: no random state, so that it traces
        into a training graph as a constant.
        """
        every = (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)
        total = torch.zeros((), dtype=every[0].dtype, device=every[0].device)
        for output in every:
            rows = output.reshape(-1, output.shape[-1])  # (rows, classes)
            targets = torch.arange(rows.shape[0], device=rows.device) * 7919 % rows.shape[1]
            total = total + nn.functional.cross_entropy(rows, targets)
        return total


def seeded(construct: Callable[[], nn.Module]) -> nn.Module:
    """Construct a module with the zoo's seed and leave the caller's random state as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(_SEED)
        return construct().eval()


def example_generator() -> torch.Generator:
    """The random numbers of example inputs."""
    return torch.Generator().manual_seed(_SEED)


def example_image(size: int) -> Tensor:
    """One normally distributed image, shape (1, 3, size, size)."""
    return torch.randn(1, 3, size, size, generator=example_generator())


def keep_signal(module: nn.Module) -> nn.Module:
    """Initialise so that activations neither vanish nor explode with depth.

    He et al. 2015 for convolutions and linear layers; batch normalisation with statistics that
    differ from the identity. With vanishing activations two different networks would give equal
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

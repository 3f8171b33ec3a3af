"""Ten ordinary nets: residual ones, a U-Net, transformers, a mixer, perceptrons, two towers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import nn

import placewright as pw
from placewright.core.arrays import frozen_floats
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.problem import Problem
from placewright.profiling.units import light_ops_joined


class Residual(nn.Module):
    """A block that adds its input to a branch."""

    def __init__(self, branch: nn.Module, after: nn.Module | None = None) -> None:
        super().__init__()
        self.branch, self.after = branch, nn.Identity() if after is None else after

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.after(x + self.branch(x)))


class Stages(nn.Module):
    """Stem, blocks, head, in the style of timm."""

    def __init__(self, stem: nn.Module, blocks: list[nn.Module], head: nn.Module) -> None:
        super().__init__()
        self.stem, self.blocks, self.head = stem, nn.ModuleList(blocks), head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return torch.as_tensor(self.head(torch.flatten(x, 1)))


def conv(read: int, made: int, **said: Any) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(read, made, 3, padding=1, **said), nn.BatchNorm2d(made), nn.ReLU()
    )


def residual() -> Stages:
    blocks: list[nn.Module] = [
        Residual(nn.Sequential(conv(16, 16), nn.Conv2d(16, 16, 3, padding=1)), nn.ReLU())
        for _ in range(4)
    ]
    head = nn.Sequential(nn.Linear(16 * 64, 32), nn.ReLU(), nn.Linear(32, 10))
    return Stages(conv(3, 16), blocks, head)


def depthwise() -> Stages:
    def branch() -> nn.Module:
        return nn.Sequential(conv(12, 48), conv(48, 48, groups=48), nn.Conv2d(48, 12, 1))

    return Stages(conv(3, 12), [Residual(branch()) for _ in range(4)], nn.Linear(12 * 64, 10))


def plain_convolutions() -> Stages:
    return Stages(conv(3, 24), [conv(24, 24) for _ in range(5)], nn.Linear(24 * 64, 10))


class Up(nn.Module):
    """Doubles the image, and concatenates what was kept on the way down."""

    def __init__(self, read: int, made: int) -> None:
        super().__init__()
        self.up, self.conv = nn.ConvTranspose2d(read, made, 2, 2), conv(2 * made, made)

    def forward(self, x: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.conv(torch.cat([self.up(x), kept], 1)))


class UNet(nn.Module):
    """Two steps down, two up, with connections between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = conv(3, 8), nn.Conv2d(8, 2, 1)
        self.down = nn.ModuleList(
            nn.Sequential(nn.MaxPool2d(2), conv(8 * 2**n, 16 * 2**n)) for n in range(2)
        )
        self.up = nn.ModuleList([Up(32, 16), Up(16, 8)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = [self.first(x)]
        for step in self.down:
            kept.append(step(kept[-1]))
        x = kept.pop()
        for step in self.up:
            x = step(x, kept.pop())
        return torch.as_tensor(self.last(x))


class Attention(nn.Module):
    """Attention of several heads."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.inner(x).chunk(3, -1)
        )
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        return torch.as_tensor(self.outer(mixed.transpose(1, 2).flatten(2)))


def perceptron(width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
    )


class Encoder(nn.Module):
    """Words to classes."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.words = nn.Embedding(200, width)
        self.layers = nn.ModuleList(
            nn.Sequential(
                Residual(nn.Sequential(nn.LayerNorm(width), Attention(width))),
                Residual(perceptron(width)),
            )
            for _ in range(4)
        )
        self.head = nn.Linear(width, 8)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.words(words)
        for layer in self.layers:
            x = layer(x)
        return torch.as_tensor(self.head(x))


def bert() -> nn.Module:
    """Of transformers; PyTorch's own attention reads parameters past Accelerate's hooks."""
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=200, hidden_size=32, num_hidden_layers=3, num_attention_heads=4,
        intermediate_size=64, max_position_embeddings=16, return_dict=False,
    )  # fmt: skip
    return BertModel(config, add_pooling_layer=False)


class Mixer(nn.Module):
    """Mixes positions, then channels."""

    def __init__(self) -> None:
        super().__init__()
        self.position, self.channel = perceptron(16), perceptron(32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.position(x.transpose(1, 2)).transpose(1, 2)
        return torch.as_tensor(x + self.channel(x))


def mixer() -> nn.Module:
    return nn.Sequential(nn.Embedding(200, 32), *(Mixer() for _ in range(4)), nn.Linear(32, 8))


def perceptrons() -> nn.Module:
    return nn.Sequential(nn.Flatten(), *(nn.Linear(192, 192) for _ in range(6)))


class Siamese(nn.Module):
    """Two towers, compared by a third module."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = perceptrons(), perceptrons()
        self.compare = nn.Bilinear(192, 192, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.compare(self.left(x), self.right(x)))


@dataclass(frozen=True)
class Net:
    """A net in evaluation mode, with an input."""

    module: nn.Module
    example_inputs: tuple[torch.Tensor, ...]


def _image() -> torch.Tensor:
    return torch.randn(1, 3, 8, 8)


def _words() -> torch.Tensor:
    return torch.randint(0, 200, (1, 16))


NETS: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]] = {
    "residual": (residual, _image), "depthwise": (depthwise, _image),
    "convolutions": (plain_convolutions, _image), "u-net": (UNet, _image),
    "transformer": (Encoder, _words), "bert": (bert, _words),
    "mixer": (mixer, _words), "perceptrons": (perceptrons, _image),
    "siamese": (Siamese, _image), "wide-transformer": (lambda: Encoder(64), _words),
}  # fmt: skip


@cache
def net_of(name: str) -> Net:
    torch.manual_seed(4)
    make, example = NETS[name]
    return Net(make().eval(), (example(),))


@cache
def problem_of_net(name: str) -> Problem:
    """The net on two accelerators and a processor, with costs by size of weights."""
    net = net_of(name)
    model = pw.read(net.module, net.example_inputs, runtime="torch")
    units = light_ops_joined(model.graph)
    devices = (Device("cuda:0", "gpu"), Device("cpu"))
    links = (Link("cuda:0", "cpu", 1e-6, 1e9), Link("cpu", "cuda:0", 1e-6, 1e9))
    of_ops = 1e-6 + 1e-9 * model.graph.op_weight_bytes
    own = np.bincount(units.group_of, of_ops, units.n_groups)
    seconds = frozen_floats(np.stack([own, 3.0 * own], axis=1))
    cluster = Cluster(devices, links, host="cpu")
    return Problem(model.graph, cluster, CostTable(seconds, "measured"), units, source=model.source)

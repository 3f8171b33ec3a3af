"""Nets that are in no zoo, as a user of PyTorch writes them: residual, perceptron, decoder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

PREFIX = "own:"
WORDS = 512


class Residual(nn.Module):
    """Twelve convolutions of width 32 in residual blocks, and ten scores."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 32, 3, padding=1), nn.Linear(32, 10)
        self.convs = nn.ModuleList(nn.Conv2d(32, 32, 3, padding=1) for _ in range(12))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.stem(x))
        for conv in self.convs:
            x = x + torch.relu(conv(x))
        scores: torch.Tensor = self.head(x.mean((2, 3)))
        return scores


class Perceptron(nn.Module):
    """Eight layers of width 512, and ten scores."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(512, 512) for _ in range(8))
        self.head = nn.Linear(512, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        scores: torch.Tensor = self.head(x)
        return scores


class Gpt(nn.Module):
    """Four layers of width 128, and scores of all words at each place."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, 128), nn.Linear(128, WORDS)
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    "before": nn.LayerNorm(128), "inner": nn.Linear(128, 384),
                    "outer": nn.Linear(128, 128), "between": nn.LayerNorm(128),
                    "up": nn.Linear(128, 512), "down": nn.Linear(512, 128),
                }
            )
            for _ in range(4)
        )  # fmt: skip

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.words(words)
        layer: Any  # a dictionary of modules, which typed lists do not promise
        for layer in self.layers:
            parts = layer["inner"](layer["before"](x)).chunk(3, -1)
            q, k, v = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in parts)
            mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + layer["outer"](mixed.transpose(1, 2).flatten(2))
            x = x + layer["down"](torch.relu(layer["up"](layer["between"](x))))
        scores: torch.Tensor = self.head(x)
        return scores


class WithLoss(nn.Module):
    """The cross entropy of a net's scores."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.net(x).flatten(0, -2), labels.flatten())


def _image(samples: int) -> torch.Tensor:
    return torch.randn(samples, 3, 16, 16)


def _words(samples: int) -> torch.Tensor:
    return torch.randint(0, WORDS, (samples, 64))


NETS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], torch.Tensor]]] = {
    "residual": (Residual, _image),
    "perceptron": (Perceptron, lambda samples: torch.randn(samples, 512)),
    "gpt": (Gpt, _words),
}


def own_net(name: str) -> tuple[nn.Module, torch.Tensor]:
    """A net with seeded weights, in evaluation mode, and an example input of eight samples.

    >>> own_net("own:perceptron")[1].shape
    torch.Size([8, 512])
    """
    torch.manual_seed(1)
    make, example = NETS[name.removeprefix(PREFIX)]
    return make().eval(), example(8)

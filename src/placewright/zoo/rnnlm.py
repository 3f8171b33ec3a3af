"""RNNLM: the unrolled LSTM language model of Mirhoseini et al. 2017 (Jozefowicz et al. 2016)."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from placewright.zoo.lstm import LstmCell, SeparateGatesCell
from placewright.zoo.model import ZooModel, example_generator, seeded


class _LanguageModel(nn.Module):
    def __init__(self, hidden: int, layers: int, vocabulary: int, separate_gates: bool) -> None:
        super().__init__()
        cell = SeparateGatesCell if separate_gates else LstmCell
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.cells = nn.ModuleList(cell(hidden, hidden) for _ in range(layers))
        self.head = nn.Linear(hidden, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, steps) -> (batch, steps, vocabulary)."""
        embedded = self.embedding(tokens)  # (batch, steps, hidden)
        start = LstmCell.start
        states = [start(cast("LstmCell", cell), embedded[:, 0]) for cell in self.cells]
        outputs = []
        for step in range(tokens.shape[1]):
            x = embedded[:, step]
            for layer, cell in enumerate(self.cells):
                states[layer] = cell(x, states[layer])
                x = states[layer][0]
            outputs.append(x)
        logits: Tensor = self.head(torch.stack(outputs, 1))
        return logits


def rnnlm(
    hidden: int = 1024,
    layers: int = 2,
    steps: int = 20,
    batch: int = 8,
    vocabulary: int = 10_000,
    *,
    separate_gates: bool = False,
) -> ZooModel:
    """Two LSTM layers over `steps` tokens; ``variant="wide"`` has layers of 2,048.

    ``variant="enlarged"`` has a single layer of 2,048 with one matrix per gate, 134 MB that may lie
    on several devices: with less memory than that on each, no device holds the layer.
    """
    tokens = torch.randint(vocabulary, (batch, steps), generator=example_generator())
    return ZooModel(
        "rnnlm",
        seeded(lambda: _LanguageModel(hidden, layers, vocabulary, separate_gates)),
        (tokens,),
        ("tokens",),
        f"RNNLM, {layers} LSTM layers of {hidden}, {steps} steps unrolled, batch {batch}",
    )

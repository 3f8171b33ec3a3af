"""GNMT: Google's attention seq2seq LSTM (Wu et al. 2016, arXiv 1609.08144), unrolled."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from placewright.zoo.lstm import LstmCell
from placewright.zoo.model import ZooModel, example_generator, seeded


class _Encoder(nn.Module):
    """A bidirectional layer, then unidirectional ones; residuals from the third on (section 3)."""

    def __init__(self, hidden: int, layers: int) -> None:
        super().__init__()
        self.forwards = LstmCell(hidden, hidden)
        self.backwards = LstmCell(hidden, hidden)
        widths = [2 * hidden] + [hidden] * (layers - 2)
        self.upper = nn.ModuleList(LstmCell(width, hidden) for width in widths)

    def forward(self, embedded: list[Tensor]) -> list[Tensor]:
        """One (batch, hidden) per step -> one (batch, hidden) per step."""
        ahead = _unrolled(self.forwards, embedded)
        back = _unrolled(self.backwards, embedded[::-1])[::-1]
        xs = [torch.cat(pair, 1) for pair in zip(ahead, back, strict=True)]
        for number, cell in enumerate(self.upper):
            ys = _unrolled(cell, xs)
            xs = ys if number == 0 else [x + y for x, y in zip(xs, ys, strict=True)]
        return xs


class _Attention(nn.Module):
    """Additive attention (Bahdanau et al. 2015) over the encoder's outputs."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.of_query = nn.Linear(hidden, hidden, bias=False)
        self.of_memory = nn.Linear(hidden, hidden, bias=False)
        self.score = nn.Linear(hidden, 1, bias=False)

    def forward(self, query: Tensor, memory: Tensor, keys: Tensor) -> Tensor:
        """Query (batch, hidden), memory and keys (batch, steps, hidden) -> (batch, hidden)."""
        scores = self.score(torch.tanh(self.of_query(query)[:, None] + keys))  # (batch, steps, 1)
        return (torch.softmax(scores, 1) * memory).sum(1)


class _Decoder(nn.Module):
    """The bottom layer's output queries the attention; its context goes to every layer."""

    def __init__(self, hidden: int, layers: int) -> None:
        super().__init__()
        self.attention = _Attention(hidden)
        self.cells = nn.ModuleList(LstmCell(2 * hidden, hidden) for _ in range(layers))

    def forward(self, embedded: list[Tensor], memory: Tensor) -> list[Tensor]:
        """One (batch, hidden) per target step -> one (batch, hidden) per target step."""
        keys = self.attention.of_memory(memory)  # (batch, steps, hidden), once for all steps
        start = LstmCell.start
        states = [start(cast("LstmCell", cell), embedded[0]) for cell in self.cells]
        context = torch.zeros_like(embedded[0])
        outputs = []
        for x in embedded:
            for layer, cell in enumerate(self.cells):
                states[layer] = cell(torch.cat([x, context], 1), states[layer])
                y = states[layer][0]
                if layer == 0:
                    context = self.attention(y, memory, keys)
                x = x + y if layer >= 2 else y
            outputs.append(x)
        return outputs


class _Gnmt(nn.Module):
    def __init__(self, hidden: int, layers: int, vocabulary: int) -> None:
        super().__init__()
        self.source_embedding = nn.Embedding(vocabulary, hidden)
        self.target_embedding = nn.Embedding(vocabulary, hidden)
        self.encoder = _Encoder(hidden, layers)
        self.decoder = _Decoder(hidden, layers)
        self.head = nn.Linear(hidden, vocabulary)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Tokens (batch, steps) each -> (batch, steps, vocabulary); teacher forcing."""
        memory = torch.stack(self.encoder(_steps(self.source_embedding(source))), 1)
        outputs = self.decoder(_steps(self.target_embedding(target)), memory)
        logits: Tensor = self.head(torch.stack(outputs, 1))
        return logits


def _steps(embedded: Tensor) -> list[Tensor]:
    """(batch, steps, hidden) -> one (batch, hidden) per step."""
    return [embedded[:, step] for step in range(embedded.shape[1])]


def _unrolled(cell: nn.Module, xs: list[Tensor]) -> list[Tensor]:
    assert isinstance(cell, LstmCell)
    state, outputs = cell.start(xs[0]), []
    for x in xs:
        state = cell(x, state)
        outputs.append(state[0])
    return outputs


def gnmt(
    layers: int = 4, hidden: int = 512, steps: int = 20, batch: int = 8, vocabulary: int = 16_000
) -> ZooModel:
    """`layers` encoder layers (the first bidirectional), as many decoder layers."""
    generator = example_generator()
    source = torch.randint(vocabulary, (batch, steps), generator=generator)
    target = torch.randint(vocabulary, (batch, steps), generator=generator)
    return ZooModel(
        "gnmt",
        seeded(lambda: _Gnmt(hidden, layers, vocabulary)),
        (source, target),
        ("source", "target"),
        f"GNMT (Wu et al. 2016), {layers} + {layers} LSTM layers of {hidden}, {steps} steps "
        f"unrolled, batch {batch}",
    )

"""Unrolled LSTM models: RNNLM and GNMT, from cells of plain ops.

Each step of each layer is a module call of its own, so that a placer can place it.

- RNNLM: the language model of Mirhoseini et al. 2017, after Jozefowicz et al. 2016.
- GNMT: the attention model for translation of Wu et al. 2016, arXiv 1609.08144.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from placewright.zoo.model import ZooModel, example_generator, seeded

State = tuple[Tensor, Tensor]


class LstmCell(nn.Module):
    """One step of an LSTM layer; both matrices are one, as in TensorFlow's BasicLSTMCell."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.gates = nn.Linear(inputs + hidden, 4 * hidden)
        nn.init.normal_(self.gates.weight, std=(inputs + hidden) ** -0.5)
        nn.init.zeros_(self.gates.bias)

    def forward(self, x: Tensor, state: State) -> State:
        """x (batch, inputs), state (h, c) each (batch, hidden) -> the next state."""
        h, c = state
        into, forget, cell, out = self.gates(torch.cat([x, h], 1)).chunk(4, 1)
        c = torch.sigmoid(forget + 1.0) * c + torch.sigmoid(into) * torch.tanh(cell)
        return torch.sigmoid(out) * torch.tanh(c), c

    def start(self, x: Tensor) -> State:
        """Zero state for the batch of x."""
        zeros = torch.zeros(x.shape[0], self.hidden, dtype=x.dtype, device=x.device)
        return zeros, zeros


class SeparateGatesCell(nn.Module):
    """The same step with one matrix per gate, so that a layer can lie on several devices."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.gates = nn.ModuleList(nn.Linear(inputs + hidden, hidden) for _ in range(4))
        for gate in self.gates:
            nn.init.normal_(gate.get_parameter("weight"), std=(inputs + hidden) ** -0.5)
            nn.init.zeros_(gate.get_parameter("bias"))

    def forward(self, x: Tensor, state: State) -> State:
        """x (batch, inputs), state (h, c) each (batch, hidden) -> the next state."""
        h, c = state
        both = torch.cat([x, h], 1)
        into, forget, cell, out = (gate(both) for gate in self.gates)
        c = torch.sigmoid(forget + 1.0) * c + torch.sigmoid(into) * torch.tanh(cell)
        return torch.sigmoid(out) * torch.tanh(c), c


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

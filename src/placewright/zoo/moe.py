"""A decoder-only transformer whose feed-forward layers are mixtures of experts.

Shazeer et al. 2017 (arXiv 1701.06538): the gate chooses the two best experts of each token and
renormalises their weights. Every expert computes every token, with weight 0 if it is not chosen:
no control flow depends on the data, so that the graph is the same for every input.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from placewright.zoo.model import ZooModel, example_generator, seeded


class _Attention(nn.Module):
    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, hidden)
        self.output = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor, causal: Tensor) -> Tensor:
        """(batch, sequence, hidden) -> the same."""
        batch, sequence, hidden = x.shape
        split = (batch, sequence, self.heads, hidden // self.heads)
        q = self.query(x).view(split).transpose(1, 2)  # (batch, heads, sequence, width)
        k = self.key(x).view(split).transpose(1, 2)
        v = self.value(x).view(split).transpose(1, 2)
        scores = torch.matmul(q, k.transpose(2, 3)) * split[3] ** -0.5 + causal
        mixed = torch.matmul(torch.softmax(scores, 3), v).transpose(1, 2)
        return self.output(mixed.reshape(batch, sequence, hidden))  # type: ignore[no-any-return]


class _Experts(nn.Module):
    def __init__(self, hidden: int, experts: int, chosen: int) -> None:
        super().__init__()
        self.chosen = chosen
        self.gate = nn.Linear(hidden, experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(hidden, 4 * hidden), nn.GELU(), nn.Linear(4 * hidden, hidden))
            for _ in range(experts)
        )

    def forward(self, x: Tensor) -> Tensor:
        """(batch, sequence, hidden) -> the same."""
        scores = torch.softmax(self.gate(x), 2)  # (batch, sequence, experts)
        least = torch.topk(scores, self.chosen, dim=2).values[..., -1:]
        chosen = torch.where(scores >= least, scores, torch.zeros_like(scores))
        weights = chosen / chosen.sum(2, keepdim=True)
        mixed = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            mixed = mixed + weights[..., number : number + 1] * expert(x)
        return mixed


class _Block(nn.Module):
    def __init__(self, hidden: int, heads: int, experts: int, chosen: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(hidden)
        self.attention = _Attention(hidden, heads)
        self.experts_norm = nn.LayerNorm(hidden)
        self.experts = _Experts(hidden, experts, chosen)

    def forward(self, x: Tensor, causal: Tensor) -> Tensor:
        """(batch, sequence, hidden) -> the same."""
        x = x + self.attention(self.attention_norm(x), causal)
        return x + self.experts(self.experts_norm(x))  # type: ignore[no-any-return]


class _MixtureOfExperts(nn.Module):
    def __init__(
        self, layers: int, hidden: int, experts: int, sequence: int, vocabulary: int
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.position = nn.Parameter(torch.randn(sequence, hidden) * 0.02)
        self.causal: Tensor
        self.register_buffer("causal", torch.full((sequence, sequence), -1e9).triu(1))
        self.blocks = nn.ModuleList(
            _Block(hidden, max(1, hidden // 64), experts, chosen=2) for _ in range(layers)
        )
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, sequence) -> (batch, sequence, vocabulary)."""
        x = self.embedding(tokens) + self.position
        for block in self.blocks:
            x = block(x, self.causal)
        return functional.linear(self.norm(x), self.head.weight)


def moe(
    layers: int = 4,
    hidden: int = 512,
    experts: int = 8,
    sequence: int = 64,
    vocabulary: int = 16_000,
) -> ZooModel:
    """`layers` blocks with `experts` experts each, two of them per token."""
    tokens = torch.randint(vocabulary, (1, sequence), generator=example_generator())
    return ZooModel(
        "moe",
        seeded(lambda: _MixtureOfExperts(layers, hidden, experts, sequence, vocabulary)),
        (tokens,),
        ("tokens",),
        f"transformer, {layers} layers of {experts} experts, top 2, sequence {sequence}, batch 1",
    )

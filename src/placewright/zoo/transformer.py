"""BERT-base (Devlin et al. 2019) and GPT-2 (Radford et al. 2019), and a mixture of experts.

The first two are built by `transformers`. The third is a decoder whose feed-forward layers are
mixtures of experts (Shazeer et al. 2017, arXiv 1701.06538): the gate chooses the two best experts
of each token and renormalises their weights. Every expert computes every token, with weight 0 if it
is not chosen: no control flow depends on the data, so that the graph is the same for every input.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel

from placewright.zoo.model import ZooModel, example_generator, seeded

_MASKED = torch.finfo(torch.float32).min
# Attention as matrix products and softmax, so that a placer can place each of its ops.
_WRITTEN_OUT: dict[str, Any] = {"attn_implementation": "eager"}


class _Bert(nn.Module):
    """Encoder and pooler; the additive mask is computed here, as in the original code."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.bert = BertModel(config)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Three (batch, sequence) -> (batch, sequence, hidden) and (batch, hidden)."""
        added = (1.0 - attention_mask[:, None, None, :].to(torch.float32)) * _MASKED
        hidden, pooled = self.bert(
            input_ids=input_ids,
            attention_mask=added,
            token_type_ids=token_type_ids,
            return_dict=False,
        )[:2]
        return hidden, pooled


class _Gpt2(nn.Module):
    """Decoder with language-model head, whole sequence at once, no cache of keys and values."""

    def __init__(self, config: GPT2Config, sequence: int) -> None:
        super().__init__()
        self.gpt2 = GPT2LMHeadModel(config)
        causal = torch.full((sequence, sequence), _MASKED).triu(1)
        self.causal: Tensor
        self.register_buffer("causal", causal[None, None])  # (1, 1, sequence, sequence)

    def forward(self, input_ids: Tensor) -> Tensor:
        """(batch, sequence) -> (batch, sequence, vocabulary)."""
        outputs = self.gpt2(
            input_ids=input_ids, attention_mask=self.causal, use_cache=False, return_dict=False
        )
        logits: Tensor = outputs[0]
        return logits


def bert_base(layers: int = 12, hidden: int = 768, sequence: int = 128) -> ZooModel:
    """BERT-base: embeddings, encoder and pooler."""
    config = BertConfig(
        num_hidden_layers=layers,
        hidden_size=hidden,
        num_attention_heads=max(1, hidden // 64),
        intermediate_size=4 * hidden,
        **_WRITTEN_OUT,
    )
    ids = torch.randint(config.vocab_size, (1, sequence), generator=example_generator())
    mask, types = torch.ones_like(ids), torch.zeros_like(ids)
    return ZooModel(
        "bert_base",
        seeded(lambda: _Bert(config)),
        (ids, mask, types),
        ("input_ids", "attention_mask", "token_type_ids"),
        f"BERT-base (Devlin et al. 2019), {layers} layers, sequence {sequence}, batch 1",
    )


def gpt2(layers: int = 12, hidden: int = 768, sequence: int = 64) -> ZooModel:
    """GPT-2 small; token embedding and output head share one weight."""
    config = GPT2Config(
        n_layer=layers,
        n_embd=hidden,
        n_head=max(1, hidden // 64),
        use_cache=False,
        **_WRITTEN_OUT,
    )
    ids = torch.randint(config.vocab_size, (1, sequence), generator=example_generator())
    return ZooModel(
        "gpt2",
        seeded(lambda: _Gpt2(config, sequence)),
        (ids,),
        ("input_ids",),
        f"GPT-2 (Radford et al. 2019), {layers} layers, sequence {sequence}, batch 1, no cache",
    )


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

"""BERT-base (Devlin et al. 2019) and GPT-2 (Radford et al. 2019), built by `transformers`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
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

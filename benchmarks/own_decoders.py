"""Decoders with a cache that a plan keeps: a module as users write it, and Llama, unlearned."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from placewright.frameworks.torch.decoders import STATE, cached_decoder

Step = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Sizes:
    """Sizes of a decoder.

    Attributes:
        layers: number of them.
        width: of the hidden state.
        words: size of the vocabulary.
        context: largest number of tokens.
        heads: of attention.
    """

    layers: int = 4
    width: int = 64
    words: int = 101
    context: int = 256
    heads: int = 4


class Block(nn.Module):
    """Attention over the cache, and a feed-forward network."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes, width = sizes, sizes.width
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inner, self.outer = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(
        self, x: torch.Tensor, key: torch.Tensor, value: torch.Tensor, position: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        heads = (3, self.sizes.heads, -1)
        parts = self.inner(self.before(x)).unflatten(-1, heads).permute(2, 0, 3, 1, 4)
        key = key.index_copy(2, position, parts[1])
        value = value.index_copy(2, position, parts[2])
        seen = torch.arange(self.sizes.context)[None, :] <= position[:, None]
        mixed = nn.functional.scaled_dot_product_attention(parts[0], key, value, attn_mask=seen)
        x = x + self.outer(mixed.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.between(x)))), key, value


class Decoder(nn.Module):
    """One token and its position in, scores of the next one out; caches in and out."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.words = nn.Embedding(sizes.words, sizes.width)
        self.places = nn.Embedding(sizes.context, sizes.width)
        self.layers = nn.ModuleList(Block(sizes) for _ in range(sizes.layers))
        self.head = nn.Linear(sizes.width, sizes.words)

    def forward(
        self,
        token: torch.Tensor,
        position: torch.Tensor,
        keys: list[torch.Tensor],
        values: list[torch.Tensor],
    ) -> dict[str, Any]:
        x = self.words(token) + self.places(position)
        new_keys, new_values = [], []
        for layer, key, value in zip(self.layers, keys, values, strict=True):
            x, key, value = layer(x, key, value, position)
            new_keys.append(key)
            new_values.append(value)
        return {"scores": self.head(x), "new_keys": new_keys, "new_values": new_values}


@dataclass(frozen=True)
class Decoding:
    """A decoder with its example inputs and state, and a new cache of the unsplit model."""

    module: nn.Module
    example_inputs: tuple[Any, ...]
    state: Mapping[str, str]
    plain: Callable[[], Step]


def own_decoder(sizes: Sizes = Sizes()) -> Decoding:
    """The module above; the unsplit model is given the caches that it returned."""
    torch.manual_seed(1)
    module = Decoder(sizes).eval()

    def caches() -> list[list[torch.Tensor]]:
        shape = (1, sizes.heads, sizes.context, sizes.width // sizes.heads)
        return [[torch.zeros(shape) for _ in range(sizes.layers)] for _ in range(2)]

    def plain() -> Step:
        held = caches()

        def step(token: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                made = module(token, position, *held)
            held[:] = [made["new_keys"], made["new_values"]]
            return torch.as_tensor(made["scores"])

        return step

    token, position = torch.zeros(1, 1, dtype=torch.long), torch.zeros(1, dtype=torch.long)
    return Decoding(module, (token, position, *caches()), STATE, plain)


def llama_decoder(sizes: Sizes = Sizes()) -> Decoding:
    """Llama with random weights; the unsplit model has a cache of its own that grows."""
    from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(2)
    config = LlamaConfig(
        vocab_size=sizes.words, hidden_size=sizes.width, intermediate_size=2 * sizes.width,
        num_hidden_layers=sizes.layers, num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.heads // 2, max_position_embeddings=sizes.context,
        initializer_range=0.2,
    )  # fmt: skip
    model: Any = LlamaForCausalLM(config)
    model.eval()

    def plain() -> Step:
        cache = DynamicCache()

        def step(token: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                made = model(input_ids=token, past_key_values=cache, use_cache=True)
            return torch.as_tensor(made.logits)

        return step

    return Decoding(*cached_decoder(model, sizes.context), plain)


DECODERS: Mapping[str, Callable[[Sizes], Decoding]] = {"own": own_decoder, "llama": llama_decoder}


def tokens_of(step: Step, count: int, prompt: Sequence[int] = (1, 2, 3)) -> list[int]:
    """Greedy decoding behind a prompt."""
    tokens = list(prompt)
    for position in range(len(prompt) + count - 1):
        scores = step(torch.tensor([[tokens[position]]]), torch.tensor([position]))
        if position + 1 == len(tokens):
            tokens.append(int(scores[0, -1].argmax()))
    return tokens

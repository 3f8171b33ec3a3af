"""Causal language models of Hugging Face as modules with a cache that stays."""

from __future__ import annotations

import inspect
import re
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from placewright.errors import InputError, optional_library
from placewright.frameworks.torch.reading.reader import export_reason

_OF_POSITIONS = re.compile(r"(^|\.)(wpe|embed_positions|position_embeddings?)$")
STATE = {"new_keys_*": "keys_*", "new_values_*": "values_*"}


class CachedDecoder(nn.Module):
    """Scores of the next token from a token, its position, and keys and values of all layers.

    The caches have the size of the whole context. Positions behind the present one are masked. With
    ``reach``, the positions 0, 1, ... in a row, attention reads these of the caches and no more.

    Args:
        model: of `transformers`, with the class of ``AutoModelForCausalLM``.
        context: largest number of tokens.
    """

    def __init__(self, model: Any, context: int) -> None:
        super().__init__()
        self.model = model
        self.context = context
        # Other attention than PyTorch's own adds the mask to its scores.
        self._adds_mask = getattr(model.config, "_attn_implementation", "sdpa") != "sdpa"

    def forward(
        self,
        token: torch.Tensor,
        position: torch.Tensor,
        keys: list[torch.Tensor],
        values: list[torch.Tensor],
        reach: torch.Tensor | None = None,
    ) -> dict[str, Any]:
        """One call of the model; returns ``scores``, ``new_keys`` and ``new_values``."""
        read = None if reach is None else reach.shape[0]
        cache = _Given(self.context, keys, values, position, read)
        places = torch.arange(self.context) if reach is None else reach
        seen = places[None, None, None, :] <= position[None, None, :, None]
        mask = seen
        if self._adds_mask:
            least = torch.finfo(self.model.dtype).min
            mask = torch.where(seen, 0.0, least).to(self.model.dtype)
        scores = self.model(
            input_ids=token,
            position_ids=position[None, :],
            attention_mask=mask,
            past_key_values=cache,
            use_cache=True,
        ).logits
        return {"scores": scores, "new_keys": cache.new_keys, "new_values": cache.new_values}


class _Given:
    """Key/value cache with the interface that attention layers of `transformers` expect."""

    is_compileable = True

    def __init__(
        self,
        context: int,
        keys: list[torch.Tensor],
        values: list[torch.Tensor],
        position: torch.Tensor,
        read: int | None,
    ) -> None:
        self.context, self.position, self.read = context, position, read
        self.new_keys, self.new_values = list(keys), list(values)

    def update(
        self, key: torch.Tensor, value: torch.Tensor, layer: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write keys and values of the new tokens; return those of the positions to read."""
        for held, new in ((self.new_keys, key), (self.new_values, value)):
            held[layer] = held[layer].index_copy(2, self.position, new)
        both = self.new_keys[layer], self.new_values[layer]
        if self.read is None:
            return both
        key, value = (held.narrow(2, 0, self.read) for held in both)
        return key, value

    def get_seq_length(self, layer: int = 0) -> int:
        """Length of the cache; positions and mask come from the caller."""
        return 0

    def get_mask_sizes(self, *_: Any) -> tuple[int, int]:
        """Length and offset of what is read of the cache."""
        return self.read or self.context, 0


def cached_decoder(
    model: Any, context: int, tokens: int = 1, read: int | None = None
) -> tuple[CachedDecoder, tuple[Any, ...], dict[str, str]]:
    """Make a module, example inputs and state of a causal language model.

    ``pw.place(module, example_inputs, state=state)`` places one call, which takes ``token`` of
    shape (1, tokens) and ``position`` of shape (tokens,).

    Args:
        model: of `transformers`, in evaluation mode; keys and values of all layers have one shape.
        context: largest number of tokens, prompt included.
        read: positions that attention reads in this call. The module then has the input ``reach``,
            ``torch.arange(read)``, and ``calls`` with other shapes of it read less.

    Raises:
        InputError: ``tokens`` or ``read`` is no part of the context, or the model has no key and
            value heads in its configuration, learned positions for less than the context, positions
            that it counts itself, or layers whose window is shorter than the context, or its
            attention takes no such cache or mask.
        MissingExtraError: transformers is not installed.
    """
    optional_library("transformers", "zoo", "a cache of a language model")
    _require_language_model(model, tokens=tokens, read=read, context=context)
    config = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or getattr(
        config, "num_attention_heads", None
    )
    reads = context if read is None else read
    if heads is None or not 1 <= tokens <= reads <= context:
        raise InputError(
            f"{type(model).__name__} needs num_attention_heads in its configuration, and "
            f"1 <= tokens <= read <= context; got tokens {tokens}, read {reads}, context {context}"
        )
    if 0 < (window := _window(config)) < context:
        raise InputError(
            f"layers of {type(model).__name__} look back {window} tokens, and the cache has no "
            f"masks for windows; give a context of at most {window}, got {context}"
        )
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    caches = [
        [
            torch.zeros(1, heads, context, width, dtype=model.dtype)
            for _ in range(config.num_hidden_layers)
        ]
        for _ in range(2)
    ]
    example = (torch.zeros(1, tokens, dtype=torch.long), torch.arange(tokens), *caches)
    if read is not None:
        example = (*example, torch.arange(read))
    decoder = CachedDecoder(model, context)
    _require_callable(decoder, example)
    return decoder, example, dict(STATE)


def _require_language_model(model: Any, **numbers: Any) -> None:
    """Refuse what is no model of `transformers`, and numbers that are none or out of its reach."""
    for name, number in numbers.items():
        is_left_out = name == "read" and number is None
        is_whole = hasattr(number, "__index__") and not isinstance(number, bool)
        if not (is_left_out or is_whole):
            raise InputError(f"argument `{name}` must be a whole number, got {number!r:.40}")
    if not hasattr(getattr(model, "config", None), "get_text_config"):
        raise InputError(f"{type(model).__name__} is no model of transformers: it has no config")
    _require_position_ids(model)
    context = numbers["context"]
    most = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    for name, module in model.named_modules():
        if _OF_POSITIONS.search(name) and isinstance(module, torch.nn.Embedding):
            known = module.num_embeddings - getattr(module, "offset", 0)
            if known == most and known < context:  # other models have positions of pictures
                raise InputError(
                    f"'{name}' of {type(model).__name__} has learned {known} positions; give a "
                    f"context of at most so many, got {context}"
                )


def _require_position_ids(model: Any) -> None:
    """Refuse a model that counts its positions from the length of the cache, which never grows."""
    if _takes_position_ids(model):
        return
    for name, _ in model.named_modules():
        owner = model.get_submodule(name.rpartition(".")[0])
        has_cache = "past_key_values" in inspect.signature(owner.forward).parameters
        if _OF_POSITIONS.search(name) and has_cache and not _takes_position_ids(owner):
            raise InputError(
                f"{type(model).__name__} takes no position_ids, so that '{name}' would give every "
                "token position 0; give a model whose forward has the argument position_ids"
            )


def _takes_position_ids(module: Any) -> bool:
    return "position_ids" in inspect.signature(module.forward).parameters


def _require_callable(decoder: CachedDecoder, example: tuple[Any, ...]) -> None:
    """Call the decoder on tensors without values, since models differ in what they expect.

    Raises:
        InputError: the call fails.
    """
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        try:
            decoder(*example)
        except Exception as error:  # the model runs its own code
            experts = getattr(decoder.model.config, "_experts_implementation", None)
            advice = "; set experts_implementation='batched_mm' in its configuration"
            reason = export_reason(error).rstrip(".") + (advice if experts == "grouped_mm" else "")
            raise InputError(
                f"{type(decoder.model).__name__} does not run with keys and values of shape "
                f"{list(example[2][0].shape)} and a mask over positions: {reason}"
            ) from error


def _window(config: Any) -> int:
    """Tokens that some layers look back; 0 if all look at the whole context."""
    kinds = getattr(config, "layer_types", None) or getattr(config, "attention_layers", None)
    if kinds is not None and not {"sliding_attention", "chunked_attention", "local"} & set(kinds):
        return 0
    keys = ["sliding_window", "attention_chunk_size"]
    # Of GPT-Neo; in other models this is a window in pictures.
    keys += ["window_size"] if "local" in (kinds or ()) else []
    sizes = (getattr(config, key, None) for key in keys)
    return next((int(size) for size in sizes if size), 0)

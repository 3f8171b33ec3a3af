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
        self.layers: list[int] = []  # those with a cache, in the order of ``keys`` and ``values``
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
        cache = _Given(self.context, None if reach is None else reach.shape[0])
        cache.position = position
        cache.caches = dict(zip(self.layers, zip(keys, values, strict=True), strict=True))
        scores = self.scores(token, position, reach, cache)
        new_keys, new_values = zip(*(cache.caches[layer] for layer in self.layers), strict=True)
        return {"scores": scores, "new_keys": list(new_keys), "new_values": list(new_values)}

    def scores(
        self,
        token: torch.Tensor,
        position: torch.Tensor,
        reach: torch.Tensor | None,
        cache: _Cache,
    ) -> Any:
        """Call the model with a cache, whose places behind the position are masked."""
        places = torch.arange(self.context) if reach is None else reach
        seen = places[None, None, None, :] <= position[None, None, :, None]
        mask = seen
        if self._adds_mask:
            least = torch.finfo(self.model.dtype).min
            mask = torch.where(seen, 0.0, least).to(self.model.dtype)
        return self.model(
            input_ids=token,
            position_ids=position[None, :],
            attention_mask=mask,
            past_key_values=cache,
            use_cache=True,
        ).logits


class _Cache:
    """Keys and values by layer, with the interface that attention of `transformers` expects."""

    is_compileable = True

    def __init__(self, context: int, read: int | None) -> None:
        self.context, self.read = context, read
        self.caches: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def get_seq_length(self, layer: int = 0) -> int:
        """Length of the cache; positions and mask come from the caller."""
        return 0

    def get_mask_sizes(self, *_: Any) -> tuple[int, int]:
        """Length and offset of what is read of the cache."""
        return self.read or self.context, 0


class _Given(_Cache):
    """A cache that holds given keys and values, and writes those of new tokens at a position."""

    position: torch.Tensor

    def update(
        self, key: torch.Tensor, value: torch.Tensor, layer: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write keys and values of the new tokens; return those of the positions to read."""
        keys, values = self.caches[layer]
        keys = keys.index_copy(2, self.position, key)
        values = values.index_copy(2, self.position, value)
        self.caches[layer] = (keys, values)
        if self.read is None:
            return keys, values
        return keys.narrow(2, 0, self.read), values.narrow(2, 0, self.read)


class _Empty(_Cache):
    """A cache that keeps the first keys and values of each layer, and returns zeros for them."""

    def update(
        self, key: torch.Tensor, value: torch.Tensor, layer: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keep both; the zeros have as many positions as are read."""
        self.caches[layer] = (key, value)
        read = self.read or self.context
        return _zeros_like(key, read), _zeros_like(value, read)


def _zeros_like(tensor: torch.Tensor, positions: int) -> torch.Tensor:
    batch, heads, _, width = tensor.shape
    return torch.zeros(batch, heads, positions, width, dtype=tensor.dtype)


def cached_decoder(
    model: Any, context: int, tokens: int = 1, read: int | None = None
) -> tuple[CachedDecoder, tuple[Any, ...], dict[str, str]]:
    """Make a module, example inputs and state of a causal language model.

    ``pw.place(module, example_inputs, state=state)`` places one call, which takes ``token`` of
    shape (1, tokens) and ``position`` of shape (tokens,).

    Args:
        model: of `transformers`, in evaluation mode.
        context: largest number of tokens, prompt included.
        read: positions that attention reads in this call. The module then has the input ``reach``,
            ``torch.arange(read)``, and ``calls`` with other shapes of it read less.

    Raises:
        InputError: ``tokens`` or ``read`` is no part of the context, or the model has learned
            positions for less than the context, positions that it counts itself, or layers whose
            window is shorter than the context, or its attention takes no such cache or mask.
        MissingExtraError: transformers is not installed.
    """
    optional_library("transformers", "zoo", "a cache of a language model")
    _require_language_model(model, tokens=tokens, read=read, context=context)
    config = model.config.get_text_config()
    reads = context if read is None else read
    if not 1 <= tokens <= reads <= context:
        raise InputError(
            f"a cache needs 1 <= tokens <= read <= context; got tokens {tokens}, read {reads}, "
            f"context {context}"
        )
    if 0 < (window := _window(config)) < context:
        raise InputError(
            f"layers of {type(model).__name__} look back {window} tokens, and the cache has no "
            f"masks for windows; give a context of at most {window}, got {context}"
        )
    decoder = CachedDecoder(model, context)
    inputs = (torch.zeros(1, tokens, dtype=torch.long), torch.arange(tokens))
    reach = () if read is None else (torch.arange(read),)
    caches = _caches_of_layers(decoder, *inputs, *reach)
    decoder.layers = sorted(caches)
    keys, values = ([caches[layer][which] for layer in decoder.layers] for which in range(2))
    return decoder, (*inputs, keys, values, *reach), dict(STATE)


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


def _caches_of_layers(
    decoder: CachedDecoder,
    token: torch.Tensor,
    position: torch.Tensor,
    reach: torch.Tensor | None = None,
) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
    """Make empty keys and values by layer, in the shapes that attention gives in one call.

    The call computes no values: configurations name heads and their widths in many ways.

    Raises:
        InputError: the call fails, or no layer keeps keys and values.
    """
    cache = _Empty(decoder.context, None if reach is None else reach.shape[0])
    name = type(decoder.model).__name__
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        try:
            decoder.scores(token, position, reach, cache)
        except Exception as error:  # the model runs its own code
            experts = getattr(decoder.model.config, "_experts_implementation", None)
            advice = "; set experts_implementation='batched_mm' in its configuration"
            reason = export_reason(error).rstrip(".") + (advice if experts == "grouped_mm" else "")
            raise InputError(
                f"{name} does not run with keys and values of {decoder.context} positions and a "
                f"mask over them: {reason}"
            ) from error
    if not cache.caches:
        raise InputError(f"{name} keeps no keys and values, so that it needs no cache of them")
    return {
        layer: (_zeros_like(key, decoder.context), _zeros_like(value, decoder.context))
        for layer, (key, value) in cache.caches.items()
    }


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

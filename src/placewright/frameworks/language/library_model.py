"""Builds a decoder with `transformers` on the meta device, where tensors have shapes and no data.

Parameters are those that the library makes, and caches those that its own forward pass fills.
Nothing is downloaded, and no code runs but the library's.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from placewright.errors import MissingExtraError, UnknownNameError
from placewright.frameworks.language.config_file import ConfigFile
from placewright.frameworks.language.modules import Cache

_TOKENS = 2  # of the pass that fills the caches
_STATE_BYTES = 4  # of a number of a recurrent state, which engines keep in f32
_EXPERTS_USED = ("num_experts_per_tok", "moe_topk", "moe_k", "top_k_experts")
_CONTEXT = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len")


@dataclass(frozen=True)
class LibraryModel:
    """Facts of a model, taken from the library."""

    model_type: str  # of the decoder itself, which may be a part of the file's model
    shapes: Mapping[str, tuple[int, ...]]  # of parameters, by name; a tied one is there once
    transposed: frozenset[str]  # names of matrices that are stored with inputs before outputs
    caches: tuple[Cache, ...]  # of each layer
    sizes: Mapping[str, int]  # fields of the configuration that are whole numbers
    experts_used: int  # for a token; 0 without experts
    trained_context: int  # tokens; 0 if unknown
    state: tuple[str, ...]  # paths of parameters and buffers, a tied one under each of its names


def built(file: ConfigFile, known: tuple[str, ...]) -> LibraryModel:
    """Build the model of a configuration.

    Args:
        known: types of models that can be read.

    Raises:
        UnknownNameError: the type of the model is not among them.
        FileFormatError: the library builds no decoder of it.
        MissingExtraError: `transformers` is not installed.
    """
    try:
        import transformers  # noqa: F401
    except ImportError:
        raise MissingExtraError("transformers", "zoo", "reading a config.json") from None
    with _quiet_and_offline():
        config = _config(file, known)
        if config.model_type not in known:
            raise UnknownNameError("model type", config.model_type, known)
        try:
            module = _module(config)
            layers = _filled_caches(module)
            return _described(config, module, layers)
        except Exception as error:  # a library meets sizes that nobody checked
            raise file.fault(
                f"transformers builds no decoder of it: {_first_line(error)}"
            ) from None


def _config(file: ConfigFile, known: tuple[str, ...]) -> Any:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    try:
        kind = CONFIG_MAPPING[file.model_type]
    except KeyError:
        raise UnknownNameError("model type", file.model_type, known) from None
    try:
        return kind.from_dict(dict(file.fields)).get_text_config(decoder=True)
    except Exception as error:
        raise file.fault(f"transformers takes no such fields: {_first_line(error)}") from None


def _module(config: Any) -> Any:
    """The decoder with its head, its embedding tied if the configuration says so."""
    import torch
    from transformers.initialization import no_init_weights
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    kind: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    with torch.device("meta"), no_init_weights():
        module = kind._from_config(config, attn_implementation="eager")
    module.tie_weights()
    return module.eval()


def _filled_caches(module: Any) -> list[Any]:
    """The library's own cache of each layer after a pass of two tokens."""
    import torch

    if hasattr(module, "set_experts_implementation"):
        module.set_experts_implementation("batched_mm")  # the others read the router's choice
    with torch.no_grad(), torch.device("meta"):
        tokens = torch.zeros((1, _TOKENS), dtype=torch.long)
        answer = module(input_ids=tokens, use_cache=True)
    name = "past_key_values" if hasattr(answer, "past_key_values") else "cache_params"
    return list(getattr(answer, name).layers)


def _described(config: Any, module: Any, layers: list[Any]) -> LibraryModel:
    from transformers.pytorch_utils import Conv1D

    sizes = {
        key: value
        for key in (*dir(config), *config.attribute_map)
        if not key.startswith("_") and type(value := getattr(config, key, None)) is int
    }
    heads = sizes.get("num_attention_heads", 0)
    latent = sizes.get("kv_lora_rank", 0)
    missing = max(0, sizes["num_hidden_layers"] - len(layers))  # layers that read others' caches
    caches = [_cache(layer, heads, latent) for layer in layers] + [Cache()] * missing
    return LibraryModel(
        config.model_type,
        {name: tuple(each.shape) for name, each in module.named_parameters()},
        frozenset(
            f"{name}.weight" for name, each in module.named_modules() if isinstance(each, Conv1D)
        ),
        tuple(caches),
        sizes,
        _experts_used(config),
        next((sizes[key] for key in _CONTEXT if key in sizes), 0),
        tuple(dict.fromkeys([*module.state_dict(), *(name for name, _ in module.named_buffers())])),
    )


def _experts_used(config: Any) -> int:
    """Experts that a token passes in each layer; 0 if the configuration states none."""
    for value in (getattr(config, key, None) for key in _EXPERTS_USED):
        stated = set(value) if isinstance(value, list) else {value}
        if len(stated) > 1:
            shown = " and ".join(sorted(map(str, stated)))
            raise ValueError(f"its layers pass {shown} experts for a token, not one number")
        if type(used := next(iter(stated), None)) is int:
            return used
    return 0


def _cache(layer: Any, heads: int, latent: int) -> Cache:
    """Cache and state of a layer, by the shapes of the tensors that the library keeps."""
    states = [
        state
        for kind in ("conv_states", "recurrent_states")
        for state in getattr(layer, kind, {}).values()
        if state is not None
    ]
    state_bytes = _STATE_BYTES * sum(state.numel() for state in states)
    keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
    if keys is None or values is None:
        return Cache(state_bytes=state_bytes)
    elements = sum(tensor.shape[1] * tensor.shape[3] for tensor in (keys, values))
    width = keys.shape[3] + values.shape[3]
    if latent and keys.shape[3] == latent:  # the latent serves as key, with positions, and value
        width += latent
    window = getattr(layer, "sliding_window", None) or 0
    return Cache(elements, window, 2.0 * heads * width, state_bytes)


def _first_line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else f"{text[:197]}..."


@contextlib.contextmanager
def _quiet_and_offline() -> Iterator[None]:
    """Suppress messages of the library, and keep it from the network."""
    import huggingface_hub.constants as hub
    from transformers import logging

    offline, verbosity = hub.HF_HUB_OFFLINE, logging.get_verbosity()
    hub.HF_HUB_OFFLINE = True
    logging.set_verbosity(50)  # critical
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        hub.HF_HUB_OFFLINE = offline
        logging.set_verbosity(verbosity)

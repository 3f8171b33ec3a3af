"""A `config.json` as a language model, with the bytes of a format of weights.

`transformers` builds the decoder on the meta device, where tensors have shapes and no data.
Parameters are those that the library makes, and caches those that its own forward pass fills.
Nothing is downloaded, and no code runs but the library's.

The file is read as untrusted: bounded sizes, no code, nothing that names another file.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import itertools
import logging
import math
import re
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from placewright.errors import FileFormatError, InputError, UnknownNameError, optional_library
from placewright.frameworks.language.gguf_file import GgufTensor
from placewright.frameworks.language.gguf_model import engine_window
from placewright.frameworks.language.library_names import (
    ARCHITECTURES,
    SAME,
    LibraryModel,
    tensors_of,
)
from placewright.frameworks.language.modules import Cache, LanguageModel
from placewright.frameworks.language.named_tensors import Contradiction, NamedTensors
from placewright.frameworks.language.quantizer import (
    ModelSizes,
    bytes_of,
    format_named,
    formats_of,
)
from placewright.io.json_text import json_object, read_text
from placewright.io.opened import shown_name

_LOG = logging.getLogger(__name__)
_LARGEST = 4 << 20  # bytes; published ones have up to half a megabyte
_DEEPEST = 8  # objects in objects
_MOST = 1 << 31  # of any size
_COUNTS = re.compile(r"(num|n)_\w+|\w+_(layers|blocks|experts)|n_layer|depth")
# Sizes that no model has below one, and those that none has below zero.
_POSITIVE = re.compile(
    r"(hidden|vocab)_size|num_(hidden_layers|attention_heads|key_value_heads)|head_dim|"
    r"max_position_embeddings|n_(embd|layer|layers|head|heads|positions)|d_model"
)
_SIZED = re.compile(r"(num|n)_\w+|\w+_(size|dim|rank|heads|layers|experts|kernel|window)")
_MOST_COUNTED = {"layer": 1000, "block": 1000, "expert": 4096, "": 1 << 20}
_FLOATS = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
# Fields that make the library import code, load kernels, look for files or make objects that no
# decoder needs.
_LEFT_OUT = re.compile(
    r"auto_map|_?attn_implementation\w*|_?experts_implementation\w*|use_kernels?|architectures|"
    r"quantization_config|compression_config|id2label|label2id|num_labels|torch_dtype|dtype|"
    r"_?name_or_path|_commit_hash|pruned_heads|transformers_version|base_model_\w+|custom_\w+|"
    r"torchscript|return_dict|use_cache|output_\w+|_\w+"
)


class ConfigFile:
    """A configuration, checked.

    Args:
        path: of the file, or of the folder that holds it.

    Attributes:
        name: of the file, as messages show it.
        model_type: as the library names the architecture.
        fields: what the library is given.
        dtype: format of the stored weights, for example ``"bf16"``, which also stands for one that
            is not stated or not known here.
        is_quantized: the stored weights have another format, which only their files show.
        sha256: of the text.

    Raises:
        InputError: there is no such file.
        FileFormatError: it is no configuration, or states sizes that no model has.
    """

    def __init__(self, path: Path) -> None:
        file = path / "config.json" if path.is_dir() else path
        if not file.exists():
            raise InputError(f"folder '{shown_name(path)}' holds no config.json")
        self.name = shown_name(file)
        text = read_text(file, limit=_LARGEST)
        self.sha256 = hashlib.sha256(text.encode()).hexdigest()
        raw = json_object(text, file)
        model_type = raw.get("model_type")
        if not isinstance(model_type, str) or not re.fullmatch(r"[\w.-]{1,64}", model_type):
            raise self.fault("it has no 'model_type'; give the config.json of a language model")
        self.model_type = SAME.get(model_type, model_type)
        self.fields = {**self._checked(raw, 0), "model_type": self.model_type}
        self.dtype = self._dtype(raw)
        own = raw.get("text_config")
        inner = own if isinstance(own, dict) else {}
        stated = [x.get("quantization_config") for x in (raw, inner)]
        quantized = [x for x in stated if x is not None]
        self.is_quantized = bool(quantized)
        if any(isinstance(x, dict) and x.get("quant_method") == "mxfp4" for x in quantized):
            self.dtype, self.is_quantized = "mxfp4_moe", False  # experts, as in llama.cpp's format

    def fault(self, text: str) -> FileFormatError:
        """An error about this file."""
        return FileFormatError(f"file '{self.name}': {text}")

    def _dtype(self, raw: Mapping[str, Any]) -> str:
        stated = [raw[key] for key in ("dtype", "torch_dtype") if isinstance(raw.get(key), str)]
        found = {text.removeprefix("torch.") for text in stated}
        if len(found) > 1:
            raise self.fault(f"it states two formats: dtype {raw['dtype']!r:.40} and torch_dtype "
                             f"{raw['torch_dtype']!r:.40}; remove one")  # fmt: skip
        inner = raw.get("text_config")
        if not found and isinstance(inner, dict):
            return self._dtype({**inner, "text_config": None})
        return _FLOATS.get(next(iter(found), ""), "bf16")

    def _checked(self, raw: Mapping[str, Any], depth: int) -> dict[str, Any]:
        if depth > _DEEPEST:
            raise self.fault(f"it nests more than {_DEEPEST} objects")
        found = {}
        for key, value in raw.items():
            if not key.isidentifier() or _LEFT_OUT.fullmatch(key):
                continue
            found[key] = self._checked_value(key, value, depth)
            self._require_least(key, value)
        return found

    def _checked_value(self, key: str, value: Any, depth: int) -> Any:
        if isinstance(value, dict):
            return value if _is_special_float(value) else self._checked(value, depth + 1)
        if isinstance(value, list):
            if depth > _DEEPEST:
                raise self.fault(f"it nests more than {_DEEPEST} objects")
            return [self._checked_value(key, part, depth + 1) for part in value]
        self._require_most(key, value)
        return value

    def _require_most(self, key: str, value: Any) -> None:
        """Refuse a number that would make the library count for hours."""
        is_size = any(pattern.fullmatch(key) for pattern in (_COUNTS, _POSITIVE, _SIZED))
        if isinstance(value, bool) or not isinstance(value, (int, float) if is_size else int):
            return
        most = _MOST
        if _COUNTS.fullmatch(key):
            most = next(most for part, most in _MOST_COUNTED.items() if part in key)
        if not -most <= value <= most:
            raise self.fault(f"'{shown_name(key)}' is {value}; at most {most} is read")

    def _require_least(self, key: str, value: Any) -> None:
        """Refuse a size of zero or less that no model has."""
        if isinstance(value, bool) or not isinstance(value, int):
            return
        least = 1 if _POSITIVE.fullmatch(key) else 0 if _SIZED.fullmatch(key) else value
        if value < least:
            raise self.fault(f"'{shown_name(key)}' is {value}; at least {least} is read")


_SIZES = (
    *("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads"),
    *("num_key_value_heads", "vocab_size"),
)
_LIBRARY = threading.RLock()
_SEARCHED = 10.0  # seconds, for the field that a fault comes from
_TOKENS = 2  # of the pass that fills the caches
_STATE_BYTES = 4  # of a number of a recurrent state, which engines keep in f32
_EXPERTS_USED = ("num_experts_per_tok", "moe_topk", "moe_k", "top_k_experts")
_CONTEXT = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len")


def built(file: ConfigFile, known: tuple[str, ...]) -> LibraryModel:
    """Build the model of a configuration.

    Args:
        known: types of models that can be read.

    Raises:
        UnknownNameError: the type of the model is not among them.
        FileFormatError: the library builds no decoder of it.
        MissingExtraError: `transformers` is not installed.
    """
    optional_library("transformers", "zoo", "reading a config.json")
    with _quiet_and_offline():
        try:
            described, config, is_part = _attempt(file.model_type, file.fields, known)
        except _Refused as refused:
            raise file.fault(f"{refused}{_culprit(file, known, str(refused))}") from None
    if taken := _defaults(file, config):
        listed = ", ".join(f"{key} ({value})" for key, value in taken.items())
        _LOG.warning("file '%s' lacks %s: the defaults of transformers count", file.name, listed)
    return replace(described, state=()) if is_part else described


class _Refused(Exception):
    """The library refuses a configuration; `built` puts the file's name before the text."""


def _attempt(
    model_type: str, fields: Mapping[str, Any], known: tuple[str, ...]
) -> tuple[LibraryModel, Any, bool]:
    """The model of fields, its configuration, and whether it is a part of a model."""
    config, is_part = _config(model_type, fields, known)
    if config.model_type not in known:
        raise UnknownNameError("model type", config.model_type, known)
    heads, pairs = (_size(config, name) for name in ("num_attention_heads", "num_key_value_heads"))
    if heads and pairs and heads % pairs:
        raise _Refused(
            f"'num_attention_heads' is {heads}, no multiple of 'num_key_value_heads', {pairs}"
        )
    try:
        module = _module(config)
        return _described(config, module, _filled_caches(module)), config, is_part
    except Exception as error:  # a library meets sizes that nobody checked
        text = f"transformers builds no decoder of it: {_first_line(error)}"
        raise _Refused(text) from None


def _culprit(file: ConfigFile, known: tuple[str, ...], text: str) -> str:
    """The field whose value the library cannot take, as the end of a sentence; "" if unknown."""
    inner = file.fields.get("text_config")
    stated: Mapping[str, Any] = inner if isinstance(inner, dict) else file.fields
    if any(f"'{key}'" in text for key in stated):
        return ""
    keys = sorted(stated.keys() - {"model_type"}, key=lambda key: (key in _SIZES, key))
    end = time.monotonic() + _SEARCHED
    for is_one, key in itertools.product((False, True), keys):
        value, rest = stated[key], dict(stated)
        if is_one and type(value) not in (int, type(None)):
            continue
        if time.monotonic() > end:
            break
        rest.pop(key)
        rest |= {key: 1} if is_one else {}
        changed = rest if stated is file.fields else {**file.fields, "text_config": rest}
        try:
            _attempt(file.model_type, changed, known)
        except Exception:
            continue
        how = "with 1 for" if is_one else "without"
        return f"; {how} field '{shown_name(key)}', which is {value!r:.40}, it would"
    return ""


def _defaults(file: ConfigFile, config: Any) -> dict[str, int]:
    """Sizes that a file lacks, with those that the library takes instead."""
    inner = file.fields.get("text_config")
    outer, stated = file.fields, inner if isinstance(inner, dict) else file.fields
    known = inspect.signature(type(config).__init__).parameters
    taken = {}
    for key in _SIZES:
        own = config.attribute_map.get(key, key)
        value = _size(config, own)
        is_stated = any(name in stated or outer.get(name) == value for name in (key, own))
        if own in known and not is_stated and value is not None:
            taken[key] = value
    if taken.get("num_key_value_heads") == _size(config, "num_attention_heads"):
        taken.pop("num_key_value_heads", None)  # each head has its own, as older files mean it
    return taken


def _is_special_float(value: Mapping[str, Any]) -> bool:
    """True for ``{"__float__": "Infinity"}`` and its like."""
    special = ("Infinity", "-Infinity", "NaN")
    return value.keys() == {"__float__"} and value["__float__"] in special


def _numbers(value: Any) -> Any:
    """A field with numbers in place of ``{"__float__": "Infinity"}``, as transformers writes it."""
    if isinstance(value, list):
        return [_numbers(part) for part in value]
    if not isinstance(value, dict):
        return value
    if _is_special_float(value):
        return float(value["__float__"])
    return {key: _numbers(part) for key, part in value.items()}


def _config(model_type: str, fields: Mapping[str, Any], known: tuple[str, ...]) -> tuple[Any, bool]:
    """The configuration of the decoder, and whether it is a part of the file's model."""
    from transformers import PretrainedConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    try:
        kind = CONFIG_MAPPING[model_type]
    except KeyError:
        raise UnknownNameError("model type", model_type, known) from None
    try:
        whole = kind.from_dict(_numbers(dict(fields)))
        config = whole.get_text_config(decoder=True)
    except Exception as error:
        raise _Refused(f"transformers takes no such fields: {_first_line(error)}") from None
    if not isinstance(config, PretrainedConfig):
        raise _Refused(f"its decoder is described by a {type(config).__name__}, no object")
    is_alone = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING
    if config is not whole and ("tie_word_embeddings" in fields or not is_alone):
        config.tie_word_embeddings = whole.tie_word_embeddings  # which the library follows
    return config, config is not whole


def _module(config: Any) -> Any:
    """The decoder with its head, its embedding tied if the configuration says so."""
    import torch
    from transformers.initialization import no_init_weights
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_MAPPING

    kind: Any = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    with torch.device("meta"), no_init_weights():
        if kind is None:
            kind = MODEL_MAPPING[type(config)]
            return _with_head(kind._from_config(config, attn_implementation="eager"), config)
        module = kind._from_config(config, attn_implementation="eager")
    module.tie_weights()
    return module.eval()


def _with_head(model: Any, config: Any) -> Any:
    """A decoder that the library offers only inside vision models, with their output head."""
    import torch

    class Decoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)
            if config.tie_word_embeddings:
                self.lm_head.weight = model.get_input_embeddings().weight

        def forward(self, **given: Any) -> Any:
            return self.model(**given)

    return Decoder().eval()


def _filled_caches(module: Any) -> list[Any]:
    """The library's own cache of each layer after a pass of two tokens."""
    import torch

    for own in (module, getattr(module, "model", module)):
        if hasattr(own, "set_experts_implementation"):
            own.set_experts_implementation("batched_mm")  # the others read the router's choice
    with torch.no_grad(), torch.device("meta"):
        tokens = torch.zeros((1, _TOKENS), dtype=torch.long)
        answer = module(input_ids=tokens, use_cache=True)
    name = "past_key_values" if hasattr(answer, "past_key_values") else "cache_params"
    return list(getattr(answer, name).layers)


def _size(config: Any, name: str) -> int | None:
    """A field that is a whole number; None for others, and for one that differs by layer."""
    try:
        value = getattr(config, name, None)
    except Exception:  # the library's own, of a field that differs by layer
        return None
    return value if type(value) is int else None


def _described(config: Any, module: Any, layers: list[Any]) -> LibraryModel:
    from transformers.pytorch_utils import Conv1D

    sizes = {
        key: value
        for key in (*dir(config), *config.attribute_map)
        if not key.startswith("_") and (value := _size(config, key)) is not None
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
    width, absorbed = keys.shape[3] + values.shape[3], 0
    if latent and keys.shape[3] == latent:  # the latent serves as key, with positions, and value
        absorbed = 2 * heads * width
        width += latent
    window = getattr(layer, "sliding_window", None) or 0
    head = math.gcd(keys.shape[3], values.shape[3])
    return Cache(elements, window, 2.0 * heads * width, state_bytes, head, absorbed)


def _first_line(error: Exception) -> str:
    text = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    return text if len(text) <= 200 else f"{text[:197]}..."


@contextlib.contextmanager
def _quiet_and_offline() -> Iterator[None]:
    """Suppress messages of the library, and keep it from the network."""
    import huggingface_hub.constants as hub
    from transformers import logging

    with _LIBRARY:  # its settings are those of the whole process
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


# Their files state heads of keys for each layer.
_HEADS_BY_LAYER = (*("granitehybrid", "jamba", "lfm2", "lfm2moe", "nemotron_h", "nemotron_h_moe"),)
# Layers that predict further tokens: the library makes none, and converted files have so many, or
# as many as a field states.
_PREDICTING: Mapping[str, str | int] = {
    **dict.fromkeys(
        ("exaone_moe", "glm4_moe", "glm4_moe_lite", "nemotron_h", "solar_open"),
        "num_nextn_predict_layers",
    ),
    **dict.fromkeys(("qwen3_5_moe_text", "qwen3_5_text"), "mtp_num_hidden_layers"),
    "mimo_v2_flash": 3,
}


def read_config(path: Path, weights: str | None) -> tuple[LanguageModel, str, str]:
    """Read a configuration; the model, a hash of the file, and the format of weights.

    Args:
        path: of a `config.json`, or of the folder that holds it.
        weights: one of `quantizer.FORMATS`; None is the format that the configuration states.

    Raises:
        InputError: there is no such file, or its type of model is unknown.
        FieldError: the format is unknown.
        FileFormatError: the file is damaged, or the library builds no decoder of it.
        MissingExtraError: `transformers` or `gguf` is not installed.
    """
    chosen = None if weights is None else format_named(weights)
    file = ConfigFile(path)
    library = _library(path, file.sha256)
    if file.is_quantized and chosen is None:
        _warn_of_quantized(file.name, file.sha256, file.dtype)
    try:
        return _model(library, chosen or file.dtype), file.sha256, chosen or file.dtype
    except (Contradiction, KeyError, IndexError, ZeroDivisionError) as fault:
        raise file.fault(f"it contradicts itself: {fault}") from None


def stored_format(path: Path) -> str:
    """Format of the weights beside a configuration; empty if only their files show it.

    Raises:
        InputError: there is no such file.
        FileFormatError: it is no configuration.
    """
    file = ConfigFile(path)
    return "" if file.is_quantized else file.dtype


@functools.lru_cache(maxsize=64)
def _warn_of_quantized(name: str, sha256: str, dtype: str) -> None:
    """Warn once for each content."""
    del sha256
    _LOG.warning(
        "file '%s' has a quantization_config, which is not read: weights are counted as %s; "
        "argument `weights` chooses a format", name, dtype
    )  # fmt: skip


@functools.lru_cache(maxsize=8)
def _library(path: Path, sha256: str) -> LibraryModel:
    """Build the library's model of a file, once for each content."""
    del sha256
    return built(ConfigFile(path), tuple(sorted(ARCHITECTURES)))


def tensors_with_bytes(library: LibraryModel, weights: str) -> list[GgufTensor]:
    """The tensors that llama.cpp would have in a file of a format.

    Args:
        weights: one of `quantizer.FORMATS`.

    Raises:
        Contradiction: a parameter has no name in llama.cpp.
        MissingExtraError: package `gguf` is not installed.
    """
    shapes = tensors_of(library)
    formats = formats_of(shapes, _sizes(library, shapes), weights)
    return [
        GgufTensor(name, shape, formats[name], bytes_of(math.prod(shape), formats[name]))
        for name, shape in shapes.items()
    ]


def _sizes(library: LibraryModel, shapes: Mapping[str, tuple[int, ...]]) -> ModelSizes:
    """The sizes that llama.cpp's converter writes into a file, as far as formats need them."""
    sizes, architecture = library.sizes, library.architecture
    heads = sizes.get("num_attention_heads", 0)
    key_heads = sizes.get("num_key_value_heads") or heads
    if any(".attn_k_b." in name for name in shapes):
        key_heads = 1  # the latent is the key of all heads
    elif architecture in _HEADS_BY_LAYER and not library.caches[0].elements_per_token:
        key_heads = 0
    return ModelSizes(
        architecture,
        len(library.caches) + _predicting(library),
        heads,
        key_heads,
        _experts(shapes),
        "output.weight" not in shapes,
    )


def _predicting(library: LibraryModel) -> int:
    found = _PREDICTING.get(library.model_type, 0)
    return library.sizes.get(found, 0) if isinstance(found, str) else found


def _model(library: LibraryModel, weights: str) -> LanguageModel:
    listed = tensors_with_bytes(library, weights)
    experts = _experts({tensor.name: tensor.shape for tensor in listed})
    if experts and not 0 < library.experts_used <= experts:
        raise Contradiction(f"of {experts} experts a token passes {library.experts_used}")
    tensors = NamedTensors(listed)
    if len(tensors.layers) != len(library.caches):
        raise Contradiction(
            f"{len(tensors.layers)} layers have parameters, {len(library.caches)} have caches"
        )
    return LanguageModel(
        library.architecture,
        tensors.embedding.shape[0],
        tensors.embedding.shape[1],
        library.trained_context,
        library.experts_used if experts else 0,
        experts,
        tensors.parts(),
        _caches(library),
        tensors.beside_layers(),
        tensors.head,
        tensors.tied,
        library.state,
        _predicting(library),
    )


def _caches(library: LibraryModel) -> tuple[Cache, ...]:
    """Caches of the layers, with the windows that llama.cpp has in the architecture."""
    of = functools.partial(engine_window, library.architecture, len(library.caches))
    return tuple(replace(cache, window=of(cache.window)) for cache in library.caches)


def _experts(shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Number of experts of a layer that has them; 0 without."""
    stacks = [shape[2] for name, shape in shapes.items() if name.endswith("_exps.weight")]
    return max(stacks, default=0)

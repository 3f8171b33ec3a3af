"""A `config.json` as a language model, with the bytes of a format of weights.

Parameters of `transformers` get the names of llama.cpp's tensors from the table of package `gguf`.
Some parameters become two tensors, as in `conversion/` of llama.cpp 0.25: gate and up of experts,
the expansion of a latent, and the projection of linear attention with its gate.

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
import logging
import math
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from placewright.errors import FileFormatError, InputError, MissingExtraError, UnknownNameError
from placewright.frameworks.language.gguf_file import GgufTensor
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
        dtype: format of the stored weights, for example ``"bf16"``.
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
        self.model_type = model_type
        self.fields = self._checked(raw, 0)
        self.dtype = self._dtype(raw)
        own = raw.get("text_config")
        inner = own if isinstance(own, dict) else {}
        self.is_quantized = any("quantization_config" in content for content in (raw, inner))

    def fault(self, text: str) -> FileFormatError:
        """An error about this file."""
        return FileFormatError(f"file '{self.name}': {text}")

    def _dtype(self, raw: Mapping[str, Any]) -> str:
        found = {raw[key] for key in ("dtype", "torch_dtype") if isinstance(raw.get(key), str)}
        if len(found) > 1:
            raise self.fault(f"it states two formats: dtype {raw['dtype']!r:.40} and torch_dtype "
                             f"{raw['torch_dtype']!r:.40}; remove one")  # fmt: skip
        inner = raw.get("text_config")
        if not found and isinstance(inner, dict):
            return self._dtype({**inner, "text_config": None})
        return _FLOATS.get(str(next(iter(found), "")).removeprefix("torch."), "bf16")

    def _checked(self, raw: Mapping[str, Any], depth: int) -> dict[str, Any]:
        if depth > _DEEPEST:
            raise self.fault(f"it nests more than {_DEEPEST} objects")
        found = {}
        for key, value in raw.items():
            if not key.isidentifier() or _LEFT_OUT.fullmatch(key):
                continue
            self._require_size(key, value)
            found[key] = self._checked(value, depth + 1) if isinstance(value, dict) else value
        return found

    def _require_size(self, key: str, value: Any) -> None:
        """Refuse numbers that would make the library count for hours."""
        if isinstance(value, bool) or not isinstance(value, int):
            return
        most = _MOST
        if _COUNTS.fullmatch(key):
            most = next(most for part, most in _MOST_COUNTED.items() if part in key)
        if not -most <= value <= most:
            raise self.fault(f"'{shown_name(key)}' is {value}; at most {most} is read")


_SIZES = (
    *("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads"),
    *("num_key_value_heads", "vocab_size"),
)
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
            described = _described(config, module, layers)
        except Exception as error:  # a library meets sizes that nobody checked
            raise file.fault(
                f"transformers builds no decoder of it: {_first_line(error)}"
            ) from None
    if taken := _defaults(file, config):
        listed = ", ".join(f"{key} ({value})" for key, value in taken.items())
        _LOG.warning("file '%s' lacks %s: the defaults of transformers count", file.name, listed)
    return described


def _defaults(file: ConfigFile, config: Any) -> dict[str, int]:
    """Sizes that a file lacks, with those that the library takes instead."""
    inner = file.fields.get("text_config")
    stated = {**file.fields, **inner} if isinstance(inner, dict) else file.fields
    known = inspect.signature(type(config).__init__).parameters
    taken = {}
    for key in _SIZES:
        own = config.attribute_map.get(key, key)
        value = getattr(config, own, None)
        if own in known and stated.keys().isdisjoint((key, own)) and type(value) is int:
            taken[key] = value
    if taken.get("num_key_value_heads") == getattr(config, "num_attention_heads", None):
        taken.pop("num_key_value_heads", None)  # each head has its own, as older files mean it
    return taken


def _numbers(value: Any) -> Any:
    """A field with numbers in place of ``{"__float__": "Infinity"}``, as transformers writes it."""
    if isinstance(value, list):
        return [_numbers(part) for part in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"__float__"} and value["__float__"] in ("Infinity", "-Infinity", "NaN"):
        return float(value["__float__"])
    return {key: _numbers(part) for key, part in value.items()}


def _config(file: ConfigFile, known: tuple[str, ...]) -> Any:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    try:
        kind = CONFIG_MAPPING[file.model_type]
    except KeyError:
        raise UnknownNameError("model type", file.model_type, known) from None
    try:
        return kind.from_dict(_numbers(dict(file.fields))).get_text_config(decoder=True)
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


Shape = tuple[int, ...]
# type of a model in transformers -> architecture of llama.cpp
ARCHITECTURES: Mapping[str, str] = {
    "apertus": "apertus", "arcee": "arcee", "bloom": "bloom", "cohere2": "cohere2",
    "deepseek_v2": "deepseek2", "deepseek_v3": "deepseek2", "dots1": "dots1",
    "ernie4_5": "ernie4_5", "ernie4_5_moe": "ernie4_5-moe", "exaone4": "exaone4",
    "falcon": "falcon", "falcon_h1": "falcon-h1", "gemma": "gemma", "gemma2": "gemma2",
    "gemma3_text": "gemma3", "glm4": "glm4", "glm4_moe": "glm4moe", "gpt2": "gpt2",
    "gpt_neox": "gptneox", "gpt_oss": "gpt-oss", "granite": "granite",
    "granitemoe": "granitemoe", "hunyuan_v1_dense": "hunyuan-dense",
    "hunyuan_v1_moe": "hunyuan-moe", "jamba": "jamba", "lfm2": "lfm2", "lfm2_moe": "lfm2moe",
    "llama": "llama", "llama4_text": "llama4", "mamba": "mamba", "mamba2": "mamba2",
    "mimo_v2_flash": "mimo2", "minimax_m2": "minimax-m2", "ministral": "llama",
    "ministral3": "mistral3", "mistral": "llama", "mixtral": "llama", "mpt": "mpt",
    "nemotron": "nemotron", "olmo": "olmo", "olmo2": "olmo2", "olmo3": "olmo2",
    "olmoe": "olmoe", "phi": "phi2", "phi3": "phi3", "phimoe": "phimoe", "qwen2": "qwen2",
    "qwen2_moe": "qwen2moe", "qwen3": "qwen3", "qwen3_moe": "qwen3moe",
    "qwen3_next": "qwen3next", "seed_oss": "seed_oss", "smollm3": "smollm3",
    "stablelm": "stablelm", "starcoder2": "starcoder2",
}  # fmt: skip
_SUFFIXES = (".weight", ".bias")
_RENAMED = (  # what parameters are called -> what the table of `gguf` knows
    (".dt_bias", ".dt_proj.bias"),
    (".block_sparse_moe.router.weight", ".block_sparse_moe.router.layer.weight"),
    (".gate.moe_statics.e_score_correction_bias", ".moe_statics.e_score_correction.bias"),
)


def tensors_of(model: LibraryModel) -> dict[str, Shape]:
    """Shape of each tensor that llama.cpp has for a model, the contiguous dimension first.

    Raises:
        Contradiction: a parameter has no name in llama.cpp.
        MissingExtraError: package `gguf` is not installed.
    """
    names = _Names(model)
    return dict(pair for name in model.shapes for pair in names.tensors(name))


class _Names:
    def __init__(self, model: LibraryModel) -> None:
        try:
            from gguf import MODEL_ARCH_NAMES, MODEL_TENSOR, MODEL_TENSORS, get_tensor_name_map
        except ImportError:
            raise MissingExtraError("gguf", "language", "names of tensors") from None
        self._model, self._sizes = model, model.sizes
        self._architecture = ARCHITECTURES[model.model_type]
        number = next(key for key, name in MODEL_ARCH_NAMES.items() if name == self._architecture)
        self._map = get_tensor_name_map(number, self._sizes["num_hidden_layers"])
        self._splits_latent = MODEL_TENSOR.ATTN_K_B in MODEL_TENSORS[number]

    def tensors(self, name: str) -> Iterator[tuple[str, Shape]]:
        """Tensors that a parameter becomes."""
        shape = self._model.shapes[name]
        stem, _, last = name.rpartition(".")
        if last in ("gate_up_proj", "gate_up_proj_bias") and stem.endswith("experts"):
            yield from self._gate_and_up(stem, shape, last.endswith("_bias"))
        elif last in ("down_proj", "down_proj_bias") and stem.endswith("experts"):
            yield self._down(stem, shape, last.endswith("_bias"))
        elif name.endswith(".kv_b_proj.weight") and self._splits_latent:
            yield from self._expansion(name, shape)
        elif name.endswith(".in_proj_qkvz.weight"):
            yield from self._linear_attention(name, shape)
        elif stem.endswith(".act_fn"):  # llama.cpp has such numbers in the header
            yield f"{self._layer(stem)}ffn_{last}", shape
        else:
            yield self._named(name), self._reversed(name, shape)

    def _named(self, name: str) -> str:
        for own, known in _RENAMED:
            name = name.replace(own, known)
        name = f"{name}.weight" if name.endswith(".sinks") else name
        found = self._map.get_name(name, try_suffixes=_SUFFIXES) or self._map.get_name(
            name.removeprefix("transformer."), try_suffixes=_SUFFIXES
        )
        if found is None:
            raise Contradiction(f"parameter '{name}' has no name in llama.cpp")
        return str(found)

    def _layer(self, stem: str) -> str:
        """Begin of the names of a layer, from the path of a module in it."""
        number = next(part for part in stem.split(".") if part.isdigit())
        return f"blk.{number}."

    def _reversed(self, name: str, shape: Shape) -> Shape:
        if name in self._model.transposed:
            return shape
        if ".conv1d." in name or ".conv.conv." in name:
            shape = tuple(size for size in shape if size > 1)
        return (shape[1:] if len(shape) > 1 and shape[0] == 1 else shape)[::-1]

    def _gate_and_up(self, stem: str, shape: Shape, is_bias: bool) -> Iterator[tuple[str, Shape]]:
        hidden = self._sizes["hidden_size"]
        for part in ("gate", "up"):
            name = f"{self._layer(stem)}ffn_{part}_exps"
            if is_bias:
                yield f"{name}.bias", (shape[1] // 2, shape[0])
            else:
                inner = (shape[1] if shape[2] == hidden else shape[2]) // 2
                yield f"{name}.weight", (hidden, inner, shape[0])

    def _down(self, stem: str, shape: Shape, is_bias: bool) -> tuple[str, Shape]:
        name = f"{self._layer(stem)}ffn_down_exps"
        if is_bias:
            return f"{name}.bias", shape[::-1]
        hidden = self._sizes["hidden_size"]
        inner = shape[2] if shape[1] == hidden else shape[1]
        return f"{name}.weight", (inner, hidden, shape[0])

    def _expansion(self, name: str, shape: Shape) -> Iterator[tuple[str, Shape]]:
        heads, rank = self._sizes["num_attention_heads"], shape[1]
        keys = self._sizes["qk_nope_head_dim"]
        yield f"{self._layer(name)}attn_k_b.weight", (keys, rank, heads)
        yield f"{self._layer(name)}attn_v_b.weight", (rank, shape[0] // heads - keys, heads)

    def _linear_attention(self, name: str, shape: Shape) -> Iterator[tuple[str, Shape]]:
        gate = self._sizes["linear_num_value_heads"] * self._sizes["linear_value_head_dim"]
        yield f"{self._layer(name)}attn_qkv.weight", (shape[1], shape[0] - gate)
        yield f"{self._layer(name)}attn_gate.weight", (shape[1], gate)


_HEADS_BY_LAYER = ("jamba", "lfm2", "lfm2moe")  # their files state heads of keys for each layer
_COUNTS_PREDICTING = ("glm4moe",)  # their files count layers that predict further tokens


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
    sizes, architecture = library.sizes, ARCHITECTURES[library.model_type]
    predicting = "num_nextn_predict_layers" if architecture in _COUNTS_PREDICTING else ""
    heads = sizes.get("num_attention_heads", 0)
    key_heads = sizes.get("num_key_value_heads") or heads
    if any(".attn_k_b." in name for name in shapes):
        key_heads = 1  # the latent is the key of all heads
    elif architecture in _HEADS_BY_LAYER and not library.caches[0].elements_per_token:
        key_heads = 0
    return ModelSizes(
        architecture,
        len(library.caches) + sizes.get(predicting, 0),
        heads,
        key_heads,
        _experts(shapes),
        "output.weight" not in shapes,
    )


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
        ARCHITECTURES[library.model_type],
        tensors.embedding.shape[0],
        tensors.embedding.shape[1],
        library.trained_context,
        library.experts_used if experts else 0,
        experts,
        tensors.parts(),
        library.caches,
        tensors.beside_layers(),
        tensors.head,
        tensors.tied,
        library.state,
    )


def _experts(shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Number of experts of a layer that has them; 0 without."""
    stacks = [shape[2] for name, shape in shapes.items() if name.endswith("_exps.weight")]
    return max(stacks, default=0)

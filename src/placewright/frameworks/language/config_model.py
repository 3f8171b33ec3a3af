"""A `config.json` as a language model, with the bytes of a format of weights.

Parameters of `transformers` get the names of llama.cpp's tensors from the table of package `gguf`.
Some parameters become two tensors, as in `conversion/` of llama.cpp 0.25: gate and up of experts,
the expansion of a latent, and the projection of linear attention with its gate.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from pathlib import Path

from placewright.errors import MissingExtraError
from placewright.frameworks.language.config_file import ConfigFile
from placewright.frameworks.language.gguf_file import GgufTensor
from placewright.frameworks.language.library_model import LibraryModel, built
from placewright.frameworks.language.modules import LanguageModel
from placewright.frameworks.language.named_tensors import Contradiction, NamedTensors
from placewright.frameworks.language.quantizer import (
    ModelSizes,
    bytes_of,
    format_named,
    formats_of,
)

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
        else:
            yield self._named(name), self._reversed(name, shape)

    def _named(self, name: str) -> str:
        name = name.replace(".dt_bias", ".dt_proj.bias")
        name = f"{name}.weight" if name.endswith(".sinks") else name
        found = self._map.get_name(name, try_suffixes=_SUFFIXES)
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
    try:
        return _model(library, chosen or file.dtype), file.sha256, chosen or file.dtype
    except (Contradiction, KeyError, IndexError, ZeroDivisionError) as fault:
        raise file.fault(f"it contradicts itself: {fault}") from None


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

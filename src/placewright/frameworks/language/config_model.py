"""A `config.json` as a language model, with the bytes of a format of weights."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from pathlib import Path

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
from placewright.frameworks.language.tensor_names import ARCHITECTURES, tensors_of

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

"""A GGUF file as a language model: which tensor belongs to which module, and what layers keep.

Names of tensors and keys are those of llama.cpp. Sizes come from the shapes of tensors where they
show them, and from metadata elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from placewright.errors import FileFormatError
from placewright.frameworks.language.gguf_file import (
    GgufFile,
    GgufTensor,
    later_parts,
    read_gguf_file,
)
from placewright.frameworks.language.modules import Cache, LanguageModel
from placewright.frameworks.language.named_tensors import (
    Contradiction,
    NamedTensors,
    has_experts,
)
from placewright.io.opened import shown_name

# Architectures whose files may state a window without the layers that have it: the period of the
# layers without one, as the hyperparameters of llama.cpp 0.25 set them (src/models, function
# load_swa_pattern). Others have no window there. The layer without one is the last of its period.
_PERIOD = {
    "afmoe": 4, "cohere2": 4, "cohere2moe": 4, "exaone-moe": 4, "exaone4": 4, "gemma2": 2,
    "gemma3": 6, "gemma3n": 5, "gpt-oss": 2, "laguna": 4, "llama4": 4, "mellum": 4,
    "muse-glimmer": 4, "olmo2": 4, "plamo3": 8, "smallthinker": 4,
}  # fmt: skip
_FULL_FIRST = ("cohere2moe", "laguna", "smallthinker")  # it is the first of its period
_WITH_WINDOWS = {"exaone4": 64}  # numbers of layers of the only size that has them
_WINDOW = {"exaone-moe": 128, "exaone4": 4096, "gemma2": 4096, "llama4": 8192}  # if not stated
_FIXED_WINDOW = {"llama4": 8192, "smallthinker": 4096}  # whichever is stated, unless it is 0
_ALL_WITH_WINDOW = ("deepseek4", "lfm2")  # in each layer that keeps keys
# Those whose files state the layers.
_STATED_LAYERS = ("dots3note", "gemma4", "granite_swa", "maple", "mimo2", "spark2_5", "step35")
# Those without a cache of tokens (llama-model.cpp, function `create_memory`): encoders, and models
# that write all tokens at once.
_WITHOUT_CACHE = (
    *("bert", "dream", "eurobert", "gemma-embedding", "jina-bert-v2", "jina-bert-v3", "llada"),
    *("llada-moe", "modern-bert", "neo-bert", "nomic-bert", "nomic-bert-moe", "rnd1"),
)
_RECURRENT_BUT_EVERY = {"minimax-01": 8}  # period of the layers that keep keys, unless stated


def engine_window(architecture: str, n_layers: int, stated: int) -> int:
    """Tokens of a window in llama.cpp; 0 if it has none in an architecture.

    Args:
        architecture: of llama.cpp.
        n_layers: of the model.
        stated: tokens, as the model states them; 0 is none.
    """
    known = (*_PERIOD, *_ALL_WITH_WINDOW, *_STATED_LAYERS)
    if architecture not in known or _WITH_WINDOWS.get(architecture, n_layers) != n_layers:
        return 0
    return _FIXED_WINDOW.get(architecture, stated) if stated else 0


def read_gguf(path: Path) -> tuple[LanguageModel, str]:
    """Read a model, in one file or in numbered parts; also a hash of headers and tables.

    Args:
        path: of the file, or of the first part.

    Raises:
        InputError: a file is missing.
        FileFormatError: a file is damaged, contradicts itself, or holds no decoder.
        MissingExtraError: package `gguf` is not installed.
    """
    files = [read_gguf_file(path)]
    count = files[0].metadata.get("split.count", 1)
    if isinstance(count, int) and count > 1:
        parts = later_parts(path)
        if len(parts) + 1 != count:
            raise FileFormatError(
                f"file '{shown_name(path)}' is one of {count} parts; give the one whose name ends "
                f"with -00001-of-{count:05d}.gguf, beside the others"
            )
        files += map(read_gguf_file, parts)
        _require_parts((path, *parts), files)
    tensors = [tensor for file in files for tensor in file.tensors]
    try:
        model = _Model(files[0].metadata, tensors).read()
        return model, "".join(file.sha256 for file in files)
    except Contradiction as fault:
        raise FileFormatError(f"file '{shown_name(path)}': {fault}") from None


def _require_parts(paths: Sequence[Path], files: Sequence[GgufFile]) -> None:
    """Refuse parts that are not those of one model, in their order."""
    part_of: dict[str, Path] = {}
    for number, (path, file) in enumerate(zip(paths, files, strict=True)):
        stated = file.metadata.get("split.no"), file.metadata.get("split.count")
        if stated != (number, len(files)):
            raise FileFormatError(
                f"file '{shown_name(path)}' says that it is part {stated[0]} of {stated[1]}, "
                f"counted from 0, not {number} of {len(files)}; give the parts of one model"
            )
        for tensor in file.tensors:
            if part_of.setdefault(tensor.name, path) != path:
                raise FileFormatError(
                    f"file '{shown_name(path)}' holds the tensor '{shown_name(tensor.name)}' of "
                    f"'{part_of[tensor.name].name}' again; give the parts of one model"
                )


class _Model:
    def __init__(self, metadata: Mapping[str, Any], tensors: Sequence[GgufTensor]) -> None:
        self._metadata = metadata
        self._architecture = self._metadata.get("general.architecture")
        self._tensors = NamedTensors(tensors if isinstance(self._architecture, str) else ())

    def read(self) -> LanguageModel:
        tensors = self._tensors
        name, causal = self._architecture, f"{self._architecture}.attention.causal"
        if name in _WITHOUT_CACHE or self._metadata.get(causal) is False:
            raise Contradiction(
                f"architecture '{shown_name(name)}' generates no token after token: it is an "
                "encoder, or writes all tokens at once; give the file of a decoder"
            )
        stated = self._number("block_count", len(tensors.layers))
        predicting = self._number("nextn_predict_layers", 0)
        if len(tensors.layers) not in (stated, stated - predicting):
            raise Contradiction(f"{len(tensors.layers)} layers have tensors, {stated} are stated")
        if (computed := stated - predicting) <= 0:
            raise Contradiction(
                f"all of its {stated} layers predict further tokens; give the file of the whole "
                "model"
            )
        del tensors.layers[computed:]
        tensors.require_whole_layers()
        n_experts, used = self._experts()
        return LanguageModel(
            shown_name(self._architecture),
            tensors.embedding.shape[0],
            tensors.embedding.shape[1],
            self._number("context_length", 0),
            used,
            n_experts,
            tensors.parts(),
            tuple(self._cache(number, layer) for number, layer in enumerate(tensors.layers)),
            tensors.beside_layers(),
            tensors.head,
            tensors.tied,
            predicting=predicting,
        )

    def _experts(self) -> tuple[int, int]:
        """Number of experts of a layer, and of those that a token passes."""
        counts = self._tensors.expert_counts()
        layers, stated = self._tensors.layers, self._number("expert_count", 0)
        if not counts and not stated:
            return 0, 0
        routed = [number for number, layer in enumerate(layers) if has_experts(layer)]
        numbers = {self._of_layer("expert_used_count", number, 0) for number in routed or [0]}
        if len(numbers) > 1:
            shown = " and ".join(map(str, sorted(numbers)))
            raise Contradiction(f"its layers pass {shown} experts for a token, not one number")
        (used,) = numbers
        if counts != {stated} or not 0 < used <= stated:
            shown = " and ".join(map(str, sorted(counts))) or "no"
            raise Contradiction(
                f"tensors have {shown} experts, metadata {stated} of which a token passes {used}"
            )
        if any("ffn_gate_inp" not in layer for layer in layers if has_experts(layer)):
            raise Contradiction("a layer has experts and no router 'ffn_gate_inp'")
        return stated, used

    def _cache(self, number: int, layer: Mapping[str, GgufTensor]) -> Cache:
        state = self._state_bytes(number, layer)
        heads = self._of_layer("attention.head_count", number, 1)
        pairs = self._of_layer("attention.head_count_kv", number, heads)
        window = self._window(number)
        kind = "_swa" if window else ""
        width, values = self._lengths(heads, kind)
        flops, looked_up = 2.0 * heads * (width + values), 0
        if any(name.startswith("indexer") for name in layer):  # one more key, of the indexer
            looked_up = self._number("attention.indexer.key_length", 0)
        if latent := layer.get("attn_kv_a_mqa"):  # multi-head latent attention
            rank = self._number("attention.kv_lora_rank", latent.shape[-1])
            rank = self._number(f"attention.kv_lora_rank{kind}", rank)
            if "attn_kv_b" not in layer:  # the latent itself is kept, and serves as key and value
                own = latent.shape[-1]
                scores, queries = 2.0 * heads * (own + rank), 2 * heads * own
                return Cache(own + looked_up, window, scores, absorbed=queries)
            return Cache(heads * (width + values), window, flops, 0, math.gcd(width, values))
        if self._is_recurrent(number, layer):
            return Cache(state_bytes=state)
        if key := layer.get("attn_k"):
            elements = key.shape[-1] + layer.get("attn_v", key).shape[-1] + looked_up
        elif "attn_qkv" in layer:
            elements = pairs * (width + values)
        elif state or not pairs or not any(name.startswith("attn_output") for name in layer):
            return Cache(state_bytes=state)
        else:
            elements = 0
        shared = self._number("attention.shared_kv_layers", 0)
        if shared and number >= len(self._tensors.layers) - shared:
            elements = 0  # it reads the cache of an earlier layer
        elif not elements:
            raise Contradiction(
                f"layer {number} attends, and what it keeps for a token is not known"
            )
        return Cache(elements, window, flops, state, math.gcd(width, values))

    def _lengths(self, heads: int, kind: str = "") -> tuple[int, int]:
        """Elements of a head's key, and of its value.

        Args:
            heads: of the layer.
            kind: ``"_swa"`` for a layer with a window, which may have lengths of its own.
        """
        usual = self._width() // max(1, heads)
        names = ("attention.key_length", "attention.value_length")
        keys, values = (self._number(f"{n}{kind}", self._number(n, usual)) for n in names)
        return keys, values

    def _is_recurrent(self, number: int, layer: Mapping[str, GgufTensor]) -> bool:
        """True if a layer keeps a state instead of keys and values."""
        if period := _RECURRENT_BUT_EVERY.get(str(self._architecture)):
            period = self._number("full_attention_interval", period)
            return (number + 1) % max(1, period) != 0
        if not any(name.startswith("ssm_") for name in layer):
            return False
        return "attn_qkv" in layer or self._number("kda.head_dim", 0) > 0

    def _state_bytes(self, number: int, layer: Mapping[str, GgufTensor]) -> int:
        """Bytes of a recurrent state in f32, with what its convolution looks back at."""
        heads = self._of_layer("attention.head_count", number, 1)
        back = max(0, self._number("ssm.conv_kernel", 1) - 1)
        if any(name.startswith("ssm_") for name in layer):
            if size := self._number("kda.head_dim", 0):
                return 4 * heads * size * (size + 3 * back)
            inner, state = self._number("ssm.inner_size", 0), self._number("ssm.state_size", 0)
            groups = self._number("ssm.group_count", 0)
            return 4 * (inner * state + back * (inner + 2 * groups * state))
        if any(name.startswith("shortconv") for name in layer):
            return 4 * self._width() * max(0, self._number("shortconv.l_cache", 1) - 1)
        if any(name.startswith("time_mix") for name in layer):
            shifts = self._number("token_shift_count", 2)
            return 4 * self._width() * (shifts + self._number("wkv.head_size", 0))
        if self._is_recurrent(number, layer):
            size, _ = self._lengths(heads)
            return 4 * heads * size * size
        return 0

    def _window(self, number: int) -> int:
        name = str(self._architecture)
        stated = self._number("attention.sliding_window", _WINDOW.get(name, 0))
        window = engine_window(name, len(self._tensors.layers), stated)
        if name in _ALL_WITH_WINDOW:
            return window
        pattern = self._metadata.get(f"{name}.attention.sliding_window_pattern")
        if isinstance(pattern, tuple):
            return window if number < len(pattern) and pattern[number] else 0
        if not isinstance(pattern, int) or isinstance(pattern, bool):
            pattern = _PERIOD.get(name, 1)
        full = 0 if name in _FULL_FIRST else pattern - 1
        return window if not pattern or number % pattern != full else 0

    def _width(self) -> int:
        return self._tensors.embedding.shape[0]

    def _of_layer(self, key: str, number: int, default: int) -> int:
        """A number that may differ from layer to layer."""
        value = self._metadata.get(f"{self._architecture}.{key}")
        if not isinstance(value, tuple):
            return self._number(key, default)
        if number >= len(value):
            raise Contradiction(f"'{key}' has {len(value)} entries, fewer than there are layers")
        return _whole(key, value[number])

    def _number(self, key: str, default: int) -> int:
        return _whole(key, self._metadata.get(f"{self._architecture}.{key}", default))


def _whole(key: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 31:
        raise Contradiction(f"'{key}' must be a whole number, got {value!r:.40}")
    return value

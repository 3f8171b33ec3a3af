"""A GGUF file as a language model: which tensor belongs to which module, and what layers keep.

Names of tensors and keys are those of llama.cpp. Sizes come from the shapes of tensors where they
show them, and from metadata elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from placewright.errors import FileFormatError
from placewright.frameworks.language.gguf_file import GgufFile, GgufTensor, read_gguf_file
from placewright.frameworks.language.modules import Cache, LanguageModel, Part, Weight
from placewright.io.opened import shown_name

_LAYER = re.compile(r"blk\.(\d{1,6})\.(\w+)(?:\..*)?")
_MOST_LAYERS = 10_000
_ATTENTION = ("attn_", "ssm_", "shortconv", "post_attention_norm", "indexer", "time_mix")
_EXPERTS = re.compile(r"ffn_\w+_exps")
_SHARED = re.compile(r"ffn_\w+_(shexp|chexps)")
_OF_EXPERT_LAYERS = ("ffn_gate_inp", "exp_probs_b", "ffn_norm", "post_ffw_norm")
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
        found = re.fullmatch(r"(.*)-00001-of-(\d{5})\.gguf", path.name)
        if found is None or int(found[2]) != count:
            raise FileFormatError(
                f"file '{shown_name(path)}' is one of {count} parts; give the one whose name ends "
                f"with -00001-of-{count:05d}.gguf, beside the others"
            )
        parts = ("-".join((found[1], f"{n:05d}", "of", found[2])) for n in range(2, count + 1))
        names = [f"{part}.gguf" for part in parts]
        files += [read_gguf_file(path.with_name(name)) for name in names]
    whole = GgufFile(
        files[0].metadata,
        tuple(tensor for file in files for tensor in file.tensors),
        "".join(file.sha256 for file in files),
    )
    try:
        return _Model(whole).read(), whole.sha256
    except _Contradiction as fault:
        raise FileFormatError(f"file '{shown_name(path)}': {fault}") from None


class _Contradiction(Exception):
    """The rest of the sentence about a file."""


class _Model:
    def __init__(self, file: GgufFile) -> None:
        self._metadata = file.metadata
        self._tensors = {tensor.name: tensor for tensor in file.tensors}
        self._architecture = self._metadata.get("general.architecture")

    def read(self) -> LanguageModel:
        if not isinstance(self._architecture, str) or "token_embd.weight" not in self._tensors:
            raise _Contradiction("it holds no decoder: 'token_embd.weight' or its architecture is "
                                 "missing; give the file of the language model itself")  # fmt: skip
        embedding = self._tensors["token_embd.weight"]
        if len(embedding.shape) != 2:
            raise _Contradiction("'token_embd.weight' is no matrix")
        layers = self._layers()
        tied = "output.weight" not in self._tensors
        of_head = [t for t in self._tensors.values() if t.name.startswith("output")]
        known = {t.name for t in of_head}
        others = [
            tensor
            for name, tensor in self._tensors.items()
            if not _LAYER.fullmatch(name) and name not in known and tensor is not embedding
        ]
        for tensor in others:
            if not tensor.name.startswith(("token_", "position_", "rope_", "per_layer_")):
                raise _Contradiction(
                    f"tensor '{shown_name(tensor.name)}' belongs to no part of a decoder"
                )
        n_experts, used = self._experts(layers)
        return LanguageModel(
            shown_name(self._architecture),
            embedding.shape[0],
            embedding.shape[1],
            self._number("context_length", 0),
            used,
            n_experts,
            tuple(self._parts(layer) for layer in layers),
            tuple(self._cache(number, layer) for number, layer in enumerate(layers)),
            tuple(map(_weight, [embedding, *others])),
            tuple(map(_weight, of_head)),
            tied,
        )

    def _layers(self) -> list[dict[str, GgufTensor]]:
        """Tensors of each layer by the middle of their names, biases after a slash."""
        found: dict[int, dict[str, GgufTensor]] = {}
        for name, tensor in self._tensors.items():
            if match := _LAYER.fullmatch(name):
                own = f"{match[2]}/bias" if name.endswith(".bias") else match[2]
                layer = found.setdefault(int(match[1]), {})
                layer[f"{own}/{len(layer)}" if own in layer else own] = tensor
        stated = self._number("block_count", len(found))
        if not found or sorted(found) != list(range(len(found))) or stated != len(found):
            raise _Contradiction(f"{len(found)} layers have tensors, {stated} are stated")
        if len(found) > _MOST_LAYERS:
            raise _Contradiction(f"it has {len(found)} layers; at most {_MOST_LAYERS} are read")
        return [found[number] for number in range(len(found))]

    def _parts(self, layer: Mapping[str, GgufTensor]) -> dict[Part, tuple[Weight, ...]]:
        has_experts = _has_experts(layer)
        found: dict[Part, list[Weight]] = {}
        for name, tensor in layer.items():
            found.setdefault(_part(name, has_experts), []).append(_weight(tensor))
        return {part: tuple(weights) for part, weights in found.items()}

    def _experts(self, layers: list[dict[str, GgufTensor]]) -> tuple[int, int]:
        """Number of experts of a layer, and of those that a token passes."""
        counts = {
            layer[name].shape[-1] if len(layer[name].shape) == 3 else 0
            for layer in layers
            for name in layer
            if _EXPERTS.fullmatch(name)
        }
        stated, used = self._number("expert_count", 0), self._number("expert_used_count", 0)
        if not counts and not stated:
            return 0, 0
        if counts != {stated} or not 0 < used <= stated:
            shown = " and ".join(map(str, sorted(counts))) or "no"
            raise _Contradiction(
                f"tensors have {shown} experts, metadata {stated} of which a token passes {used}"
            )
        if any("ffn_gate_inp" not in layer for layer in layers if _has_experts(layer)):
            raise _Contradiction("a layer has experts and no router 'ffn_gate_inp'")
        return stated, used

    def _cache(self, number: int, layer: Mapping[str, GgufTensor]) -> Cache:
        state = self._state_bytes(layer)
        heads = self._of_layer("attention.head_count", number, 1)
        pairs = self._of_layer("attention.head_count_kv", number, heads)
        width = self._number("attention.key_length", self._width() // max(1, heads))
        values = self._number("attention.value_length", width)
        flops = 2.0 * heads * (width + values)
        if latent := layer.get("attn_kv_a_mqa"):  # multi-head latent attention
            rank = self._number("attention.kv_lora_rank", latent.shape[-1])
            if "attn_kv_b" not in layer:  # the latent itself is kept, and serves as key and value
                return Cache(latent.shape[-1], 0, 2.0 * heads * (latent.shape[-1] + rank))
            return Cache(heads * (width + values), 0, flops)
        if key := layer.get("attn_k"):
            elements = key.shape[-1] + layer.get("attn_v", key).shape[-1]
        elif "attn_qkv" in layer and not state:
            elements = pairs * (width + values)
        else:
            return Cache(state_bytes=state)
        shared = self._number("attention.shared_kv_layers", 0)
        if number >= self._number("block_count", 0) - shared and shared:
            elements = 0  # it reads the cache of an earlier layer
        return Cache(elements, self._window(number), flops, state)

    def _state_bytes(self, layer: Mapping[str, GgufTensor]) -> int:
        """Bytes of a recurrent state in f32, with what its convolution looks back at."""
        if any(name.startswith("ssm_") for name in layer):
            inner, state = self._number("ssm.inner_size", 0), self._number("ssm.state_size", 0)
            groups = self._number("ssm.group_count", 0)
            back = max(0, self._number("ssm.conv_kernel", 1) - 1)
            return 4 * (inner * state + back * (inner + 2 * groups * state))
        if any(name.startswith("shortconv") for name in layer):
            return 4 * self._width() * max(0, self._number("shortconv.l_cache", 1) - 1)
        return 0

    def _window(self, number: int) -> int:
        name = str(self._architecture)
        window = self._number("attention.sliding_window", _WINDOW.get(name, 0))
        pattern = self._metadata.get(f"{name}.attention.sliding_window_pattern")
        if isinstance(pattern, tuple):
            return window if number < len(pattern) and pattern[number] else 0
        if not isinstance(pattern, int) or isinstance(pattern, bool):
            layers = self._number("block_count", 0)
            has_any = _WITH_WINDOWS.get(name, layers) == layers
            pattern = _PERIOD.get(name, 1) if has_any else 1
        full = 0 if name in _FULL_FIRST else pattern - 1
        return window if pattern > 1 and number % pattern != full else 0

    def _width(self) -> int:
        return self._tensors["token_embd.weight"].shape[0]

    def _of_layer(self, key: str, number: int, default: int) -> int:
        """A number that may differ from layer to layer."""
        value = self._metadata.get(f"{self._architecture}.{key}")
        if not isinstance(value, tuple):
            return self._number(key, default)
        if number >= len(value):
            raise _Contradiction(f"'{key}' has {len(value)} entries, fewer than there are layers")
        return _whole(key, value[number])

    def _number(self, key: str, default: int) -> int:
        return _whole(key, self._metadata.get(f"{self._architecture}.{key}", default))


def _whole(key: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 31:
        raise _Contradiction(f"'{key}' must be a whole number, got {value!r:.40}")
    return value


def _has_experts(layer: Mapping[str, GgufTensor]) -> bool:
    return any(_EXPERTS.fullmatch(name) for name in layer)


def _part(name: str, has_experts: bool) -> Part:
    """The module of a tensor of a layer, by the middle of its name."""
    if name.startswith(_ATTENTION):
        return "attention"
    if not has_experts:
        return "feed-forward"
    if _SHARED.match(name) or name.startswith("ffn_gate_inp_shexp"):
        return "shared-experts"
    if _EXPERTS.match(name):
        return "experts"
    return "router" if name.startswith(_OF_EXPERT_LAYERS) else "feed-forward"


def _weight(tensor: GgufTensor) -> Weight:
    multiplies = len(tensor.shape) > 1
    return Weight(tensor.n_elements, tensor.n_bytes, tensor.dtype, multiplies)

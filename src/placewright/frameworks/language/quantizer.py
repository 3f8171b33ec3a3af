"""Formats that llama.cpp's quantizer gives to each tensor of a model.

The rule is that of llama.cpp 0.25 (`src/llama-quant.cpp`: `tensor_allows_quantization`,
`llama_tensor_get_type_impl`, `tensor_type_fallback`), without an importance matrix. Tensors that it
leaves alone have the format that its converter gives them (`conversion/base.py`, function
`prepare_tensors`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from placewright.errors import FieldError, near_names, optional_library

Shape = tuple[int, ...]  # the contiguous dimension first

# name of --weights -> format of most tensors
FORMATS: Mapping[str, str] = {
    "f32": "f32", "f16": "f16", "bf16": "bf16", "q8_0": "q8_0", "q4_0": "q4_0", "q4_1": "q4_1",
    "q5_0": "q5_0", "q5_1": "q5_1", "q2_k": "q2_k", "q3_k_s": "q3_k", "q3_k_m": "q3_k",
    "q3_k_l": "q3_k", "q4_k_s": "q4_k", "q4_k_m": "q4_k", "q5_k_s": "q5_k", "q5_k_m": "q5_k",
    "q6_k": "q6_k", "iq4_nl": "iq4_nl", "iq4_xs": "iq4_xs", "iq3_s": "iq3_s", "iq3_m": "iq3_s",
    "mxfp4_moe": "mxfp4",
}  # fmt: skip
_ALIASES = {"q3_k": "q3_k_m", "q4_k": "q4_k_m", "q5_k": "q5_k_m"}
_WITH_MATRIX = ("iq1_", "iq2_", "iq3_x", "q2_k_s")  # formats that need an importance matrix
_PLAIN = ("f32", "f16", "bf16")
_FALLBACK = {
    "iq3_s": "iq4_nl", "iq4_xs": "iq4_nl", "q2_k": "q4_0", "q3_k": "q4_0", "q4_k": "q5_0",
    "q5_k": "q5_1", "q6_k": "q8_0",
}  # fmt: skip
_FINER_WITH_EIGHT_EXPERTS = (
    "q2_k", "q3_k_s", "q3_k_m", "iq4_nl", "q4_k_s", "q4_k_m", "iq3_s", "iq3_m", "iq4_xs",
)  # fmt: skip
_NEVER = (
    "_norm.weight", "ffn_gate_inp.weight", "altup", "laurel", "per_layer_model_proj",
    "ssm_conv1d", "shortconv.conv.weight", "indexer.k_proj.weight", "indexer.q_proj.weight",
    "attn_rel_b.weight", "time_mix_first.weight", "time_mix_w0.weight", "time_mix_w1.weight",
    "time_mix_w2.weight", "time_mix_decay_w1.weight", "time_mix_decay_w2.weight",
    "time_mix_lerp_fused.weight",
)  # fmt: skip
_SINGLE = re.compile(  # tensors that the converter keeps in f32
    r".*_norm\.weight|.*ffn_gate_inp(_shexp)?\.weight|(position_embd|token_types)\.weight|"
    r".*(ssm_conv1d(_[qkv])?|shortconv\.conv|indexer\.proj|altup_(correct|predict)_coef|"
    r"time_mix_(first|w1|w2|decay_w1|decay_w2|lerp_fused))\.weight|(?!.*\.weight$).*"
)
_Kind = Literal["output", "embedding", "value", "key", "down", "attention-output", "other"]
_KINDS: tuple[tuple[str, _Kind], ...] = (
    ("attn_qkv.weight", "value"), ("attn_kv_b.weight", "value"), ("attn_v.weight", "value"),
    ("attn_k.weight", "key"), ("attn_q.weight", "other"),
    ("attn_output.weight", "attention-output"), ("ffn_up", "other"), ("ffn_gate", "other"),
    ("ffn_down", "down"),
)  # fmt: skip


@dataclass(frozen=True)
class ModelSizes:
    """Sizes of a model that decide on formats."""

    architecture: str  # of llama.cpp
    layers: int  # number of them
    heads: int  # of attention, in the first layer
    key_heads: int  # heads of keys and values there
    experts: int  # of a layer; 0 without
    tied: bool  # the head has no matrix of its own

    @property
    def shared_heads(self) -> int:
        """Heads that share a key (0 without attention)."""
        return self.heads // self.key_heads if self.key_heads else 0

    @property
    def is_70b(self) -> bool:
        """True if llama.cpp takes it for a model of 70 billion parameters."""
        uneven = self.heads != self.key_heads
        return self.architecture == "llama" and self.layers == 80 and uneven


def format_named(name: str) -> str:
    """The format of llama.cpp's quantizer that a user means.

    >>> format_named("Q4_K")
    'q4_k_m'

    Raises:
        FieldError: there is no such format, or its sizes depend on an importance matrix.
    """
    if not isinstance(name, str):
        raise FieldError("weights", f"is the name of a format, got {name!r:.40}")
    known = _ALIASES.get(name.lower(), name.lower())
    if known in FORMATS:
        return known
    if known.startswith(_WITH_MATRIX):
        raise FieldError(
            "weights", f"'{name:.40}' needs an importance matrix; give one of {', '.join(FORMATS)}"
        )
    raise FieldError(
        "weights", f"'{name:.40}' is no format{_meant(known)}; available: {', '.join(FORMATS)}"
    )


def _meant(name: str) -> str:
    """The formats that were perhaps meant: those that begin with a short name, or are like it."""
    near = [known for known in FORMATS if name and known.startswith(name)]
    near = near or list(near_names(name, tuple(FORMATS)))
    return f"; did you mean {' or '.join(near)}?" if near else ""


def formats_of(shapes: Mapping[str, Shape], sizes: ModelSizes, weights: str) -> dict[str, str]:
    """Format of each tensor of a model, as the quantizer chooses it.

    Args:
        shapes: name of llama.cpp -> dimensions, the contiguous one first.
        weights: one of `FORMATS`.
    """
    rule = _Rule(sizes, weights, sum(_kind(name) == "value" for name in shapes))
    return {name: rule.format_of(name, shapes[name]) for name in _in_order(shapes)}


def bytes_of(elements: int, dtype: str) -> int:
    """Bytes of a tensor in a format.

    Raises:
        MissingExtraError: package `gguf`, which knows the blocks, is not installed.
    """
    optional_library("gguf.constants", "language", "formats of weights")
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    block, size = GGML_QUANT_SIZES[GGMLQuantizationType[dtype.upper()]]
    return elements // block * size


@dataclass
class _Rule:
    sizes: ModelSizes
    weights: str
    n_values: int
    values_seen: int = field(default=0, init=False)
    downs_seen: int = field(default=0, init=False)

    def format_of(self, name: str, shape: Shape) -> str:
        """Format of the next tensor; tensors come in the order of the quantizer."""
        default = FORMATS[self.weights]
        stored = default if default in _PLAIN else "f16"
        if _dimensions(shape) < 2 or _SINGLE.fullmatch(name):
            return "f32"
        if any(part in name for part in _NEVER) or default in _PLAIN:
            return stored
        return _that_fits(self._mixed(name, shape, default), shape[0])

    def _mixed(self, name: str, shape: Shape, default: str) -> str:
        """The format before the shape of the tensor is considered."""
        kind = _kind(name)
        if kind == "output" or (self.sizes.tied and kind == "embedding"):
            return self._of_head(shape[0], default)
        if self.weights == "mxfp4_moe":
            return "mxfp4" if len(shape) > 2 and shape[2] > 1 else "q8_0"
        if kind == "value":
            found = self._of_values(default)
            self.values_seen += 1
            return found
        if kind == "down":
            found = self._of_down(name, default)
            self.downs_seen += 1
            return found
        if kind == "key" and self.sizes.experts == 8:
            return "q8_0"
        return self._of_attention_output(default) if kind == "attention-output" else default

    def _of_head(self, width: int, default: str) -> str:
        if self.weights == "mxfp4_moe" or self.sizes.architecture == "falcon":
            return "q8_0"
        if width % _block(default):
            return "q8_0"
        return default if default == "q8_0" else "q6_k"

    def _of_values(self, default: str) -> str:
        found, sharing = default, self.sizes.shared_heads >= 4
        at, weights = self.values_seen, self.weights
        if weights == "q2_k":
            found = "q4_k" if sharing else "q3_k"
        elif weights in ("iq3_m", "q3_k_m"):
            found = "q5_k" if weights == "q3_k_m" and at < 2 else "q4_k"
        elif weights == "iq3_s" and sharing:
            found = "q4_k"
        elif weights == "q3_k_l" or (weights in ("iq4_nl", "iq4_xs") and sharing):
            found = "q5_k"
        elif weights in ("q4_k_m", "q5_k_m") and _use_more_bits(at, self.n_values):
            found = "q6_k"
        elif weights == "q4_k_s" and at < 4:
            found = "q5_k"
        if self.sizes.is_70b and found in ("q3_k", "q4_k"):
            found = "q5_k"
        return "q8_0" if self.sizes.experts == 8 else found

    def _of_down(self, name: str, default: str) -> str:
        layers, weights = self.sizes.layers, self.weights
        at = int(name.split(".")[1]) if self.sizes.experts > 1 else self.downs_seen
        falcon = self.sizes.architecture == "falcon"
        more, early, first = _use_more_bits(at, layers), at < layers // 8, at < layers // 16
        if weights == "q2_k":
            return "q3_k"
        if weights == "q3_k_m":
            return "q5_k" if first else "q4_k" if more or not falcon else "q3_k"
        if weights == "iq3_m" and (early or (self.sizes.experts == 8 and more)):
            return "q4_k"
        if weights == "q3_k_l":
            return "q4_k" if falcon else "q5_k"
        if weights == "q4_k_m" and falcon:
            return "q6_k" if first else "q5_k" if more else "q4_k"
        if weights in ("q4_k_m", "q5_k_m") and more:
            return "q6_k"
        if early and (weights in ("iq4_nl", "iq4_xs") or (weights == "q4_k_s" and not falcon)):
            return "q5_k"
        return default

    def _of_attention_output(self, default: str) -> str:
        weights = self.weights
        if self.sizes.architecture == "falcon":
            return "q4_k" if weights == "q3_k_l" else default
        if self.sizes.experts == 8:
            return "q5_k" if weights in _FINER_WITH_EIGHT_EXPERTS else default
        mixed = {"q2_k": "q3_k", "q3_k_m": "q4_k", "q3_k_l": "q5_k", "iq3_m": "q4_k"}
        return mixed.get(weights, default)


def _use_more_bits(at: int, count: int) -> bool:
    """The first and the last eighth of layers, and each third one between them."""
    early = count // 8
    return at < early or at >= 7 * count // 8 or (at - early) % 3 == 2


def _that_fits(dtype: str, width: int) -> str:
    """The format, or one with shorter blocks that divide a row."""
    if width % _block(dtype) == 0:
        return dtype
    found = _FALLBACK.get(dtype, dtype)
    return found if width % _block(found) == 0 else "f16"


def _block(dtype: str) -> int:
    """Elements of a block."""
    return 256 if dtype.endswith("_k") or dtype in ("iq4_xs", "iq3_s") else 32


def _kind(name: str) -> _Kind:
    if name == "output.weight":
        return "output"
    if name in ("token_embd.weight", "per_layer_token_embd.weight"):
        return "embedding"
    return next((kind for part, kind in _KINDS if part in name), "other")


def _dimensions(shape: Shape) -> int:
    """Number of dimensions, without those of size 1 at the end."""
    return max((at + 1 for at, size in enumerate(shape) if size > 1), default=1)


def _in_order(names: Iterable[str]) -> list[str]:
    """The order in which the quantizer sees tensors: by layer, then by name."""

    def key(name: str) -> tuple[int, str]:
        found = re.match(r"blk\.(\d+)\.", name)
        return (int(found[1]) if found else -1, name)

    return sorted(names, key=key)

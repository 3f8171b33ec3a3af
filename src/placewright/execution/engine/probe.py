"""Small models of random weights, with which an engine's speed by format is measured.

Weights are as those of trained models. Products of zeros were measured 1.28 times as fast as others
on servers, and those of integers of three bits 1.06 to 1.1 times. Embedding and router have larger
numbers, so that tokens differ and are routed to different experts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from placewright.errors import InputError, optional_library

EXPERTS, USED = 8, 2
_HEAD = 64  # elements of a head of attention
_CONTEXT = 4096
_DEVIATION = 0.03  # of weights
_QUANTIZED = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")  # by the package
# Format that the package does not make -> the bytes of a block that are scales in f16.
_SCALES = {
    "Q2_K": slice(-4, None),
    "Q3_K": slice(-2, None),
    "Q4_K": slice(0, 4),
    "Q5_K": slice(0, 4),
    "Q6_K": slice(-2, None),
    "IQ4_NL": slice(0, 2),
    "IQ4_XS": slice(0, 2),
}
# Bits of random bytes: a scale in f16 made of two such bytes is below 2.5e-4, and finite.
_SMALL_BITS = 0x0B


@dataclass(frozen=True)
class Probe:
    """A model to measure with."""

    layers: int  # number
    # hidden, feed: elements of the state, and of the middle of a feed-forward module
    hidden: int
    feed: int
    dtype: str  # of matrices, for example ``"q4_k"``
    has_experts: bool = False  # feed-forward modules are routed experts
    vocabulary: int = 256  # tokens

    @property
    def operations(self) -> tuple[float, float]:
        """Operations per token of a layer: of dense products, and of experts."""
        attention, feed = 8.0 * self.hidden**2, 6.0 * self.hidden * self.feed
        return (attention, USED * feed) if self.has_experts else (attention + feed, 0.0)

    @property
    def kernels(self) -> int:
        """Kernels of a layer, as `frameworks.language.work` counts them."""
        return 24 if self.has_experts else 16

    @property
    def scores(self) -> float:
        """Operations of attention per pair of tokens in a layer."""
        return 4.0 * self.hidden


def write_probe(path: Path, probe: Probe) -> None:
    """Write a probe as a file of llama.cpp.

    Raises:
        InputError: there is no such format.
        MissingExtraError: package `gguf` is not installed.
    """
    optional_library("gguf.constants", "language", "measuring an engine")
    from gguf import GGMLQuantizationType, GGUFWriter

    if probe.dtype.upper() not in GGMLQuantizationType.__members__:
        raise InputError(f"there is no format '{probe.dtype}' of weights")
    kind = GGMLQuantizationType[probe.dtype.upper()]
    name = "qwen3moe" if probe.has_experts else "llama"
    writer = GGUFWriter(str(path), name)
    for key, value in probe_numbers(probe).items():
        writer.add_uint32(f"{name}.{key}", value)
    writer.add_float32(f"{name}.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_string("tokenizer.ggml.model", "no_vocab")
    rng = np.random.default_rng(0)
    for tensor, shape in probe_tensors(probe).items():
        if len(shape) == 1:
            writer.add_tensor(tensor, np.ones(shape, np.float32))
        elif "embd" in tensor or "gate_inp" in tensor:
            writer.add_tensor(tensor, rng.normal(0, 0.05, shape).astype(np.float32))
        else:
            writer.add_tensor(tensor, _weights(rng, shape, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _weights(rng: np.random.Generator, shape: tuple[int, ...], kind: Any) -> Any:
    """Random weights of a format as bytes, (..., bytes of a row)."""
    from gguf.constants import GGML_QUANT_SIZES
    from gguf.quants import quantize

    if kind.name in _QUANTIZED:
        numbers = rng.standard_normal(shape, dtype=np.float32) * np.float32(_DEVIATION)
        return np.ascontiguousarray(quantize(numbers, kind)).view(np.uint8)
    block, size = GGML_QUANT_SIZES[kind]
    drawn = np.frombuffer(rng.bytes(math.prod(shape) // block * size), np.uint8)
    blocks = drawn.reshape(-1, size).copy()
    blocks[:, _SCALES.get(kind.name, slice(None))] &= _SMALL_BITS
    return blocks.reshape(*shape[:-1], shape[-1] // block * size)


def probe_numbers(probe: Probe) -> dict[str, int]:
    """Sizes of a probe, by their names in its file, without that of the architecture."""
    heads = probe.hidden // _HEAD
    found = {
        "block_count": probe.layers,
        "context_length": _CONTEXT,
        "embedding_length": probe.hidden,
        "attention.head_count": heads,
        "attention.head_count_kv": heads,
        "attention.key_length": _HEAD,
        "attention.value_length": _HEAD,
        "feed_forward_length": probe.feed,
        "rope.dimension_count": _HEAD,
        "vocab_size": probe.vocabulary,
    }
    if probe.has_experts:
        of_experts = {"expert_count": EXPERTS, "expert_used_count": USED}
        found |= {**of_experts, "expert_feed_forward_length": probe.feed}
    return found


def probe_tensors(probe: Probe) -> dict[str, tuple[int, ...]]:
    """Shapes of a probe's tensors, rows first."""
    hidden, feed = probe.hidden, probe.feed
    own: dict[str, tuple[int, ...]] = {
        "attn_norm": (hidden,),
        **{f"attn_{part}": (hidden, hidden) for part in ("q", "k", "v", "output")},
        "ffn_norm": (hidden,),
    }
    products = {"ffn_gate": (feed, hidden), "ffn_up": (feed, hidden), "ffn_down": (hidden, feed)}
    if probe.has_experts:
        own |= {"attn_q_norm": (_HEAD,), "attn_k_norm": (_HEAD,), "ffn_gate_inp": (EXPERTS, hidden)}
        own |= {f"{key}_exps": (EXPERTS, *shape) for key, shape in products.items()}
    else:
        own |= products
    ends = {"token_embd": (probe.vocabulary, hidden), "output_norm": (hidden,)}
    layers = {f"blk.{n}.{key}": shape for n in range(probe.layers) for key, shape in own.items()}
    whole: dict[str, tuple[int, ...]] = {**ends, "output": (probe.vocabulary, hidden), **layers}
    return {f"{key}.weight": shape for key, shape in whole.items()}

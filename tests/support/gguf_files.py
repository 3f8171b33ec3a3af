"""GGUF files with random weights, written with the package of llama.cpp."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.constants import GGML_QUANT_SIZES

HIDDEN, FEED, VOCABULARY = 256, 512, 32_000
HEADS, PAIRS, WIDTH = 4, 2, 64  # heads, heads of keys and values, elements of a head
Shape = tuple[int, ...]  # rows first, as NumPy has it


@dataclass(frozen=True)
class Made:
    """A model to write.

    Attributes:
        architecture: of llama.cpp.
        layers: tensors of each layer, without `blk.N.` and `.weight`.
        numbers: metadata under the architecture's name.
        tied: no output matrix.
        dtype: format of matrices.
        others: tensors of no layer.
    """

    architecture: str
    layers: tuple[Mapping[str, Shape], ...]
    numbers: Mapping[str, Any] = field(default_factory=dict)
    tied: bool = False
    dtype: str = "Q4_K"
    others: Mapping[str, Shape] = field(default_factory=dict)


ATTENTION: Mapping[str, Shape] = {
    "attn_norm": (HIDDEN,),
    "attn_q": (HEADS * WIDTH, HIDDEN),
    "attn_k": (PAIRS * WIDTH, HIDDEN),
    "attn_v": (PAIRS * WIDTH, HIDDEN),
    "attn_output": (HIDDEN, HEADS * WIDTH),
}
DENSE: Mapping[str, Shape] = {
    "ffn_norm": (HIDDEN,),
    "ffn_gate": (FEED, HIDDEN),
    "ffn_up": (FEED, HIDDEN),
    "ffn_down": (HIDDEN, FEED),
}
EXPERTS: Mapping[str, Shape] = {
    "ffn_norm": (HIDDEN,),
    "ffn_gate_inp": (8, HIDDEN),
    "ffn_gate_exps": (8, 256, HIDDEN),
    "ffn_up_exps": (8, 256, HIDDEN),
    "ffn_down_exps": (8, HIDDEN, 256),
}
SHARED: Mapping[str, Shape] = {
    "ffn_gate_shexp": (256, HIDDEN),
    "ffn_up_shexp": (256, HIDDEN),
    "ffn_down_shexp": (HIDDEN, 256),
}
LATENT: Mapping[str, Shape] = {  # rank 256, of which keys have 32 more for positions
    "attn_norm": (HIDDEN,),
    "attn_q": (HEADS * 96, HIDDEN),
    "attn_kv_a_mqa": (288, HIDDEN),
    "attn_kv_a_norm": (256,),
    "attn_output": (HIDDEN, HEADS * 64),
}
ABSORBED: Mapping[str, Shape] = {**LATENT, "attn_k_b": (HEADS, 256, 256), "attn_v_b": (64, 256)}
EXPANDED: Mapping[str, Shape] = {**LATENT, "attn_kv_b": (HEADS * 128, 256)}
LINEAR: Mapping[str, Shape] = {
    "attn_norm": (HIDDEN,),
    "attn_qkv": (1024, HIDDEN),
    "ssm_conv1d": (1024, 256),
    "ssm_a": (8,),
    "ssm_out": (HIDDEN, 512),
}
EIGHT: Mapping[str, Any] = {"expert_count": 8, "expert_used_count": 2}
MLA: Mapping[str, Any] = {
    "attention.kv_lora_rank": 256,
    "attention.key_length": 96,
    "attention.value_length": 64,
    "attention.head_count_kv": HEADS,
    **EIGHT,
}
STATE: Mapping[str, Any] = {
    "ssm.inner_size": 512,
    "ssm.state_size": 64,
    "ssm.group_count": 4,
    "ssm.conv_kernel": 4,
}
FUSED = {k: v for k, v in ATTENTION.items() if k not in ("attn_q", "attn_k", "attn_v")}
MADE: Mapping[str, Made] = {
    "dense": Made("llama", ({**ATTENTION, **DENSE},) * 3),
    "tied": Made("llama", ({**ATTENTION, **DENSE},) * 2, tied=True, dtype="Q8_0"),
    "half": Made("qwen2", ({**ATTENTION, **DENSE},) * 2, dtype="F16"),
    "fused": Made(
        "phi3", ({**FUSED, "attn_qkv": (HEADS * WIDTH + 2 * PAIRS * WIDTH, HIDDEN), **DENSE},) * 2
    ),
    "windows": Made("gemma3", ({**ATTENTION, **DENSE},) * 7, {"attention.sliding_window": 512}),
    "alternating": Made(
        "gpt-oss",
        ({**ATTENTION, **EXPERTS},) * 2,
        {"attention.sliding_window": 128, **EIGHT},
    ),
    "experts": Made("qwen3moe", ({**ATTENTION, **EXPERTS},) * 2, EIGHT, dtype="Q8_0"),
    "latent": Made(
        "deepseek2",
        ({**ABSORBED, **DENSE}, {**ABSORBED, **EXPERTS, **SHARED}),
        MLA,
    ),
    "expanded": Made(
        "deepseek2",
        ({**EXPANDED, **DENSE}, {**EXPANDED, **EXPERTS, **SHARED}),
        MLA,
    ),
    "hybrid": Made(
        "qwen3next",
        (*({**LINEAR, **EXPERTS, **SHARED},) * 3, {**ATTENTION, **EXPERTS, **SHARED}),
        {**EIGHT, **STATE},
    ),
}


def write_gguf(
    path: Path,
    made: Made,
    rng: np.random.Generator,
    *,
    vocabulary: int = VOCABULARY,
    parts: int = 1,
    has_ends: bool = True,
) -> Path:
    """Write a model with random bytes as weights.

    Args:
        path: of the file.
        made: the model, or what of it is in this part.
        rng: draws the bytes.
        vocabulary: number of tokens.
        parts: number of files that the model is in.
        has_ends: False leaves out the embedding and the head.
    """
    writer = GGUFWriter(str(path), made.architecture)
    numbers = {
        "block_count": len(made.layers),
        "context_length": 8192,
        "embedding_length": HIDDEN,
        "attention.head_count": HEADS,
        "attention.head_count_kv": PAIRS,
        **made.numbers,
    }
    for key, value in numbers.items():
        adds = {bool: writer.add_bool, list: writer.add_array}
        add = adds.get(type(value), writer.add_uint32)
        add(f"{made.architecture}.{key}", value)
    if parts > 1:
        writer.add_uint16("split.count", parts)
        writer.add_uint16("split.no", int(path.stem.split("-")[-3]) - 1)
    writer.add_array("tokenizer.ggml.tokens", [f"t{n}" for n in range(vocabulary)])
    writer.add_array("tokenizer.ggml.scores", [float(n) for n in range(vocabulary)])
    tensors: dict[str, Shape] = {}
    if has_ends:
        tensors |= {"token_embd": (vocabulary, HIDDEN), "output_norm": (HIDDEN,)}
        tensors |= {} if made.tied else {"output": (vocabulary, HIDDEN)}
    tensors |= made.others
    for number, layer in enumerate(made.layers):
        tensors |= {f"blk.{number}.{name}": shape for name, shape in layer.items()}
    for name, shape in tensors.items():
        kind = GGMLQuantizationType[made.dtype if len(shape) > 1 else "F32"]
        block, size = GGML_QUANT_SIZES[kind]
        data = rng.integers(0, 256, (*shape[:-1], shape[-1] // block * size), dtype=np.uint8)
        writer.add_tensor(f"{name}.weight", data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path

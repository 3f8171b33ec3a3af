"""Parameters of `transformers` under the names of llama.cpp's tensors.

Names come from the table of package `gguf`. Some parameters become two tensors, as in `conversion/`
of llama.cpp 0.25: gate and up of experts, the expansion of a latent, and the projection of linear
attention with its gate.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from placewright.errors import optional_library
from placewright.frameworks.language.modules import Cache
from placewright.frameworks.language.named_tensors import Contradiction

Shape = tuple[int, ...]


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
    # paths of parameters and buffers, a tied one under each of its names; none of a part of a model
    state: tuple[str, ...]

    @property
    def architecture(self) -> str:
        """The architecture of llama.cpp whose file the converter writes."""
        found = ARCHITECTURES[self.model_type]
        has_experts = any(
            ".experts." in name or ".block_sparse_moe." in name for name in self.shapes
        )
        if found == "nemotron_h":
            return "nemotron_h_moe" if has_experts else found
        if found == "granitehybrid" and not any(".mamba." in name for name in self.shapes):
            return "granitemoe" if has_experts else "granite"
        return found


# type of a model in transformers -> architecture of llama.cpp
ARCHITECTURES: Mapping[str, str] = {
    "afmoe": "afmoe", "apertus": "apertus", "arcee": "arcee", "bamba": "granitehybrid",
    "bloom": "bloom", "cohere": "command-r", "cohere2": "cohere2", "deepseek_v2": "deepseek2",
    "deepseek_v3": "deepseek2", "dots1": "dots1", "ernie4_5": "ernie4_5",
    "ernie4_5_moe": "ernie4_5-moe", "exaone4": "exaone4", "exaone_moe": "exaone-moe",
    "falcon": "falcon", "falcon_h1": "falcon-h1", "falcon_mamba": "mamba", "gemma": "gemma",
    "gemma2": "gemma2", "gemma3_text": "gemma3", "gemma3n_text": "gemma3n", "gemma4_text": "gemma4",
    "glm": "chatglm", "glm4": "glm4", "glm4_moe": "glm4moe", "glm4_moe_lite": "deepseek2",
    "gpt2": "gpt2", "gpt_bigcode": "starcoder", "gpt_neox": "gptneox", "gpt_oss": "gpt-oss",
    "granite": "granite", "granitemoe": "granitemoe", "granitemoehybrid": "granitehybrid",
    "granitemoeshared": "granitemoe", "hunyuan_v1_dense": "hunyuan-dense",
    "hunyuan_v1_moe": "hunyuan-moe", "internlm3": "llama", "jais2": "jais2", "jamba": "jamba",
    "lfm2": "lfm2", "lfm2_moe": "lfm2moe", "llama": "llama", "llama4_text": "llama4",
    "mamba": "mamba", "mamba2": "mamba2", "mimo_v2_flash": "mimo2", "minimax_m2": "minimax-m2",
    "ministral": "llama", "ministral3": "mistral3", "mistral": "llama", "mixtral": "llama",
    "mpt": "mpt", "nemotron": "nemotron", "nemotron_h": "nemotron_h", "olmo": "olmo",
    "olmo2": "olmo2", "olmo3": "olmo2", "olmoe": "olmoe", "phi": "phi2", "phi3": "phi3",
    "phimoe": "phimoe", "qwen2": "qwen2", "qwen2_5_vl_text": "qwen2vl", "qwen2_moe": "qwen2moe",
    "qwen2_vl_text": "qwen2vl", "qwen3": "qwen3", "qwen3_5_moe_text": "qwen35moe",
    "qwen3_5_text": "qwen35", "qwen3_moe": "qwen3moe", "qwen3_next": "qwen3next",
    "qwen3_vl_moe_text": "qwen3vlmoe", "qwen3_vl_text": "qwen3vl", "seed_oss": "seed_oss",
    "smollm3": "smollm3", "solar_open": "glm4moe", "stablelm": "stablelm",
    "starcoder2": "starcoder2",
}  # fmt: skip
# type of a model that the library lacks -> the type whose parameters it has, as its own code says
SAME: Mapping[str, str] = {"kimi_k2": "deepseek_v3"}
_SUFFIXES = (".weight", ".bias")
_SCALES = {".router.scale": "ffn_gate_inp", ".router.per_expert_scale": "ffn_down_exps"}
_STACKED = re.compile(r"\.altup_\w+\.(\d+)\.")  # matrices of a list, which become one tensor
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
        optional_library("gguf.constants", "language", "names of tensors")
        from gguf import MODEL_ARCH_NAMES, MODEL_TENSOR, MODEL_TENSORS, get_tensor_name_map

        self._model, self._sizes = model, model.sizes
        own = model.architecture
        number = next((key for key, name in MODEL_ARCH_NAMES.items() if name == own), None)
        if number is None:
            raise Contradiction(f"package `gguf` lacks architecture '{own}'; install a newer one")
        self._map = get_tensor_name_map(number, self._sizes["num_hidden_layers"])
        self._splits_latent = MODEL_TENSOR.ATTN_K_B in MODEL_TENSORS[number]

    def tensors(self, name: str) -> Iterator[tuple[str, Shape]]:
        """Tensors that a parameter becomes."""
        shape = self._model.shapes[name]
        stem, _, last = name.rpartition(".")
        if last in ("gate_up_proj", "gate_up_proj_bias") and stem.endswith("experts"):
            yield from self._gate_and_up(stem, shape, last.endswith("_bias"))
        elif last == "up_proj" and stem.endswith("experts"):  # without a gate
            yield f"{self._layer(stem)}ffn_up_exps.weight", shape[::-1]
        elif last in ("down_proj", "down_proj_bias") and stem.endswith("experts"):
            yield self._down(stem, shape, last.endswith("_bias"))
        elif name.endswith(".kv_b_proj.weight") and self._splits_latent:
            yield from self._expansion(name, shape)
        elif name.endswith(".in_proj_qkvz.weight"):
            yield from self._linear_attention(name, shape)
        elif ".shared_mlp.input_linear." in name or ".shared_mlp.output_linear." in name:
            yield from self._shared(name, shape)
        elif name.endswith(tuple(_SCALES)):
            yield f"{self._layer(stem)}{_SCALES[f'.router.{last}']}.scale", shape
        elif found := _STACKED.search(name):
            stack = sum(other.startswith(name[: found.start(1)]) for other in self._model.shapes)
            if found[1] == "0":
                yield self._named(name.replace(".0.", ".")), (*self._reversed(name, shape), stack)
        elif stem.endswith(".act_fn"):  # llama.cpp has such numbers in the header
            yield f"{self._layer(stem)}ffn_{last}", shape
        else:
            yield self._named(name), self._reversed(name, shape)

    def _named(self, name: str) -> str:
        for own, known in _RENAMED:
            name = name.replace(own, known)
        name = f"{name}.weight" if name.endswith(".sinks") else name
        for tried in (
            name,
            name.removeprefix("transformer."),
            name.replace("model.", "backbone.", 1).replace(".dt_proj.", ".dt."),
        ):
            if (found := self._map.get_name(tried, try_suffixes=_SUFFIXES)) is not None:
                return str(found)
        raise Contradiction(f"parameter '{name}' has no name in llama.cpp")

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
        is_turned = shape[2] == hidden != shape[1]
        return f"{name}.weight", ((*shape[1:], shape[0]) if is_turned else shape[::-1])

    def _expansion(self, name: str, shape: Shape) -> Iterator[tuple[str, Shape]]:
        heads, rank = self._sizes["num_attention_heads"], shape[1]
        keys = self._sizes["qk_nope_head_dim"]
        yield f"{self._layer(name)}attn_k_b.weight", (keys, rank, heads)
        yield f"{self._layer(name)}attn_v_b.weight", (rank, shape[0] // heads - keys, heads)

    def _shared(self, name: str, shape: Shape) -> Iterator[tuple[str, Shape]]:
        """Tensors of a network beside experts, or in place of them."""
        kind = "_shexp" if self._sizes.get("num_local_experts") else ""
        parts = ("gate", "up") if ".input_linear." in name else ("down",)
        for part in parts:
            own = f"{self._layer(name)}ffn_{part}{kind}.weight"
            yield own, (shape[1], shape[0] // len(parts))

    def _linear_attention(self, name: str, shape: Shape) -> Iterator[tuple[str, Shape]]:
        gate = self._sizes["linear_num_value_heads"] * self._sizes["linear_value_head_dim"]
        yield f"{self._layer(name)}attn_qkv.weight", (shape[1], shape[0] - gate)
        yield f"{self._layer(name)}attn_gate.weight", (shape[1], gate)

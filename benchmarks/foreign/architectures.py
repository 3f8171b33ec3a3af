"""Architectures of `transformers` with tiny random configurations that the zoo lacks."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

# Model types of `transformers.AutoModel`, by what they take.
TEXT = (
    "albert", "big_bird", "biogpt", "bloom", "canine", "codegen", "convbert", "ctrl",
    "data2vec-text", "deberta", "deberta-v2", "distilbert", "electra", "ernie", "falcon",
    "flaubert", "fnet", "gemma", "gemma2", "gpt_bigcode", "gpt_neo", "gpt_neox", "gptj", "ibert",
    "layoutlm", "llama", "longformer", "megatron-bert", "mistral", "mixtral", "mobilebert",
    "mpnet", "mpt", "nystromformer", "olmo", "opt", "persimmon", "phi", "phi3", "qwen2", "qwen3",
    "rembert", "roberta", "roc_bert", "roformer", "squeezebert", "stablelm", "starcoder2", "xglm",
    "xlm", "xlm-roberta", "xlnet", "xmod", "modernbert", "granite", "cohere", "mamba",
)  # fmt: skip
SEQUENCES = (
    "bart", "blenderbot", "led", "m2m_100", "marian", "mbart", "mvp", "pegasus", "plbart", "t5",
    "switch_transformers",
)  # fmt: skip
VISION = (
    "beit", "convnext", "convnextv2", "cvt", "data2vec-vision", "deit", "dinov2", "efficientnet",
    "focalnet", "levit", "mobilenet_v1", "mobilenet_v2", "mobilevit", "poolformer", "pvt",
    "regnet", "resnet", "segformer", "swin", "swinv2", "vit", "vit_msn", "yolos",
)  # fmt: skip
ARCHITECTURES = (*TEXT, *SEQUENCES, *VISION)
_TOKENS, _VOCABULARY, _IMAGE = 8, 99, 32
_TINY: dict[str, Any] = {
    "vocab_size": _VOCABULARY, "hidden_size": 32, "d_model": 32, "n_embd": 32, "dim": 32,
    "embedding_size": 32, "emb_dim": 32, "num_hidden_layers": 2, "n_layer": 2, "n_layers": 2,
    "num_layers": 2, "num_decoder_layers": 2, "encoder_layers": 2, "decoder_layers": 2,
    "num_attention_heads": 4, "n_head": 4, "n_heads": 4, "num_heads": 4, "attention_heads": 4,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 8, "d_kv": 8, "intermediate_size": 64, "ffn_dim": 64, "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64, "d_ff": 64, "d_inner": 64, "n_inner": 64, "dff": 64, "hidden_dim": 64,
    "max_position_embeddings": 64, "n_positions": 64, "rotary_dim": 4, "num_experts": 4,
    "num_local_experts": 4, "image_size": _IMAGE, "patch_size": 8, "attention_window": 4,
    "block_size": 4, "num_random_blocks": 1, "attention_type": "original_full", "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "use_cache": False,
    "sliding_window": 8, "state_size": 8, "intermediate_dim": 64, "expert_capacity": 8,
    "input_embedding_size": 32, "word_embed_proj_dim": 32, "hidden_dropout_prob": 0.0,
}  # fmt: skip
_WINDOWS: dict[str, Any] = {  # two stages, whose windows fit what is left of the image
    "patch_size": 4, "window_size": 4, "depths": [2, 2], "num_heads": [2, 4], "embed_dim": 16,
}  # fmt: skip
_OF_KIND: dict[str, dict[str, Any]] = {
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},  # one of each for two layers
    "convnext": {"patch_size": 4},  # four stages halve what is left of the image
    "convnextv2": {"patch_size": 4},
    "levit": {"image_size": 224, "patch_size": 16},  # three stages of attention need 14 x 14
    "swin": _WINDOWS,
    "swinv2": _WINDOWS,
    "mixtral": {"experts_implementation": "batched_mm"},  # the default calls its own operator
    "xmod": {"default_language": "en_XX"},  # it has an adapter for each language, and no default
}
_OF_VISION = ("hidden_size", "hidden_dim", "num_heads", "num_attention_heads", "depths")


def export(kind: str, format_: str, folder: Path) -> Path:
    """Make a model of a type and write it as a ``.pt2`` or an ``.onnx`` file.

    Raises:
        Exception: any exception of `transformers` or the exporter.
    """
    import torch

    module, inputs = tiny_model(kind)
    path = folder / f"{kind}.{format_}"
    with torch.no_grad():
        if format_ == "pt2":
            torch.export.save(torch.export.export(module, inputs, strict=False), str(path))
        else:
            torch.onnx.export(module, inputs, str(path), dynamo=True, external_data=False)
    return path


def tiny_model(kind: str) -> tuple[Any, tuple[Any, ...]]:
    """A module with random weights that returns tensors, and its inputs."""
    import torch
    from transformers import AutoModel
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    torch.manual_seed(0)
    of_kind = CONFIG_MAPPING[kind]
    held = of_kind().to_dict()
    tiny = {name: value for name, value in _TINY.items() if name in held}
    if kind in VISION:  # sizes of their stages fit each other only as they are
        tiny = {
            name: value
            for name, value in tiny.items()
            if name not in _OF_VISION and not isinstance(held[name], list | tuple)
        }
        if "hidden_size" in held and isinstance(held.get("num_attention_heads"), int):
            tiny |= {"hidden_size": 32, "num_attention_heads": 4}
    tiny |= _OF_KIND.get(kind, {})
    model = cast(Any, AutoModel).from_config(of_kind(**tiny)).eval()
    if kind in VISION:
        side = getattr(model.config, "image_size", _IMAGE)
        sides = side if isinstance(side, list | tuple) else (side, side)
        inputs: tuple[Any, ...] = (torch.randn(1, 3, *sides),)
    else:
        tokens = torch.randint(3, _VOCABULARY, (1, _TOKENS))
        inputs = (tokens, tokens.clone()) if kind in SEQUENCES else (tokens,)
    return _giving_tensors(model, kind), inputs


def _giving_tensors(model: Any, kind: str) -> Any:
    """Wrap a model so that its inputs and outputs are tensors, as an exported program needs."""
    import torch

    class Tensors(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, first: Any, second: Any = None) -> tuple[Any, ...]:
            if kind in VISION:
                found = self.model(pixel_values=first, return_dict=True)
            elif kind in SEQUENCES:
                found = self.model(input_ids=first, decoder_input_ids=second, return_dict=True)
            else:
                found = self.model(input_ids=first, return_dict=True)
            return tuple(value for value in found.values() if isinstance(value, torch.Tensor))

    return Tensors().eval()

"""Small configurations of architectures that the zoo lacks, as `config.json` states them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FORMATS = (
    "f16", "bf16", "q8_0", "q4_0", "q5_1", "q2_k", "q3_k_s", "q3_k_m", "q3_k_l", "q4_k_s",
    "q4_k_m", "q5_k_s", "q5_k_m", "q6_k", "iq4_nl", "iq4_xs", "iq3_s", "iq3_m", "mxfp4_moe",
)  # fmt: skip
_DENSE = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 9,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 320,
    "max_position_embeddings": 1024,
}
_EXPERTS = {
    **_DENSE,
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 256,
    "norm_topk_prob": True,
}
_LATENT = {
    **{key: value for key, value in _DENSE.items() if key != "head_dim"},
    "num_key_value_heads": 8,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 256,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "q_lora_rank": 256,
    "kv_lora_rank": 256,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
    "v_head_dim": 64,
}
SMALL: Mapping[str, Mapping[str, Any]] = {
    "dense": {"model_type": "llama", **_DENSE},
    "odd-widths": {"model_type": "qwen2", **_DENSE, "hidden_size": 288, "intermediate_size": 416},
    "tied": {"model_type": "qwen3", **_DENSE, "tie_word_embeddings": True},
    "windows": {
        "model_type": "gemma3_text",
        **_DENSE,
        "sliding_window": 16,
        "tie_word_embeddings": True,
    },
    "alternating": {
        "model_type": "gemma2",
        **_DENSE,
        "sliding_window": 24,
        "tie_word_embeddings": True,
    },
    "experts": {"model_type": "qwen3_moe", **_EXPERTS},
    "eight-experts": {
        "model_type": "mixtral",
        **_DENSE,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "sliding_window": None,
    },
    "shared-experts": {
        "model_type": "qwen2_moe",
        **_EXPERTS,
        "shared_expert_intermediate_size": 512,
    },
    "latent": {"model_type": "deepseek_v3", **_LATENT},
    "latent-experts": {"model_type": "glm4_moe", **_EXPERTS, "n_routed_experts": 6,
                       "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1,
                       "topk_group": 1},
    "sinks": {
        "model_type": "gpt_oss",
        **_DENSE,
        "num_local_experts": 6,
        "num_experts_per_tok": 2,
        "sliding_window": 16,
    },
    "linear-attention": {
        "model_type": "qwen3_next",
        **_EXPERTS,
        "shared_expert_intermediate_size": 256,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "linear_conv_kernel_dim": 4,
    },
    "convolutions": {
        "model_type": "lfm2",
        **_DENSE,
        "layer_types": ["conv", "conv", "full_attention"] * 3,
        "block_auto_adjust_ff_dim": False,
    },
    "fused": {"model_type": "phi3", **_DENSE, "sliding_window": None, "pad_token_id": 0},
}  # fmt: skip

_LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
}
_HYBRID = {"mamba_n_heads": 8, "mamba_d_head": 64, "layer_types": ["mamba", "attention"] * 4}
_ROUTED = {"n_routed_experts": 6, "n_shared_experts": 1, "n_group": 1, "topk_group": 1}
_GRANITE = {"num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 128}
_NEMOTRON = {"mamba_num_heads": 8, "mamba_head_dim": 64, "n_groups": 2, "ssm_state_size": 16}
_OF_NEMOTRON = {
    **{key: value for key, value in _DENSE.items() if key != "num_hidden_layers"},
    **_NEMOTRON,
}
_EIGHT = {**_DENSE, "num_hidden_layers": 8}
# Types whose formats are not recorded; parameters are compared.
FURTHER: Mapping[str, Mapping[str, Any]] = {
    "afmoe": {**_EXPERTS, "num_shared_experts": 1, "num_dense_layers": 1, "sliding_window": 16},
    "bamba": {**_EIGHT, "attn_layer_indices": [1, 3], "mamba_n_heads": 8, "mamba_d_head": 64},
    "cohere": _DENSE,
    "exaone_moe": {**_EXPERTS, "num_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1,
                   "topk_group": 1, "sliding_window": 16},
    "falcon_mamba": {"hidden_size": 256, "num_hidden_layers": 3, "vocab_size": 320},
    "gemma3n_text": {**_EIGHT, "hidden_size_per_layer_input": 32, "num_kv_shared_layers": 3,
                     "vocab_size_per_layer_input": 320, "laurel_rank": 16, "sliding_window": 16,
                     "intermediate_size": [512] * 8, "activation_sparsity_pattern": [0.0] * 8},
    "gemma4_text": {**_EIGHT, "hidden_size_per_layer_input": 32, "global_head_dim": 64,
                    "vocab_size_per_layer_input": 320, "num_kv_shared_layers": 2,
                    "sliding_window": 16, "enable_moe_block": True, "num_experts": 4,
                    "top_k_experts": 2, "moe_intermediate_size": 128},
    "glm": _DENSE,
    "glm4_moe_lite": _LATENT,
    "gpt_bigcode": {"n_embd": 256, "n_layer": 3, "n_head": 8, "vocab_size": 320},
    "granitemoehybrid": {**_EIGHT, **_HYBRID, **_GRANITE},
    "granitemoeshared": {**_DENSE, **_GRANITE},
    "internlm3": _DENSE,
    "jais2": _DENSE,
    "nemotron_h": {**_OF_NEMOTRON, "hybrid_override_pattern": "M-M*-M-M*"},
    "nemotron_h with experts": {**_OF_NEMOTRON, **_ROUTED, "hybrid_override_pattern": "MEM*EMEM*",
                                "model_type": "nemotron_h", "num_experts_per_tok": 2,
                                "moe_intermediate_size": 128,
                                "moe_shared_expert_intermediate_size": 128},
    "qwen3_5_moe_text": {**_EXPERTS, **_LINEAR, "shared_expert_intermediate_size": 256},
    "qwen3_5_text": {**_DENSE, **_LINEAR},
    "solar_open": {**_EXPERTS, **_ROUTED, "first_k_dense_replace": 1},
}  # fmt: skip
_ROPE = {"rope_type": "default", "mrope_section": [4, 6, 6], "rope_theta": 10000.0}
SEEING: Mapping[str, Mapping[str, Any]] = {  # text parts of models that also see
    "qwen2_5_vl": {**_DENSE, "rope_parameters": _ROPE},
    "qwen2_vl": {**_DENSE, "rope_parameters": _ROPE},
    "qwen3_vl": {**_DENSE, "rope_parameters": _ROPE},
    "qwen3_vl_moe": {**_EXPERTS, "rope_parameters": _ROPE},
}

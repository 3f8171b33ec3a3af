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

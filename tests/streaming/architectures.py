"""Tiny random models of each architecture that can be cut, real transformers classes throughout."""

from __future__ import annotations

from functools import cache

import torch
from plain_gradients import VOCAB
from transformers import (
    AutoModelForCausalLM,
    Glm4MoeLiteConfig,
    LlamaConfig,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3NextConfig,
)

SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "num_hidden_layers": 2,
    "initializer_range": 0.15,
}
DELTA_NET = {
    "initializer_range": 0.05,  # with larger weights the plain FP32 gradient of so small a model is itself off by 1e-5
    "head_dim": 8,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "num_hidden_layers": 3,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
}
EXPERTS = {"moe_intermediate_size": 12, "num_experts_per_tok": 2}
MLA = {"q_lora_rank": 12, "kv_lora_rank": 8, "qk_nope_head_dim": 4, "qk_rope_head_dim": 4, "v_head_dim": 8}

CONFIGS = {
    "qwen3": lambda: Qwen3Config(**SIZES, head_dim=8, tie_word_embeddings=True),
    "llama": lambda: LlamaConfig(**SIZES, head_dim=8),
    "qwen3_5": lambda: Qwen3_5TextConfig(**SIZES | DELTA_NET, tie_word_embeddings=True),
    "qwen3_5_moe": lambda: Qwen3_5MoeTextConfig(
        **SIZES | DELTA_NET | EXPERTS, num_experts=4, shared_expert_intermediate_size=12
    ),
    "qwen3_next": lambda: Qwen3NextConfig(
        **SIZES | DELTA_NET | EXPERTS, num_experts=4, shared_expert_intermediate_size=12, mlp_only_layers=[]
    ),
    "glm": lambda: Glm4MoeLiteConfig(**SIZES | EXPERTS | MLA | {"num_key_value_heads": 2}, n_routed_experts=8),
}


@cache
def tiny(name: str, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.nn.Module:
    """Delta nets forget slowly: with the stock initial decay, what the state carries over a cut may vanish at once."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(CONFIGS[name](), attn_implementation="sdpa")
    for parameter_name, parameter in model.named_parameters():
        if parameter_name.endswith("A_log"):
            torch.nn.init.uniform_(parameter, -4.0, -2.0)
    return model.to(dtype).eval()

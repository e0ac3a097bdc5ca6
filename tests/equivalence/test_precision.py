"""The two arithmetic contexts against stock forward passes and plain FP32 products."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, Glm4MoeLiteConfig, LlamaConfig, Qwen3_5TextConfig, Qwen3Config

from thundersync.equivalence.precision import arithmetic

SIZES = {"vocab_size": 31, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
HEADS = {"num_key_value_heads": 1, "head_dim": 8, "initializer_range": 0.3}
DELTA_NET = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "initializer_range": 0.1,
}
MLA = {"q_lora_rank": 12, "kv_lora_rank": 8, "qk_nope_head_dim": 4, "qk_rope_head_dim": 4, "v_head_dim": 8}
EXPERTS = {"moe_intermediate_size": 12, "num_experts_per_tok": 2, "n_routed_experts": 4, "num_key_value_heads": 2}
CONFIGS = {
    "qwen3": Qwen3Config(**SIZES | HEADS),
    "llama": LlamaConfig(**SIZES | HEADS),
    "qwen3_5": Qwen3_5TextConfig(**SIZES | HEADS | DELTA_NET),
    # Experts as a loop: the stock FP64 forward could not run PyTorch's grouped product at all.
    "glm": Glm4MoeLiteConfig(**SIZES | MLA | EXPERTS, initializer_range=0.3, experts_implementation="eager"),
}


def tiny(architecture: str = "qwen3"):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(CONFIGS[architecture]).eval()


@pytest.mark.parametrize("architecture", CONFIGS)
def test_wide_casts_agree_with_the_stock_forward_and_really_are_wide(architecture):
    ids = torch.arange(9)[None]
    stock = tiny(architecture)(input_ids=ids).logits
    double = tiny(architecture).double()
    with arithmetic("fp64"):
        wide = double(input_ids=ids).logits
    assert wide.dtype == torch.float64
    assert (wide - stock).abs().max() < 1e-5
    narrow = double(input_ids=ids).logits  # the stock FP64 forward loses digits in its casts
    assert 1e-9 < (wide - narrow).abs().max() < 1e-5


def test_wide_products_of_experts_are_those_of_each_expert_alone():
    """PyTorch's grouped product does not know FP64: two rows for the first expert, none for the second, one for the
    third, and one behind the last offset, which no expert takes."""
    torch.manual_seed(0)
    rows, experts = torch.randn(4, 3, dtype=torch.float64), torch.randn(3, 3, 2, dtype=torch.float64)
    with arithmetic("fp64"):
        found = torch.nn.functional.grouped_mm(rows, experts, offs=torch.tensor([2, 2, 3], dtype=torch.int32))
    assert torch.equal(found[:2], rows[:2] @ experts[0]) and torch.equal(found[2:3], rows[2:3] @ experts[2])
    assert not found[3].any()


def test_products_through_fp32_round_as_bf16_hardware_does():
    torch.manual_seed(0)
    a, b = torch.randn(7, 33).bfloat16(), torch.randn(33, 5).bfloat16()
    a.requires_grad_(True)
    with arithmetic("bf16"):
        product = a @ b
        product.float().sum().backward()
    assert product.dtype == torch.bfloat16 and torch.equal(product, (a.float() @ b.float()).bfloat16())
    assert torch.equal(a.grad, (torch.ones(7, 5) @ b.float().T).bfloat16())

"""The two arithmetic contexts against stock forward passes and plain FP32 products."""

from __future__ import annotations

import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from thundersync.equivalence.precision import arithmetic


def tiny():
    torch.manual_seed(0)
    config = Qwen3Config(
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        vocab_size=31,
        initializer_range=0.3,
    )
    return AutoModelForCausalLM.from_config(config).eval()


def test_wide_casts_agree_with_the_stock_forward_and_really_are_wide():
    ids = torch.arange(9)[None]
    model = tiny()
    stock = model(input_ids=ids).logits
    double = tiny().double()
    narrow = double(input_ids=ids).logits
    with arithmetic("fp64"):
        wide = double(input_ids=ids).logits
    assert wide.dtype == torch.float64
    assert (wide - stock).abs().max() < 1e-5
    assert 1e-9 < (wide - narrow).abs().max() < 1e-5  # the stock FP64 forward loses digits in its casts


def test_products_through_fp32_round_as_bf16_hardware_does():
    torch.manual_seed(0)
    a, b = torch.randn(7, 33).bfloat16(), torch.randn(33, 5).bfloat16()
    a.requires_grad_(True)
    with arithmetic("bf16"):
        product = a @ b
        product.float().sum().backward()
    assert product.dtype == torch.bfloat16 and torch.equal(product, (a.float() @ b.float()).bfloat16())
    assert torch.equal(a.grad, (torch.ones(7, 5) @ b.float().T).bfloat16())

"""Which models are admitted: refused ones by name, when the stream is built, before any forward pass."""

from __future__ import annotations

import pytest
import torch
from architectures import CONFIGS, SIZES, tiny
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    FalconMambaConfig,
    GptOssConfig,
    MistralConfig,
    Qwen3_5TextConfig,
    RwkvConfig,
    T5Config,
)

from thundersync.objectives import OPD
from thundersync.streaming import CannotCut, GradientStream
from thundersync.streaming.cuttable import appends_only

CAUSAL, SEQ2SEQ = AutoModelForCausalLM.from_config, AutoModelForSeq2SeqLM.from_config
REFUSED = {
    "MistralForCausalLM": (CAUSAL, MistralConfig(**SIZES, sliding_window=4), "layer 0 keeps its state in a DynamicSl"),
    "GptOssForCausalLM": (
        CAUSAL,
        GptOssConfig(**SIZES | {"num_local_experts": 2, "num_experts_per_tok": 1, "head_dim": 8}),
        "layer 0 keeps its state in a DynamicSlidingWindowLayer",
    ),
    "FalconMambaForCausalLM": (
        CAUSAL,
        FalconMambaConfig(vocab_size=37, hidden_size=16, num_hidden_layers=1, state_size=4),
        "past_key_values|recurrent state of falcon_mamba",
    ),
    "RwkvForCausalLM": (
        CAUSAL,
        RwkvConfig(vocab_size=37, hidden_size=16, num_hidden_layers=2, attention_hidden_size=16),
        "does not take past_key_values",
    ),
    "T5ForConditionalGeneration": (
        SEQ2SEQ,
        T5Config(vocab_size=37, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2),
        "it is an encoder-decoder",
    ),
    "Qwen3_5ForCausalLM": (
        CAUSAL,
        Qwen3_5TextConfig(**SIZES | {"layer_types": ["linear_attention"] * 2, "head_dim": 8}),
        "no attention layer",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_cannot_be_cut_is_refused_by_name_before_any_work(name):
    build, config, reason = REFUSED[name]
    model = build(config).eval()
    model.register_forward_pre_hook(lambda *_: pytest.fail("the model ran"))
    with pytest.raises(CannotCut, match=f"{name} cannot be cut between turns: .*({reason}).*Supported: .*qwen3_5_text"):
        GradientStream(model, OPD())


def test_what_is_no_transformers_model_is_refused():
    with pytest.raises(CannotCut, match="Linear cannot be cut between turns: it is no transformers model"):
        GradientStream(torch.nn.Linear(2, 2), OPD())


@pytest.mark.parametrize("name", CONFIGS)
def test_the_supported_ones_are_admitted(name):
    GradientStream(tiny(name), OPD())
    assert appends_only(tiny(name)) == (name in ("qwen3", "llama", "glm"))

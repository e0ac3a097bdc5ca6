"""With LoRA, the streamed gradient of the adapters is their plain gradient, and only they have running sums."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from architectures import CONFIGS
from peft import LoraConfig, get_peft_model
from plain_gradients import plain_grpo, plain_opd, relative_error
from test_architectures import BOUND, DTYPES, RELEASES, batch, learn
from test_exactness import turns_of
from transformers import AutoModelForCausalLM

from thundersync.equivalence.precision import arithmetic
from thundersync.learner.lora import adapter_parameters, add_lora
from thundersync.learner.settings import LoRASettings
from thundersync.objectives import GRPO, OPD
from thundersync.streaming import GradientStream
from thundersync.streaming.host_memory import sums_bound

pytestmark = pytest.mark.usefixtures("one_turn_a_pass")


def adapted(architecture: str, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    """With B drawn at random, as if some updates had been taken: at B = 0 the gradient of A is zero."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[architecture](), attn_implementation="sdpa")
    add_lora(model, LoRASettings(rank=2, alpha=4))
    for parameter in adapter_parameters(model):
        torch.nn.init.normal_(parameter, std=0.1)
    return model.to(dtype)


@pytest.mark.parametrize(
    ("architecture", "precision"), [("qwen3", "fp32"), ("qwen3_5", "fp64"), ("glm", "fp32"), ("glm", "fp64")]
)
def test_the_streamed_gradient_of_the_adapters_is_the_plain_one(architecture, precision):
    groups, order = batch(1)
    # Built outside the context, in which FP32 initial values would be drawn in FP64.
    wide, model = adapted(architecture, torch.float64), adapted(architecture, DTYPES[precision])
    for name, plain in (("grpo", plain_grpo), ("opd", plain_opd)):
        with arithmetic("fp64"):
            expected = plain(wide, groups)
        assert len(expected) == sum(p.numel() for p in adapter_parameters(model)) and expected.norm() > 1e-3
        for release in RELEASES[name]:
            with arithmetic(precision):
                found = learn(model, name, release, groups, order)
            assert relative_error(found, expected) < BOUND[precision], (name, release)


def test_sums_exist_for_adapters_only():
    model = adapted("glm")
    adapters = sum(p.numel() for p in adapter_parameters(model))
    stream = GradientStream(model, GRPO(prompts=1))
    stream.open()
    assert stream.memory.sums == 4 * adapters == sums_bound(adapters, open_groups=0)
    assert adapters < sum(p.numel() for p in model.parameters()) / 2


def test_frozen_weights_are_no_graph_memory():
    """Autograd keeps them for the gradient of their inputs, but they are there anyway: with all weights learning, more
    is kept, not less."""
    group = batch(1)[0][0]
    kept = []
    for model in (adapted("qwen3"), adapted("qwen3").requires_grad_(True)):
        stream = GradientStream(model, OPD(), graph_bytes=1 << 30)
        stream.open()
        stream.open_group(0, size=1, prompt_ids=group.prompt)
        stream.forward_turn(0, 0, next(turns_of(group.members[0])))
        kept.append(stream._groups[0].graphs[0].bytes)
    assert 0 < kept[0] <= kept[1]


def test_a_peft_model_can_be_streamed_as_it_is():
    """For callers who wrap the model themselves."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS["qwen3"](), attn_implementation="sdpa")
    wrapped = get_peft_model(model, LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj"])).eval()
    for parameter in adapter_parameters(wrapped):
        torch.nn.init.normal_(parameter, std=0.1)
    groups, _ = batch(1)
    found = learn(wrapped, "opd", "turn_eager", groups, np.random.default_rng(0))
    assert relative_error(found, plain_opd(wrapped, groups)) < 2e-6

"""The FLOP ledger against torch's own counter on tiny models, and against hand counts where that counter is blind.

torch.utils.flop_counter.FlopCounterMode counts 0 for attention on a CPU and for triangular solves, and too much for the
weight gradient of a depthwise convolution (by its number of channels).
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode
from transformers import DynamicCache, Qwen3Config
from transformers.models.glm4_moe_lite import Glm4MoeLiteConfig
from transformers.models.qwen3_5 import Qwen3_5TextConfig

from thundersync.learner.flop_ledger import OPERATORS, Flops, Lora, Pass, count
from thundersync.learner.flop_passes import Spoken, direct, streamed
from thundersync.learner.flop_shapes import Attention, shape_of
from thundersync.learner.policy import load_policy
from thundersync.objectives import GRPO, OPD
from thundersync.streaming import Continuation, GradientStream

SMALL = {"vocab_size": 48, "hidden_size": 32, "intermediate_size": 56, "num_attention_heads": 4}
ROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 1], "partial_rotary_factor": 0.25}
CONFIGS = {
    "dense": Qwen3Config(**SMALL, num_hidden_layers=3, num_key_value_heads=2, head_dim=12),
    "hybrid": Qwen3_5TextConfig(
        **SMALL,
        num_hidden_layers=4,
        num_key_value_heads=2,
        head_dim=24,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=8,
        linear_value_head_dim=10,
        rope_parameters=ROPE,
    ),
    "mla_moe": Glm4MoeLiteConfig(
        **SMALL,
        num_hidden_layers=3,
        num_key_value_heads=4,
        moe_intermediate_size=20,
        n_routed_experts=8,
        num_experts_per_tok=2,
        kv_lora_rank=16,
        q_lora_rank=24,
        qk_rope_head_dim=8,
        qk_nope_head_dim=12,
        v_head_dim=10,
    ),
}
HAND_COUNTED = {"attention", "delta_solves", "convolution"}
QWEN_TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "in_proj_qkv", "in_proj_z",
                "in_proj_b", "in_proj_a", "out_proj"]  # fmt: skip
GLM_TARGETS = ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"]


def model_of(config) -> torch.nn.Module:
    torch.manual_seed(0)
    model = load_policy(config)
    if hasattr(config, "n_routed_experts"):
        model.set_experts_implementation("eager")  # one product per expert, which the counter sees
    return model


@pytest.fixture(scope="module", params=CONFIGS)
def model(request):
    return model_of(CONFIGS[request.param])


def counted(counter: FlopCounterMode, sdpa: int = 0) -> int:
    """What torch counted, less convolutions and attention through the batched products of its fallback (`sdpa`)."""
    known = counter.get_flop_counts()["Global"].items()
    return sum(flops for operator, flops in known if "convolution" not in str(operator)) - sdpa


def seen(side) -> int:
    """What the ledger counts on one side, less what torch does not see."""
    return sum(flops for operator, flops in side.items() if operator not in HAND_COUNTED)


def fallback(model, flops: Flops, tokens: int, context: int) -> tuple[int, int]:
    """MLA's unequal head widths send attention to batched products on a CPU, all T (C + T) pairs of them."""
    if model.config.model_type != "glm4_moe_lite":
        return 0, 0
    return tuple(
        flops_of * (context + tokens) * 2 // (2 * context + tokens)
        for flops_of in (flops.forward["attention"], flops.backward["attention"])
    )


@pytest.mark.parametrize(("rows", "tokens"), [(1, 64), (2, 70), (3, 5)])
def test_every_counted_operator_equals_torchs_counter(model, rows, tokens):
    keep = torch.tensor([0, tokens - 2])
    with FlopCounterMode(display=False) as forward:
        logits = model(input_ids=torch.randint(48, (rows, tokens)), use_cache=False, logits_to_keep=keep).logits
    with FlopCounterMode(display=False) as backward:
        logits.sum().backward()
    flops = count(shape_of(model.config), Pass(tokens=tokens, rows=rows, logits=2))
    out, back = fallback(model, flops, tokens, 0)
    assert seen(flops.forward) == counted(forward, out)
    assert seen(flops.backward) == counted(backward, back)
    assert set(flops.forward) <= set(OPERATORS)


def test_a_segment_after_a_prompt_equals_torchs_counter(model):
    """MLA expands the prompt's latents again, and owes them a gradient; a hybrid's cache cannot be differentiated."""
    context, tokens = 9, 7
    hybrid = model.config.model_type == "qwen3_5_text"
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(input_ids=torch.randint(48, (1, context)), past_key_values=cache)
    if not hybrid:
        for layer in cache.layers:
            layer.keys, layer.values = layer.keys.requires_grad_(), layer.values.requires_grad_()
    with FlopCounterMode(display=False) as forward, torch.set_grad_enabled(not hybrid):
        logits = model(input_ids=torch.randint(48, (1, tokens)), past_key_values=cache).logits
    flops = count(shape_of(model.config), Pass(tokens=tokens, context=context, logits=tokens))
    out, back = fallback(model, flops, tokens, context)
    assert seen(flops.forward) == counted(forward, out)
    if not hybrid:
        with FlopCounterMode(display=False) as backward:
            logits.sum().backward()
        assert seen(flops.backward) == counted(backward, back)


def test_the_convolution_by_hand():
    """72 channels, 4 taps, 3 positions of tail and 3 of padding beside 70, 2 rows, 3 layers; backward the same for
    inputs and for weights."""
    flops = count(shape_of(CONFIGS["hybrid"]), Pass(tokens=70, rows=2, logits=1))
    assert flops.forward["convolution"] == 3 * 2 * 2 * 76 * 72 * 4
    assert flops.backward["convolution"] == 2 * flops.forward["convolution"]


def test_the_convolutions_of_a_streamed_group_equal_torchs_counter():
    model = model_of(CONFIGS["hybrid"])
    stream = GradientStream(model, GRPO(prompts=1))
    stream.open()
    with FlopCounterMode(display=False) as counter:
        stream.open_group("a", size=3, prompt_ids=range(PROMPT))
        for i, (turns, reward) in enumerate(zip(TURNS, (1.0, 0.0, 1.0), strict=True)):
            stream.add_trajectory("a", i, continuation(turns, reward))
        stream.close_group("a")
    work = streamed(shape_of(model.config), PROMPT, [spoken(turns) for turns in TURNS], closures=1)
    # Forward only: torch counts the weight gradient of a depthwise convolution as if it were a dense one.
    counted_here = counter.get_flop_counts()["Global"][torch.ops.aten.convolution]
    assert work.useful.forward["convolution"] == counted_here


@pytest.mark.parametrize(
    ("config", "targets"),
    [("dense", QWEN_TARGETS), ("dense", ["v_proj"]), ("mla_moe", GLM_TARGETS), ("hybrid", QWEN_TARGETS)],
)
def test_lora_keeps_input_gradients_and_drops_weight_gradients(config, targets):
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(model_of(CONFIGS[config]), LoraConfig(r=3, lora_dropout=0.0, target_modules=targets))
    tokens = 11
    with FlopCounterMode(display=False) as forward:
        logits = model(input_ids=torch.randint(48, (1, tokens)), use_cache=False, logits_to_keep=4).logits
    with FlopCounterMode(display=False) as backward:
        logits.sum().backward()
    flops = count(shape_of(CONFIGS[config]), Pass(tokens=tokens, logits=4), Lora(rank=3, targets=frozenset(targets)))
    out, back = fallback(model, flops, tokens, 0)
    assert seen(flops.forward) == counted(forward, out)
    assert seen(flops.backward) == counted(backward, back)
    whole = count(shape_of(CONFIGS[config]), Pass(tokens=tokens, logits=4))
    assert flops.backward["mlp"] < whole.backward["mlp"] <= 2 * flops.backward["mlp"]


@pytest.mark.parametrize(("lengths", "flops"), [((4096,), 51_539_607_552), ((1024, 3072), 32_212_254_720)])
def test_causal_attention_counts_once(lengths, flops):
    """8 heads of 64, forward and backward: 6 products of 2 * 64 * 8 over T^2 / 2 pairs each."""
    layer = Attention((), None, frozenset(), heads=8, d_qk=64, d_v=64)
    assert 3 * sum(layer.core(1, length, 0) for length in lengths) == flops
    assert 3 * layer.core(1, 4096, 0, causal=False) == 103_079_215_104


@given(st.lists(st.integers(1, 40), min_size=1, max_size=5))
def test_cutting_a_sequence_changes_no_work_of_a_dense_model(lengths):
    shape, context, cut = shape_of(CONFIGS["dense"]), 0, Flops()
    for length in lengths:
        cut += count(shape, Pass(tokens=length, context=context, logits=1))
        context += length
    assert cut == count(shape, Pass(tokens=sum(lengths), logits=len(lengths)))


PROMPT = 6
TURNS = (((4, 2), (3, 3), (5, 1)), ((2, 2), (6, 4)), ((7, 0),))
"""(tokens, scored) of each turn of three trajectories; the last one scored nothing."""


def continuation(turns, reward=None, teacher=False) -> Continuation:
    ids = np.arange(sum(tokens for tokens, _ in turns)) % 40
    scored = np.concatenate([np.arange(tokens) >= tokens - s for tokens, s in turns])
    return Continuation(
        ids=ids, scored=scored, reward=reward, teacher_logprobs=np.full(scored.sum(), -1.0) if teacher else None
    )


def spoken(turns, by_turns=False, replayed=0) -> Spoken:
    tokens, scored = (sum(column) for column in zip(*turns, strict=True))
    return Spoken(tokens=tokens, scored=scored, turns=tuple(t for t, _ in turns) if by_turns else (), replayed=replayed)


@pytest.mark.parametrize("rewards", [(1.0, 0.0, 1.0), (1.0, 1.0, 1.0)])
def test_a_streamed_group_is_counted_as_it_runs(rewards):
    """Equal rewards leave the shared prompt without a backward pass."""
    model = model_of(CONFIGS["dense"])
    stream = GradientStream(model, GRPO(prompts=1))
    stream.open()
    with FlopCounterMode(display=False) as counter:
        stream.open_group("a", size=3, prompt_ids=range(PROMPT))
        for i, (turns, reward) in enumerate(zip(TURNS, rewards, strict=True)):
            stream.add_trajectory("a", i, continuation(turns, reward))
        closures = stream.close_group("a").prompt_tokens // (PROMPT - 1)
    assert closures == (len(set(rewards)) > 1)
    work = streamed(shape_of(model.config), PROMPT, [spoken(turns) for turns in TURNS], closures=closures)
    assert seen(work.useful.forward + work.useful.backward) == counted(counter) and not work.recomputed.total


def test_a_direct_group_counts_its_padding():
    model = model_of(CONFIGS["dense"])
    stream = GradientStream(model, GRPO(prompts=1), run_tokens=16)  # packs of 12 tokens alone and of 8 and 7
    stream.open()
    turns = (((12, 5),), ((8, 8),), ((7, 7),))
    with FlopCounterMode(display=False) as counter:
        stream.add_group("a", range(PROMPT), [continuation(t, float(i)) for i, t in enumerate(turns)])
    work = direct(shape_of(model.config), PROMPT, [spoken(t) for t in turns], run_tokens=16)
    assert seen(work.useful.forward + work.useful.backward) == counted(counter)
    unpadded = streamed(shape_of(model.config), PROMPT, [spoken(t) for t in turns], closures=1)
    assert work.useful.of("mlp") > unpadded.useful.of("mlp")


def test_turns_learnt_eagerly_count_their_replay_apart():
    """The useful work is that of the trajectory release; what the adjoints cost a second time is recomputation."""
    model = model_of(CONFIGS["dense"])
    stream, shape = GradientStream(model, OPD()), shape_of(model.config)
    stream.open()
    replayed = []
    with FlopCounterMode(display=False) as counter:
        stream.open_group("a", size=2, prompt_ids=range(PROMPT))
        for i, turns in enumerate(TURNS[:2]):
            for turn in turns:
                stream.add_turn("a", i, continuation([turn], teacher=True))
            replayed.append(stream.close_trajectory("a", i))
        stream.close_group("a")
    assert replayed == [7, 2]  # all turns but the last, which nothing has read
    eager = [spoken(turns, by_turns=True, replayed=r) for turns, r in zip(TURNS, replayed, strict=False)]
    work = streamed(shape, PROMPT, eager, closures=1)
    both = work.useful + work.recomputed
    assert seen(both.forward + both.backward) == counted(counter)
    assert work.useful == streamed(shape, PROMPT, [spoken(turns) for turns in TURNS[:2]], closures=1).useful


def test_an_unknown_architecture_is_refused_by_name():
    class Config:
        model_type = "mamba"

    with pytest.raises(ValueError, match="does not know the architecture mamba; it knows"):
        shape_of(Config())

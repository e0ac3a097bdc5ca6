"""LoRA on a learner rank: what learns, what is served, what survives the disk, and the paper's adapter count."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest
import torch
from learner_parts import VOCAB, stream_update
from transformers import AutoModelForCausalLM, Glm4MoeLiteConfig, LlamaConfig, Qwen3Config

from thundersync.learner.lora import adapter_parameters
from thundersync.learner.optimizer import AdamWSettings
from thundersync.learner.policy import load_policy, served_tensors
from thundersync.learner.rank import LearnerRank
from thundersync.learner.settings import LoRASettings
from thundersync.objectives import OPD
from thundersync.policy_hash import policy_hash
from thundersync.rollout.engine import GenerationRequest
from thundersync.rollout.settings import GenerationSettings
from thundersync.rollout.transformers_engine import TransformersEngine

SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "initializer_range": 0.3,
}
LORA = LoRASettings(rank=2, alpha=4)


@pytest.fixture
def base(tmp_path):
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(Qwen3Config(**SIZES, tie_word_embeddings=True)).save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def rank_on(base, dtype=torch.float32, seed: int = 0) -> LearnerRank:
    torch.manual_seed(100 + seed)  # the initial adapters must not depend on what was drawn before
    ticks = count()
    model = load_policy(base, dtype=dtype, lora=LORA)
    return LearnerRank(model, OPD(), AdamWSettings(learning_rate=1e-2), now=lambda: float(next(ticks)))


def test_the_papers_adapter_count_at_glm_4_7_flash_shapes():
    """Appendix D.3: 42,063,872 over 47 layers. Per layer, rank times the sum of both sides of the five projections:
    32 (2048+768 + 768+5120 + 2048+576 + 512+8960 + 5120+2048) = 894,976."""
    config = Glm4MoeLiteConfig(
        hidden_size=2048,
        num_hidden_layers=47,
        num_attention_heads=20,
        num_key_value_heads=20,
        q_lora_rank=768,
        kv_lora_rank=512,
        qk_nope_head_dim=192,
        qk_rope_head_dim=64,
        v_head_dim=256,
        n_routed_experts=64,
        num_experts_per_tok=4,
    )
    with torch.device("meta"):
        model = load_policy(config, dtype=torch.bfloat16, lora=LoRASettings())
    adapters = adapter_parameters(model)
    assert sum(parameter.numel() for parameter in adapters) == 42_063_872 == 47 * 894_976
    assert {parameter.dtype for parameter in adapters} == {torch.float32} and model.dtype == torch.bfloat16
    modules = {name.split(".")[-4] for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert modules == {"q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_update_moves_the_adapters_and_nothing_else(base, dtype):
    rank = rank_on(base, dtype)
    before = {name: p.detach().clone() for name, p in rank.model.named_parameters()}
    assert policy_hash(rank.weights()) == policy_hash(served_tensors(load_policy(base, dtype=dtype)))
    hashes = {stream_update(rank, k)[1].policy_hash for k in range(2)}
    assert len(hashes) == 2
    for name, parameter in rank.model.named_parameters():
        assert torch.equal(parameter, before[name]) != parameter.requires_grad, name
        assert parameter.dtype == (torch.float32 if parameter.requires_grad else dtype)
    adapters = sum(parameter.numel() for parameter in adapter_parameters(rank.model))
    assert rank.optimizer.shard_bytes == {"master": 4 * adapters, "moments": 8 * adapters}


def test_replicas_are_served_the_adapters_merged_into_the_weights(base):
    """Under the base's own names; a plain model that loads them computes what the learner computes."""
    rank = rank_on(base)
    stream_update(rank, 0)
    stream_update(rank, 1)
    replica = load_policy(base)
    assert rank.weights().keys() == dict(replica.named_parameters()).keys()
    ids = torch.arange(9)[None]
    untrained = replica(input_ids=ids).logits
    with torch.no_grad():
        for name, parameter in replica.named_parameters():
            parameter.copy_(rank.weights()[name])
        learner, served = rank.model(input_ids=ids).logits, replica(input_ids=ids).logits
    assert (learner - served).abs().max() < 1e-5 < 1e-2 < (learner - untrained).abs().max()
    assert policy_hash(rank.weights()) == policy_hash(dict(replica.named_parameters()))


def test_the_rollout_engine_takes_what_the_learner_publishes(base):
    """It reports the learner's hash, and its sampled tokens' log-probabilities are the learner's."""
    rank = rank_on(base)
    stream_update(rank, 0)
    limits = {"active_sequences_per_replica": 1, "max_context_tokens": 64, "max_tokens_per_turn": 8}
    settings = GenerationSettings(**limits, max_generated_tokens=8, max_prompt_tokens=16)
    engine = TransformersEngine(load_policy(base), stop_id=VOCAB - 1, settings=settings)
    engine.load_weights(rank.weights(), 1)
    assert engine.served().policy_hash == policy_hash(rank.weights())
    prompt = np.arange(1, 6, dtype=np.int32)
    engine.submit(GenerationRequest(request_id="r", token_ids=prompt, seed=3, max_tokens=8))
    finished = []
    while not finished:
        finished = engine.step()
    ids = torch.as_tensor(np.concatenate([prompt, finished[0].action_ids])).long()[None]
    with torch.no_grad():
        logprobs = torch.log_softmax(rank.model(input_ids=ids).logits[0], -1)
    learner = logprobs[len(prompt) - 1 : -1].gather(-1, ids[0, len(prompt) :, None])[:, 0].numpy()
    assert np.abs(finished[0].logprobs - learner).max() < 1e-5


def test_export_is_a_plain_policy(base, tmp_path):
    rank = rank_on(base)
    stream_update(rank, 0)
    rank.export(tmp_path / "export")
    assert policy_hash(dict(load_policy(tmp_path / "export").named_parameters())) == policy_hash(rank.weights())


def test_resume_is_bit_exact_and_needs_the_same_base(base, tmp_path):
    straight = rank_on(base)
    hashes = [stream_update(straight, k)[1].policy_hash for k in range(3)]
    stopped = rank_on(base)
    stream_update(stopped, 0)
    stopped.save(tmp_path / "checkpoint")
    resumed = rank_on(base, seed=1)
    resumed.load(tmp_path / "checkpoint")
    assert [stream_update(resumed, k)[1].policy_hash for k in (1, 2)] == hashes[1:]

    stopped.export(tmp_path / "merged")
    with pytest.raises(ValueError, match="adapters belong to other base weights"):
        rank_on(tmp_path / "merged").load(tmp_path / "checkpoint")


@pytest.mark.parametrize(
    ("config", "settings", "message"),
    [
        (Qwen3Config, {"targets": ("q_proj", "w_1")}, "no linear module named w_1; it has down_proj, .*q_proj"),
        (LlamaConfig, {}, "targets for qwen3, qwen3_5_text, glm4_moe_lite, not for llama: name some of down_proj"),
    ],
)
def test_targets_that_are_not_there_are_refused(config, settings, message):
    with pytest.raises(ValueError, match=f"model.lora.targets.*{message}"):
        load_policy(config(**SIZES), lora=LoRASettings(**settings))

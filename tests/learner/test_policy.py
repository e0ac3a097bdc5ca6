"""What replicas have to serve: every weight, tied ones once, and its hash changes with any bit."""

from __future__ import annotations

import torch
from transformers.models.qwen3 import Qwen3Config

from thundersync.learner.policy import load_policy, served_tensors
from thundersync.policy_hash import policy_hash


def tiny(tied: bool, dtype: torch.dtype = torch.float32):
    torch.manual_seed(0)
    config = Qwen3Config(
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        vocab_size=11,
        tie_word_embeddings=tied,
    )
    return load_policy(config, dtype=dtype)


def test_tied_tensors_are_served_once():
    assert "lm_head.weight" not in served_tensors(tiny(tied=True))
    assert "lm_head.weight" in served_tensors(tiny(tied=False))


def test_the_hash_is_that_of_a_replica_and_sees_one_flipped_bit():
    learner, replica = tiny(tied=True), tiny(tied=True)
    assert policy_hash(served_tensors(learner)) == policy_hash(dict(replica.named_parameters()))
    replica.get_parameter("model.norm.weight").data.view(torch.int32)[3] ^= 1
    assert policy_hash(served_tensors(learner)) != policy_hash(dict(replica.named_parameters()))


def test_a_policy_survives_the_disk_in_eval_mode(tmp_path):
    model = tiny(tied=True, dtype=torch.bfloat16)
    model.save_pretrained(tmp_path)
    loaded = load_policy(tmp_path, dtype=torch.bfloat16)
    assert policy_hash(served_tensors(loaded)) == policy_hash(served_tensors(model))
    assert not loaded.training and loaded.config._attn_implementation == "sdpa"

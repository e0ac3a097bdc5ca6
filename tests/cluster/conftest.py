"""A random policy and teacher with their own tokenizer, and one Ray session for all runs of a module."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def random_models(tmp_path_factory):
    import torch
    from transformers import AutoModelForCausalLM, Qwen3Config

    from thundersync.environments import load_workload
    from thundersync.records import digest_of
    from thundersync.rollout.chat import train_tokenizer
    from thundersync.warm_start import ModelPaths

    root = tmp_path_factory.mktemp("models")
    workload = load_workload("micro_terminal", root=root)
    tokenizer = train_tokenizer([task.instruction for task in workload.training], vocab_size=384)
    torch.manual_seed(0)
    for name in ("student", "teacher"):
        config = Qwen3Config(
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            vocab_size=len(tokenizer),
            tie_word_embeddings=True,
        )
        AutoModelForCausalLM.from_config(config).save_pretrained(root / name)
        tokenizer.save_pretrained(root / name)
    return ModelPaths(student=root / "student", teacher=root / "teacher", tokenizer_digest=digest_of("random"))


@pytest.fixture(scope="module")
def session():
    """Closed with its module: it pins this process to one core while it is open."""
    from thundersync.cluster.session import open_session

    with open_session(replicas=2, learner_ranks=2) as opened:
        yield opened

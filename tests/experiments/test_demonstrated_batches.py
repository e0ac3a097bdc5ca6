"""Demonstrations as logical batches: scores are the model's own, each trajectory is one that was really run."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from experiments.smollm2 import SETTINGS, demonstrated_batches
from thundersync.environments import load_workload
from thundersync.ports import RewardReady, TurnReady
from thundersync.rollout.chat import Chat, train_tokenizer


def test_batches_hold_runs_with_the_models_own_scores(tmp_path):
    workload = load_workload("micro_swe", root=tmp_path, training_tasks=6)
    chat = Chat(train_tokenizer([task.instruction for task in workload.training], vocab_size=300))
    torch.manual_seed(0)
    config = Qwen3Config(
        hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        head_dim=8, vocab_size=len(chat.tokenizer), tie_word_embeddings=True,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config)
    with pytest.raises(ValueError, match="3 batches of 2 groups need 6 tasks .* 3 of 6 training tasks are such"):
        demonstrated_batches(model, chat, workload, SETTINGS, batches=3, prompts=2, size=2)
    ((batch, events),) = demonstrated_batches(model, chat, workload, SETTINGS, batches=1, prompts=2, size=2)
    ended = [event.trajectory for event in events if isinstance(event, RewardReady)]
    assert sorted(t.key for t in ended) == sorted(batch.keys)
    assert all(t.reward == (t.key.trajectory == 0) for t in ended), "the reference solves its task, its sibling fails"
    whole = ended[0]
    ids = np.concatenate([whole.prompt_ids_P, *(turn.ids for turn in whole.turns)]).astype(np.int64)
    scored = np.concatenate([np.zeros(len(whole.prompt_ids_P), bool), *(turn.scored for turn in whole.turns)])
    with torch.no_grad():
        logprobs = torch.log_softmax(model(torch.from_numpy(ids)[None]).logits[0, :-1], -1)
    plain = logprobs.gather(-1, torch.from_numpy(ids[1:])[:, None])[:, 0][torch.from_numpy(scored[1:])]
    recorded = torch.from_numpy(np.concatenate([turn.logprobs_A for turn in whole.turns]))
    torch.testing.assert_close(recorded, plain, rtol=1e-5, atol=1e-5)
    taught = [event for event in events if isinstance(event, TurnReady)]
    assert any(not np.allclose(event.teacher_logprobs_A, event.turn.logprobs_A) for event in taught)

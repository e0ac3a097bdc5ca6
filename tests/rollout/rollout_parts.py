"""Parts shared by the rollout tests: a tokenizer, a tiny random model, plain ways to compute what an engine should."""

from __future__ import annotations

import functools

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from thundersync.rollout.chat import Chat, train_tokenizer
from thundersync.rollout.settings import GenerationSettings

TEXTS = ["copy the hint to the answer", "cat hint", "write answer red", "```\nsubmit\n```", "line 10 of 23\n"] * 3

SMALL = dict(
    max_turns=4,
    max_tokens_per_turn=40,
    max_generated_tokens=120,
    max_prompt_tokens=100,
    max_context_tokens=400,
    max_observation_tokens=40,
    observation_head=20,
    observation_tail=20,
    active_sequences_per_replica=4,
    prefix_cache_tokens=2000,
)


def small_settings(**changes) -> GenerationSettings:
    return GenerationSettings(**(SMALL | changes))


@functools.cache
def small_chat() -> Chat:
    return Chat(train_tokenizer(TEXTS, vocab_size=300))


def tiny_model(seed: int = 0, vocab_size: int = 300, kv_heads: int = 2) -> Qwen3ForCausalLM:
    torch.manual_seed(seed)
    config = Qwen3Config(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=kv_heads,
        head_dim=16,
        vocab_size=vocab_size,
        tie_word_embeddings=True,
        initializer_range=0.3,
    )
    return Qwen3ForCausalLM(config).eval()


def plain_logprobs(model, ids: np.ndarray) -> np.ndarray:
    """[T - 1, V]: log-probabilities of every next token, one full forward pass of transformers' own attention."""
    with torch.no_grad():
        logits = model(input_ids=torch.from_numpy(ids.astype(np.int64))[None]).logits[0, :-1]
    return torch.log_softmax(logits.float(), -1).numpy()


def plain_sample(model, prompt: np.ndarray, uniforms: np.ndarray, stop_id: int) -> np.ndarray:
    """The action that inverse-CDF sampling gives, one full forward pass per token, in float64 numpy."""
    ids = prompt.astype(np.int64)
    for u in uniforms:
        with torch.no_grad():
            logits = model(input_ids=torch.from_numpy(ids)[None]).logits[0, -1].double().numpy()
        p = np.exp(logits - logits.max())
        token = int(np.searchsorted(np.cumsum(p / p.sum()), u, side="right"))
        ids = np.append(ids, token)
        if token == stop_id:
            break
    return ids[len(prompt) :]

"""Tokens per second of a gradient of one group: our stream, packed and one by one, against a plain transformers loop.

A token counts once per trajectory that it belongs to, whoever computes it: sharing a prompt shows as more of them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from thundersync.objectives import GRPO
from thundersync.streaming import Continuation, GradientStream

GROUP = 8
CONTINUATION = 64
PROMPTS = (32, 256)


def measure(model, vocabulary: int, repetitions: int) -> list[dict]:
    """Rows (prompt tokens, way, tokens per second: median, smallest, largest), ways alternating in each repetition."""
    rows = []
    for prompt_tokens in PROMPTS:
        rng = np.random.default_rng(0)
        prompt = rng.integers(5, vocabulary, prompt_tokens)
        continuations = [
            Continuation(
                ids=rng.integers(5, vocabulary, CONTINUATION), scored=np.ones(CONTINUATION, bool), reward=i % 2
            )
            for i in range(GROUP)
        ]
        ways: dict[str, Callable] = {"plain loop": plain_loop, "plain padded batch": plain_batch, "stream": streamed}
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        for repetition in range(repetitions + 1):
            for way, run in ways.items():
                began = time.perf_counter()
                run(model, prompt, continuations)
                if repetition:  # the first one warms up
                    seconds[way].append(time.perf_counter() - began)
        tokens = GROUP * (prompt_tokens + CONTINUATION)
        for way, times in seconds.items():
            rates = sorted(tokens / s for s in times)
            rows.append(
                {
                    "prompt_tokens": prompt_tokens,
                    "way": way,
                    "tokens_per_s": statistics.median(rates),
                    "smallest": rates[0],
                    "largest": rates[-1],
                }
            )
    return rows


def plain_loop(model, prompt: np.ndarray, continuations: list[Continuation]) -> dict[str, torch.Tensor]:
    """One forward and backward per trajectory, prompt included each time."""
    model.zero_grad()
    for weight, one in zip(_weights(continuations), continuations, strict=True):
        ids = torch.from_numpy(np.concatenate([prompt, one.ids]))[None]
        _loss(model(input_ids=ids).logits, ids, len(prompt), weight).sum().backward()
    return _gradients(model)


def plain_batch(model, prompt: np.ndarray, continuations: list[Continuation]) -> dict[str, torch.Tensor]:
    """One forward and backward of all trajectories; they have one length, so nothing is padded."""
    model.zero_grad()
    ids = torch.from_numpy(np.stack([np.concatenate([prompt, one.ids]) for one in continuations]))
    weights = torch.tensor(_weights(continuations), dtype=torch.float32)[:, None]
    _loss(model(input_ids=ids).logits, ids, len(prompt), weights).sum().backward()
    return _gradients(model)


def streamed(model, prompt: np.ndarray, continuations: list[Continuation]) -> dict[str, torch.Tensor]:
    """Trajectories one by one, as if they had just been finished; the prompt is shared."""
    stream = GradientStream(model, GRPO(prompts=1))
    stream.open()
    stream.open_group("group", size=len(continuations), prompt_ids=prompt)
    for index, one in enumerate(continuations):
        stream.add_trajectory("group", index, one)
    stream.close_group("group")
    return stream.close()


def _weights(continuations: list[Continuation]) -> list[float]:
    """Advantage over (group size * scored tokens), Equation 4."""
    rewards = np.array([one.reward for one in continuations], float)
    advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
    return list(advantages / (len(rewards) * CONTINUATION))


def _loss(logits_BTV, ids_BT, prompt_tokens: int, weights):
    logprobs = torch.log_softmax(logits_BTV[:, prompt_tokens - 1 : -1], -1)
    return logprobs.gather(-1, ids_BT[:, prompt_tokens:, None])[..., 0] * weights


def _gradients(model) -> dict[str, torch.Tensor]:
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}

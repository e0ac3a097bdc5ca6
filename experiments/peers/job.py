"""The job that all peers get: the same random policy, the same prompts, rewards that alternate, nothing to execute.

Rewards alternate between 0 and 1 within each prompt, so that no group is uniform and no trainer can leave its gradient
out; what is learned is noise, and only time is measured.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from thundersync.batch import Task
from thundersync.environments.workload import Observation, Verdict, Workload

PROMPTS = 4
GENERATIONS = 4
COMPLETION_TOKENS = 64
LEARNING_RATE = 1e-6
SENTENCES = tuple(f"task {number}: name a colour, then a number above {7 * number}" for number in range(64))


def make_policy(directory: Path, *, seed: int = 0) -> Path:
    """A random Qwen3 policy of about half a million parameters, saved with a tokenizer of the sentences."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from thundersync.rollout.chat import load_chat, train_tokenizer

    train_tokenizer(SENTENCES, vocab_size=384).save_pretrained(str(directory))
    chat = load_chat(directory)
    torch.manual_seed(seed)
    config = Qwen3Config(
        hidden_size=96,
        intermediate_size=288,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=24,
        vocab_size=-(-len(chat.tokenizer) // 16) * 16,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=chat.end_id,
        pad_token_id=chat.pad_id,
    )
    Qwen3ForCausalLM(config).save_pretrained(str(directory))
    return directory


class _Alternating:
    """Grades 0, 1, 0, 1 ... whatever it is given."""

    def __init__(self, rewards: itertools.cycle) -> None:
        self._rewards = rewards

    async def run(self, command: str) -> Observation:
        return Observation(text="", exit_code=0)

    async def verify(self) -> Verdict:
        reward = next(self._rewards)
        return Verdict(reward=reward, success=reward == 1.0, tests={})

    async def close(self) -> None:
        pass


@dataclass(slots=True)
class _Sentences:
    tasks: tuple[Task, ...]
    rewards: dict[str, itertools.cycle]

    async def open(self, task_id: str) -> _Alternating:
        return _Alternating(self.rewards[task_id])

    def reference_commands(self, task_id: str) -> list[str]:
        return []


def build(root: Path, seed: int) -> Workload:
    """The workload `experiments.peers.job:build`: no sandbox, for there is nothing to execute."""
    tasks = tuple(Task(task_id=f"job-{i}", split_group=str(i), instruction=text) for i, text in enumerate(SENTENCES))
    source = _Sentences(tasks, defaultdict(lambda: itertools.cycle((0.0, 1.0))))
    return Workload(name="peers", training=tasks[:-1], heldout=tasks[-1:], source=source)

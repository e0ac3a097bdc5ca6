"""A deterministic engine and a deterministic workload, to try an agent loop without model or sandbox."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from thundersync.batch import Task
from thundersync.rollout.engine import EngineCounters, GenerationRequest, GenerationResult, ServedPolicy

Script = Callable[[GenerationRequest, int], np.ndarray]
"""(request, policy version) -> the action ids it answers with, before any cut by max_tokens."""


class ScriptedEngine:
    """Implements `engine.Engine` with scripted actions; log-probabilities are minus one tenth of the token's index.

    Every request's prompt stays in its prefix cache with the answer it got, and is answered from there until the cache
    is cleared: a publication that forgets to clear serves the old policy, as a real engine would.
    """

    def __init__(self, script: Script, *, stop_id: int) -> None:
        self.script = script
        self.stop_id = stop_id
        self.version = 0
        self.counters = EngineCounters()
        self.requests: list[GenerationRequest] = []
        """All requests in order of submission."""
        self._waiting: deque[GenerationRequest] = deque()
        self._answers: dict[bytes, tuple[np.ndarray, int]] = {}

    def submit(self, request: GenerationRequest) -> None:
        self.requests.append(request)
        self._waiting.append(request)

    @property
    def busy(self) -> bool:
        return bool(self._waiting)

    def step(self) -> list[GenerationResult]:
        """Finishes the oldest request."""
        request = self._waiting.popleft()
        key = request.token_ids.tobytes() + request.seed.to_bytes(8, "big")
        if key in self._answers:
            self.counters.prefix_hit_tokens += len(request.token_ids)
        else:
            self.counters.prefill_tokens += len(request.token_ids)
            self._answers[key] = (np.asarray(self.script(request, self.version), np.int32), self.version)
        ids, version = self._answers[key]
        ids = ids[: request.max_tokens]
        self.counters.generated_tokens += len(ids)
        self.counters.steps += 1
        return [
            GenerationResult(
                request_id=request.request_id,
                action_ids=ids,
                logprobs=-np.arange(1, len(ids) + 1, dtype=np.float32) / 10,
                versions=np.full(len(ids), version, np.int32),
                finish="stop" if ids[-1] == self.stop_id else "length",
            )
        ]

    def load_weights(self, state_dict: Mapping[str, object], version: int) -> None:
        self.version = version

    def clear_caches(self) -> None:
        self._answers.clear()

    def served(self) -> ServedPolicy:
        return ServedPolicy(
            version=self.version,
            policy_hash=f"scripted policy {self.version}",
            cached_tokens=sum(len(key) // 4 - 2 for key in self._answers),
            cleared=all(version == self.version for _, version in self._answers.values()),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeObservation:
    text: str
    exit_code: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeVerdict:
    reward: float
    success: bool
    tests: dict[str, bool] = field(default_factory=dict)


class FakeEpisode:
    """A dictionary of files. Commands: `cat NAME`, `write NAME TEXT`; solved when `answer` holds the secret."""

    def __init__(self, secret: str) -> None:
        self.files = {"hint": secret, "answer": ""}
        self.secret = secret
        self.commands: list[str] = []
        self.closed = False

    async def run(self, command: str) -> FakeObservation:
        self.commands.append(command)
        await asyncio.sleep(0)
        words = command.split(maxsplit=2)
        if len(words) == 2 and words[0] == "cat" and words[1] in self.files:
            return FakeObservation(text=self.files[words[1]] + "\n")
        if len(words) == 3 and words[0] == "write":
            self.files[words[1]] = words[2]
            return FakeObservation(text="")
        return FakeObservation(text=f"{command}: not found\n", exit_code=127)

    async def verify(self) -> FakeVerdict:
        await asyncio.sleep(0)
        solved = self.files["answer"] == self.secret
        return FakeVerdict(reward=float(solved), success=solved, tests={"test_answer": solved})

    async def close(self) -> None:
        self.closed = True


class FakeWorkload:
    """Tasks "copy the word in hint to answer", one per secret word; even ones train, odd ones are held out."""

    name = "fake"

    def __init__(self, secrets: tuple[str, ...] = ("red", "green", "blue", "grey")) -> None:
        self._secrets = {f"fake-{index}": secret for index, secret in enumerate(secrets)}
        tasks = [
            Task(
                task_id=task_id, split_group=f"family-{task_id}", instruction=f"{task_id}: copy the hint to the answer"
            )
            for task_id in self._secrets
        ]
        self.training, self.heldout = tuple(tasks[0::2]), tuple(tasks[1::2])
        self.episodes: list[FakeEpisode] = []
        """All episodes in order of opening."""

    async def open(self, task_id: str) -> FakeEpisode:
        episode = FakeEpisode(self._secrets[task_id])
        self.episodes.append(episode)
        return episode

    def reference_commands(self, task_id: str) -> list[str]:
        return ["cat hint", f"write answer {self._secrets[task_id]}"]

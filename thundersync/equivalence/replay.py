"""Replays recorded logical batches through the schedules, unchanged, against a learner in this process.

Only the learner works: the rollout port hands out what was recorded, in its recorded or in another order.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from thundersync.batch import GroupKey, LogicalBatch, TrajectoryKey
from thundersync.equivalence.precision import PRECISIONS, arithmetic
from thundersync.learner.optimizer import AdamWSettings
from thundersync.learner.policy import load_policy
from thundersync.learner.rank import LearnerRank
from thundersync.learner.ranks import ALONE, RankGroup
from thundersync.objectives.objective import Objective
from thundersync.ports import ContentReady, Event, PublishedUpdate, Receipt, RewardReady, TurnReady
from thundersync.schedules import SCHEDULES, Parts, Release
from thundersync.streaming import Grid

Batches = Sequence[tuple[LogicalBatch, Sequence[Event]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """What is learnt again."""

    policy: Path
    """The directory of the policy that the batches start from."""
    objective: Objective
    settings: AdamWSettings
    batches: Batches


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way to learn the same batches."""

    schedule: str
    """sync or thundersync."""
    release: str
    reduction: str = "direct"
    """Sync only: direct or sums."""
    precision: str = "fp32"
    exact_exponent: int | None = None
    """Exact sums on this grid; None for FP32 sums (FP64 for an FP64 model)."""


@dataclass(slots=True, kw_only=True)
class Replay:
    """What a replay left. P = trainable parameters, flat, on the host; FP32, or FP64 for an FP64 model."""

    start_P: Tensor
    direction_P: Tensor | None = None
    """The first direction g_0, before clipping."""
    parameters: list[Tensor] = field(default_factory=list)
    """[P] after each update: the masters; empty where only hashes are kept, as `start_P`."""
    hashes: list[str] = field(default_factory=list)
    """Of the policy that each update would publish."""
    learner_s: float = 0.0
    """CPU seconds, which a neighbour on the machine changes less than the clock's."""
    sums_bytes: int = 0
    """Most that running sums took in any batch."""
    underflow: float = 0.0
    """Exact sums: the share of gradient entries that were rounded to zero."""


def replay(
    recording: Recording,
    variant: Variant,
    *,
    ranks: RankGroup = ALONE,
    on_update: Callable[[], None] = lambda: None,
    bits_only: bool = False,
) -> Replay:
    """Learns the batches from the recorded policy. Deterministic on one thread.

    With `bits_only` it keeps no tensors, for a replay whose hashes say all.
    Among several `ranks`, each in a process of its own, all call it alike: each learns its groups.
    """
    grid = None if variant.exact_exponent is None else Grid(exponent=variant.exact_exponent)
    # Rounded to BF16 first: every precision starts from the same parameters theta_0, as a BF16 checkpoint would give.
    model = load_policy(recording.policy, dtype=torch.bfloat16).to(PRECISIONS[variant.precision])
    objective, batches = recording.objective, recording.batches
    version = batches[0][0].update
    rank = LearnerRank(
        model, objective, recording.settings, now=time.perf_counter, ranks=ranks, version=version, grid=grid
    )
    # All ranks take part in collecting the masters, whatever each of them keeps.
    result = Replay(start_P=_kept(_flat(rank), bits_only))
    optimizer_step = rank.optimizer.step

    def watched_step(direction):
        if result.direction_P is None and not bits_only:
            result.direction_P = _on_disk(torch.cat([t.detach().reshape(-1) for t in direction.values()]))
        return optimizer_step(direction)

    rank.optimizer.step = watched_step
    journal = _Journal(rank, result, last=batches[-1][0].update, on_update=on_update, bits_only=bits_only)
    parts = Parts(
        batch=dict((batch.update, batch) for batch, _ in batches).__getitem__,
        group=lambda position: None,
        prompts=len(batches[0][0].groups),
        rollout=RecordedRollout(batches),
        learner=LocalLearner(rank),
        publisher=_NoReplicas(),
        clock=_Clock(),
        journal=journal,
        release=Release(policy=variant.release, needs_reward=objective.needs_reward),
        reduction=variant.reduction,
        lag_bound=0,
    )
    started = time.process_time()
    with arithmetic(variant.precision):
        asyncio.run(SCHEDULES[variant.schedule](parts, version))
    result.learner_s = time.process_time() - started
    result.underflow = grid.underflow if grid else 0.0
    return result


def learner_time_ratio(recording: Recording, one: Variant, other: Variant, rounds: int) -> float:
    """Learner time of `one` over that of `other`, which take turns: who else uses the machine slows both alike."""
    seconds = [[replay(recording, v, bits_only=True).learner_s for v in (one, other)] for _ in range(rounds)]
    ones, others = zip(*seconds, strict=True)
    return sum(ones) / sum(others)


def reordered(batches: Batches, generator: torch.Generator) -> Batches:
    """The batches with their events in another order that could have happened: turns of a trajectory stay in sequence,
    before its content and its reward."""
    return [(batch, _shuffled(events, generator)) for batch, events in batches]


def _shuffled(events: Sequence[Event], generator: torch.Generator) -> list[Event]:
    queues: dict[TrajectoryKey, list[Event]] = {}
    for event in events:
        key = event.key.trajectory_key if isinstance(event, TurnReady) else event.key
        queues.setdefault(key, []).append(event)
    shuffled = []
    while queues:
        key = list(queues)[int(torch.randint(len(queues), (), generator=generator))]
        shuffled.append(queues[key].pop(0))
        if not queues[key]:
            del queues[key]
    return shuffled


class RecordedRollout:
    """The Rollout port over recorded events."""

    def __init__(self, batches: Batches) -> None:
        self._events = {batch.update: events for batch, events in batches}
        self._queue: asyncio.Queue[Event] = asyncio.Queue()

    async def start(self, batch: LogicalBatch) -> None:
        for event in self._events[batch.update]:
            self._queue.put_nowait(event)

    async def events(self) -> AsyncIterator[Event]:
        while True:
            yield await self._queue.get()


class LocalLearner:
    """The Learner port over a rank in this process; calls run when they are made, in their order.

    What belongs to another rank has no receipt here: that rank's process sees the same events.
    """

    def __init__(self, rank: LearnerRank) -> None:
        self._rank = rank
        self._own: set[GroupKey] = set()

    async def open(self, batch: LogicalBatch):
        self._own = {plan.key for plan in self._rank.ranks.share(batch).groups}
        self._rank.open(batch)

    async def learn_trajectory(self, event: RewardReady):
        return self._learn(self._rank.learn_trajectory, event)

    async def learn_turn(self, event: TurnReady):
        return self._learn(self._rank.learn_turn, event)

    async def forward_turn(self, event: TurnReady):
        return self._learn(self._rank.forward_turn, event)

    async def learn_content(self, event: ContentReady, turns: Sequence[TurnReady] = ()):
        return self._rank.learn_content(event, turns) if self._owns(event) else None

    async def bind_reward(self, event: RewardReady):
        return self._learn(self._rank.bind_reward, event)

    async def close_trajectory(self, event: ContentReady | RewardReady):
        return self._learn(self._rank.close_trajectory, event)

    async def close_group(self, group: GroupKey):
        return self._rank.close_group(group) if group in self._own else None

    async def learn_batch(self, events: list[Event]):
        return self._rank.learn_batch([event for event in events if self._owns(event)])

    def _learn(self, call: Callable[[Event], Receipt], event: Event) -> Receipt | None:
        return call(event) if self._owns(event) else None

    def _owns(self, event: Event) -> bool:
        return GroupKey(event.key.update, event.key.group) in self._own

    async def step(self):
        return self._rank.step()


class _NoReplicas:
    async def publish(self, version: int, policy_hash: str) -> None:
        return None


class _Clock:
    def now(self) -> float:
        return time.perf_counter()


class _Journal:
    """Keeps what the comparison needs, and stops after the last batch."""

    def __init__(
        self, rank: LearnerRank, result: Replay, *, last: int, on_update: Callable[[], None], bits_only: bool
    ) -> None:
        self._rank, self._result, self._last, self._on_update = rank, result, last, on_update
        self._bits_only = bits_only

    def event(self, event: Event) -> None:
        return None

    def receipt(self, receipt) -> None:
        return None

    async def update_published(self, update: PublishedUpdate) -> bool:
        self._result.parameters.append(_kept(_flat(self._rank), self._bits_only))
        self._result.hashes.append(update.step.policy_hash)
        self._result.sums_bytes = max(self._result.sums_bytes, self._rank.stream.memory.peak_sums)
        self._on_update()
        return update.batch.update < self._last


def _flat(rank: LearnerRank) -> Tensor:
    return rank.optimizer.state()["master"].detach()


def _kept(flat: Tensor, bits_only: bool) -> Tensor:
    return torch.empty(0) if bits_only else _on_disk(flat)


def _on_disk(flat: Tensor) -> Tensor:
    """A copy in a file of its own, whose name is gone: a replay keeps one of all parameters for every update."""
    with tempfile.NamedTemporaryFile() as file:
        copy = torch.from_file(file.name, shared=True, size=flat.numel(), dtype=flat.dtype)
    return copy.copy_(flat)

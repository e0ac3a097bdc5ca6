"""Rollout, learner and publisher whose work takes virtual time and makes no tokens: durations in, timings out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace

import numpy as np

from thundersync.batch import GroupKey, LogicalBatch, SourceKey, Trajectory, TrajectoryKey, Turn
from thundersync.ports import ContentReady, Event, PublishedUpdate, Receipt, RewardReady, StepReport, TurnReady

_NONE = np.zeros(0, np.int32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """Seconds of each kind of work, as functions of identity, so that order of execution changes nothing."""

    turns: Callable[[TrajectoryKey], list[float]]
    """Generation plus tool time of each turn of a trajectory."""
    source: Callable[[SourceKey], float]
    """Learner service of a source (Equation 1's p_j)."""
    deferred: Callable[[TrajectoryKey], float]
    group: Callable[[GroupKey], float]
    publication: float


@dataclass(slots=True)
class VirtualClock:
    def now(self) -> float:
        return asyncio.get_running_loop().time()


class VirtualRollout:
    """Trajectories run on `slots` places in admission order; tokens are stamped with the version served at sampling."""

    def __init__(self, durations: Durations, slots: int) -> None:
        self._durations, self._slots = durations, asyncio.Semaphore(slots)
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()
        self.version = 0

    async def start(self, batch: LogicalBatch) -> None:
        for key in batch.keys:
            task = asyncio.ensure_future(self._run(key))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def events(self) -> AsyncIterator[Event]:
        while True:
            yield await self._events.get()

    async def _run(self, key: TrajectoryKey) -> None:
        now = asyncio.get_running_loop().time
        async with self._slots:
            turns = []
            for t, seconds in enumerate(self._durations.turns(key)):
                stamp = np.array([self.version], np.int32)
                turn = Turn(context_ids_C=_NONE, action_ids_A=_NONE[:0], logprobs_A=_NONE, versions_A=stamp)
                await asyncio.sleep(seconds)
                turns.append(turn)
                ready = TurnReady(key=key.turn(t), prompt_ids_P=_NONE, turn=turn, teacher_logprobs_A=_NONE, at=now())
                self._events.put_nowait(ready)
            trajectory = Trajectory(
                key=key,
                task_id="",
                prompt_ids_P=_NONE,
                turns=tuple(turns),
                reward=None,
                success=None,
                outcome="virtual",
            )
            self._events.put_nowait(ContentReady(trajectory=trajectory, at=now()))
            graded = replace(trajectory, reward=0.0, success=False)
            self._events.put_nowait(RewardReady(trajectory=graded, at=now()))


class VirtualLearner:
    """One lane that serves calls in the order in which they were made."""

    def __init__(self, durations: Durations, first_version: int = 0) -> None:
        self._durations, self._lane = durations, asyncio.Lock()
        self.version = first_version
        self.busy = 0.0

    async def open(self, batch: LogicalBatch) -> None:
        pass

    async def learn_trajectory(self, event: RewardReady) -> Receipt:
        return await self._serve("source", event.key, event.at, self._trajectory_seconds(event.trajectory))

    async def learn_turn(self, event: TurnReady) -> Receipt:
        return await self._serve("source", event.key, event.at, self._durations.source(event.key))

    async def forward_turn(self, event: TurnReady) -> Receipt:
        return await self._serve("source", event.key, event.at, self._durations.source(event.key))

    async def learn_content(self, event: ContentReady) -> Receipt:
        return await self._serve("source", event.key, event.at, self._trajectory_seconds(event.trajectory))

    async def bind_reward(self, event: RewardReady) -> Receipt:
        return await self._serve("bind", event.key, event.at, 0.0)

    async def close_trajectory(self, event: ContentReady | RewardReady) -> Receipt:
        return await self._serve("deferred", event.key, event.at, self._durations.deferred(event.key))

    async def close_group(self, group: GroupKey) -> Receipt:
        now = asyncio.get_running_loop().time()
        return await self._serve("group", group, now, self._durations.group(group))

    async def learn_batch(self, events: list[Event]) -> list[Receipt]:
        finished = [event.trajectory for event in events if isinstance(event, RewardReady)]
        groups = {trajectory.key.group_key for trajectory in finished}
        seconds = sum(map(self._trajectory_seconds, finished)) + sum(map(self._durations.group, groups))
        return [await self._serve("direct", None, asyncio.get_running_loop().time(), seconds)]

    async def step(self) -> StepReport:
        async with self._lane:
            self.version += 1
            now = asyncio.get_running_loop().time()
        return StepReport(
            version=self.version,
            policy_hash=str(self.version),
            started_at=now,
            ended_at=now,
            divisor=1.0,
            gradient_norm=0.0,
            clip_coefficient=1.0,
            entropy=0.0,
            logprob_mismatch={},
        )

    def _trajectory_seconds(self, trajectory: Trajectory) -> float:
        return self._durations.source(SourceKey(*trajectory.key))

    async def _serve(self, kind: str, key, ready_at: float, seconds: float) -> Receipt:
        async with self._lane:  # asyncio locks are fair: first asked, first served
            started = asyncio.get_running_loop().time()
            await asyncio.sleep(seconds)
            self.busy += seconds
            return Receipt(
                key=key,
                kind=kind,
                update=self.version,
                ready_at=ready_at,
                started_at=started,
                ended_at=started + seconds,
                tokens=0,
                rank=0,
            )


@dataclass(slots=True)
class VirtualPublisher:
    rollout: VirtualRollout
    seconds: float

    async def publish(self, version: int, policy_hash: str) -> None:
        await asyncio.sleep(self.seconds)
        self.rollout.version = version


@dataclass(slots=True)
class MemoryJournal:
    """Keeps everything, and stops the schedule after `updates` updates."""

    updates: int
    events: list[Event] = field(default_factory=list)
    receipts: list[Receipt] = field(default_factory=list)
    published: list[PublishedUpdate] = field(default_factory=list)

    def event(self, event: Event) -> None:
        self.events.append(event)

    def receipt(self, receipt: Receipt) -> None:
        self.receipts.append(receipt)

    async def update_published(self, update: PublishedUpdate) -> bool:
        self.published.append(update)
        return len(self.published) < self.updates

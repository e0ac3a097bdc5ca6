"""The Rollout, Learner and Publisher ports over Ray actors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from ray.exceptions import RayActorError

from thundersync.batch import GroupKey, LogicalBatch
from thundersync.ports import ContentReady, Event, Receipt, RewardReady, RolloutError, StepReport, TurnReady
from thundersync.publication import AcknowledgedPublisher
from thundersync.rollout.engine import ServedPolicy


class RayRollout:
    """Groups go to the replica with the fewest admitted trajectories, whole, so that the prompt's cache is shared."""

    def __init__(self, replicas: Mapping[str, Any]) -> None:
        self._replicas = replicas
        self._load = {name: 0 for name in replicas}
        self._owner: dict[GroupKey, str] = {}
        self._queue: asyncio.Queue[Event | BaseException] = asyncio.Queue()
        self._pollers = [asyncio.ensure_future(self._poll(name, replica)) for name, replica in replicas.items()]

    async def start(self, batch: LogicalBatch) -> None:
        shares: dict[str, list] = {}
        for group in batch.groups:
            name = min(self._load, key=self._load.get)
            self._load[name] += group.size
            self._owner[group.key] = name
            shares.setdefault(name, []).append(group)
        await asyncio.gather(
            *(
                self._replicas[name].start.remote(LogicalBatch(update=batch.update, groups=tuple(groups)))
                for name, groups in shares.items()
            )
        )

    async def events(self) -> AsyncIterator[Event]:
        while True:
            event = await self._queue.get()
            if isinstance(event, BaseException):
                raise event
            if isinstance(event, RewardReady):
                self._load[self._owner[event.key.group_key]] -= 1
            yield event

    def close(self) -> None:
        for poller in self._pollers:
            poller.cancel()

    async def _poll(self, name: str, replica: Any) -> None:
        try:
            while True:
                for event in await replica.next_events.remote():
                    self._queue.put_nowait(event)
        except RayActorError as error:
            self._queue.put_nowait(RolloutError(f"rollout replica {name} died: {error}"))
        except Exception as error:  # a schedule that waits for events must see it, or it would wait for ever
            self._queue.put_nowait(error)


class RayLearner:
    """Learner ranks: sources go to the rank that owns their group; `open`, `learn_batch` and `step` to all.

    Each call is made before the first await, so that calls arrive in the order they were made.
    """

    def __init__(self, ranks: Sequence[Any]) -> None:
        self._ranks = tuple(ranks)
        self._owner: dict[GroupKey, int] = {}

    async def open(self, batch: LogicalBatch) -> None:
        shares = batch.shares(len(self._ranks))
        self._owner = {plan.key: rank for rank, share in enumerate(shares) for plan in share.groups}
        await asyncio.gather(*(rank.open.remote(batch) for rank in self._ranks))

    async def learn_trajectory(self, event: RewardReady) -> Receipt:
        return await self._of(event).learn_trajectory.remote(event)

    async def learn_turn(self, event: TurnReady) -> Receipt:
        return await self._of(event).learn_turn.remote(event)

    async def forward_turn(self, event: TurnReady) -> Receipt:
        return await self._of(event).forward_turn.remote(event)

    async def learn_content(self, event: ContentReady, turns: Sequence[TurnReady] = ()) -> Receipt:
        return await self._of(event).learn_content.remote(event, turns)

    async def bind_reward(self, event: RewardReady) -> Receipt:
        return await self._of(event).bind_reward.remote(event)

    async def close_trajectory(self, event: ContentReady | RewardReady) -> Receipt:
        return await self._of(event).close_trajectory.remote(event)

    async def close_group(self, group: GroupKey) -> Receipt:
        return await self._ranks[self._owner[group]].close_group.remote(group)

    async def learn_batch(self, events: list[Event]) -> list[Receipt]:
        shares: list[list[Event]] = [[] for _ in self._ranks]
        for event in events:
            shares[self._owner[_group_of(event)]].append(event)
        calls = [rank.learn_batch.remote(own) for rank, own in zip(self._ranks, shares, strict=True)]
        return [receipt for receipts in await asyncio.gather(*calls) for receipt in receipts]

    async def step(self) -> StepReport:
        """What rank 0 reports, over the time that all ranks took. Raises RuntimeError when their policies differ."""
        reports = await asyncio.gather(*(rank.step.remote() for rank in self._ranks))
        if len({report.policy_hash for report in reports}) > 1:
            stated = ", ".join(f"rank {rank} {report.policy_hash[:12]}" for rank, report in enumerate(reports))
            raise RuntimeError(f"the learner ranks stepped to different policies: {stated}; nothing was published")
        started, ended = min(r.started_at for r in reports), max(r.ended_at for r in reports)
        return replace(reports[0], started_at=started, ended_at=ended)

    def _of(self, event: Event) -> Any:
        return self._ranks[self._owner[_group_of(event)]]


def _group_of(event: Event) -> GroupKey:
    return GroupKey(event.key.update, event.key.group)


def ray_publisher(learner: Any, replicas: Mapping[str, Any], timeout_s: float) -> AcknowledgedPublisher:
    """Weights go through the object store once per version, whatever the number of replicas."""

    @lru_cache(maxsize=1)
    def weights(version: int) -> Any:
        return learner.weights.remote()

    async def load(replica: Any, version: int) -> ServedPolicy:
        return await replica.load.remote(version, weights(version))

    loads = {name: partial(load, replica) for name, replica in replicas.items()}
    return AcknowledgedPublisher(replicas=loads, timeout_s=timeout_s)

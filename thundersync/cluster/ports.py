"""The Rollout, Learner and Publisher ports over Ray actors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
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
    """One learner rank. The call is made before the first await, so that calls arrive in the order they were made."""

    def __init__(self, rank: Any) -> None:
        self._rank = rank

    async def open(self, batch: LogicalBatch) -> None:
        await self._rank.open.remote(batch)

    async def learn_trajectory(self, event: RewardReady) -> Receipt:
        return await self._rank.learn_trajectory.remote(event)

    async def learn_turn(self, event: TurnReady) -> Receipt:
        return await self._rank.learn_turn.remote(event)

    async def forward_turn(self, event: TurnReady) -> Receipt:
        return await self._rank.forward_turn.remote(event)

    async def learn_content(self, event: ContentReady) -> Receipt:
        return await self._rank.learn_content.remote(event)

    async def bind_reward(self, event: RewardReady) -> Receipt:
        return await self._rank.bind_reward.remote(event)

    async def close_trajectory(self, event: ContentReady | RewardReady) -> Receipt:
        return await self._rank.close_trajectory.remote(event)

    async def close_group(self, group: GroupKey) -> Receipt:
        return await self._rank.close_group.remote(group)

    async def learn_batch(self, events: list[Event]) -> list[Receipt]:
        return await self._rank.learn_batch.remote(events)

    async def step(self) -> StepReport:
        return await self._rank.step.remote()


def ray_publisher(learner: Any, replicas: Mapping[str, Any], timeout_s: float) -> AcknowledgedPublisher:
    """Weights go through the object store once per version, whatever the number of replicas."""

    @lru_cache(maxsize=1)
    def weights(version: int) -> Any:
        return learner.weights.remote()

    async def load(replica: Any, version: int) -> ServedPolicy:
        return await replica.load.remote(version, weights(version))

    loads = {name: partial(load, replica) for name, replica in replicas.items()}
    return AcknowledgedPublisher(replicas=loads, timeout_s=timeout_s)

"""The Learner port on virtual time: one lane per rank, each serving its groups' work in the order of the calls."""

from __future__ import annotations

import asyncio
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from thundersync.batch import GroupKey, LogicalBatch, TrajectoryKey
from thundersync.ports import ContentReady, Event, LearnerError, Receipt, RewardReady, StepReport, TurnReady
from thundersync.simulation.durations import Durations
from thundersync.simulation.faults import Faults


class TurnWork(NamedTuple):
    """Turns of one trajectory that go to the learner's queue without an event each."""

    group: GroupKey
    ready_T: np.ndarray
    service_T: np.ndarray


class VirtualLearner:
    """The group at place i of a batch is learnt by rank i mod `ranks`; a rank's work queues, ranks run side by side."""

    def __init__(
        self,
        durations: Durations,
        *,
        ranks: int = 1,
        first_version: int = 0,
        faults: Faults = Faults(),  # noqa: B008  (frozen)
    ) -> None:
        self.version = first_version
        self.busy = [0.0] * ranks
        """Seconds of service so far, by rank."""
        self.steps: list[tuple[LogicalBatch, Counter[TrajectoryKey]]] = []
        """What each optimizer step was made of: its batch, and how often each trajectory was learned for it."""
        self._durations, self._faults = durations, faults
        self._free = [0.0] * ranks
        self._owner: dict[GroupKey, int] = {}
        self._batch: LogicalBatch | None = None
        self._learned: Counter[TrajectoryKey] = Counter()
        self._expected = [_Expected.of([]) for _ in range(ranks)]

    # ---- the port

    async def open(self, batch: LogicalBatch) -> None:
        if self._batch is not None:
            raise LearnerError(f"update {batch.update} was opened before update {self._batch.update} stepped")
        self._batch, self._learned = batch, Counter()
        self._owner = {plan.key: place % len(self._free) for place, plan in enumerate(batch.groups)}

    async def learn_trajectory(self, event: RewardReady) -> Receipt:
        return await self._learn(event)

    async def learn_content(self, event: ContentReady, turns: Sequence[TurnReady] = ()) -> Receipt:
        return await self._learn(event)

    async def bind_reward(self, event: RewardReady) -> Receipt:
        return await self._serve("bind", event, 0.0)

    async def learn_turn(self, event: TurnReady) -> Receipt:
        times = self._durations.trajectory(event.key.trajectory_key)
        return await self._serve("source", event, times.turn_service * float(times.turn_shares_T[event.key.turn]))

    async def forward_turn(self, event: TurnReady) -> Receipt:
        return await self.learn_turn(event)

    async def close_trajectory(self, event: ContentReady | RewardReady) -> Receipt:
        self._learned[event.key] += 1
        return await self._serve("deferred", event, self._durations.trajectory(event.key).deferred)

    async def close_group(self, group: GroupKey) -> Receipt:
        now = asyncio.get_running_loop().time()
        return await self._work("group", group, self._owner[group], now, self._durations.group(group))

    async def learn_batch(self, events: list[Event]) -> list[Receipt]:
        seconds, groups = [0.0] * len(self._free), set()
        for event in events:
            if isinstance(event, RewardReady):
                key = event.key
                self._learned[key] += 1
                groups.add(key.group_key)
                seconds[self._owner[key.group_key]] += self._durations.trajectory(key).service
        for group in groups:
            seconds[self._owner[group]] += self._durations.group(group)
        now = asyncio.get_running_loop().time()
        calls = (self._work("direct", None, rank, now, own) for rank, own in enumerate(seconds) if own)
        return list(await asyncio.gather(*calls))

    async def step(self) -> StepReport:
        now = asyncio.get_running_loop().time()
        started = max([now, *(self._serve_expected(rank, math.inf) for rank in range(len(self._free)))])
        seconds = self._durations.step(self._batch.update)
        ends = [self._ends(rank, started + seconds) for rank in range(len(self._free))]
        self._free = [ended := max(ends)] * len(self._free)
        await asyncio.gather(*(self._finish(rank, end) for rank, end in enumerate(ends)))
        self.steps.append((self._batch, self._learned))
        self._batch, self.version = None, self.version + 1
        return StepReport(
            version=self.version,
            policy_hash=policy_hash(self.version),
            started_at=started,
            ended_at=ended,
            divisor=1.0,
            gradient_norm=0.0,
            clip_coefficient=1.0,
            entropy=0.0,
            logprob_mismatch={"max": 0.0, "mean": 0.0, "kl": 0.0},
        )

    # ---- turns without events

    def expect(self, work: Sequence[TurnWork]) -> None:
        """The turns of the batch that has just started. They enter the queues when they are ready, as their events
        would have made them do under ThunderSync without a cap: in readiness order, ahead of any later call.
        """
        by_rank: dict[int, list[TurnWork]] = defaultdict(list)
        for one in work:
            by_rank[self._owner[one.group]].append(one)
        self._expected = [_Expected.of(by_rank[rank]) for rank in range(len(self._free))]

    def _serve_expected(self, rank: int, until: float) -> float:
        """Serves the rank's turns that are ready by then; returns when its lane is free."""
        ready_N, service_N = self._expected[rank].take(until)
        if len(ready_N):
            served_N = np.cumsum(service_N)
            # Equation 15: the last of them ends at the latest of (ready_j + service of j and all later ones).
            ends = served_N[-1] + np.max(ready_N - served_N + service_N)
            self._free[rank] = max(ends, self._free[rank] + served_N[-1])
            self.busy[rank] += served_N[-1]
        return self._free[rank]

    # ---- inside

    async def _learn(self, event: ContentReady | RewardReady) -> Receipt:
        self._learned[event.key] += 1
        return await self._serve("source", event, self._durations.trajectory(event.key).service)

    async def _serve(self, kind: str, event: Event, seconds: float) -> Receipt:
        rank = self._owner[GroupKey(event.key.update, event.key.group)]
        return await self._work(kind, event.key, rank, event.at, seconds)

    async def _work(self, kind: str, key, rank: int, ready_at: float, seconds: float) -> Receipt:
        now = asyncio.get_running_loop().time()
        started = max(now, self._serve_expected(rank, now))
        self._free[rank] = ended = self._ends(rank, started + seconds)
        self.busy[rank] += seconds
        await self._finish(rank, ended)
        return Receipt(
            key=key,
            kind=kind,
            update=self.version,
            ready_at=ready_at,
            started_at=started,
            ended_at=ended,
            tokens=0,
            rank=rank,
        )

    def _ends(self, rank: int, time: float) -> float:
        """When work that should end at `time` ends: later or never, with a fault."""
        if not self._faults:
            return time
        if time >= self._faults.silent_from("rank", rank):
            return math.inf
        return time + self._faults.delay("rank", rank, time)

    async def _finish(self, rank: int, end: float) -> None:
        """Raises LearnerError when a rank dies over its work; waits for ever when it hangs."""
        if end == math.inf and (death := self._faults.of("rank_dies", rank)):
            await _until(death.at)
            raise LearnerError(f"learner rank {rank} died")
        await _until(end)


class _Expected:
    """Turns of a batch on one rank, in readiness order."""

    def __init__(self, ready_N: np.ndarray, service_N: np.ndarray) -> None:
        self._ready_N, self._service_N, self._next = ready_N, service_N, 0

    @classmethod
    def of(cls, work: Sequence[TurnWork]) -> _Expected:
        if not work:
            return cls(np.zeros(0), np.zeros(0))
        ready_N = np.concatenate([one.ready_T for one in work])
        service_N = np.concatenate([one.service_T for one in work])
        order_N = np.argsort(ready_N, kind="stable")
        return cls(ready_N[order_N], service_N[order_N])

    def take(self, until: float) -> tuple[np.ndarray, np.ndarray]:
        first = self._next
        if first == len(self._ready_N):
            return self._ready_N[first:], self._service_N[first:]
        # Timers fire within a nanosecond of their time.
        self._next = int(np.searchsorted(self._ready_N, until + 2e-9, side="right"))
        self._next = max(first, self._next)
        return self._ready_N[first : self._next], self._service_N[first : self._next]


def policy_hash(version: int) -> str:
    return f"virtual-{version}"


async def _until(time: float) -> None:
    """Waits until then; for ever at infinity."""
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    if time < math.inf:
        loop.call_at(time, _resolve, future)
    await future


def _resolve(future: asyncio.Future) -> None:
    if not future.done():
        future.set_result(None)

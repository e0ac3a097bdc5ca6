"""Ports that do not wait for ever, around the Rollout and Learner ports of any kind.

Slow work is no fault while other work goes on. When nothing at all has come for a set time although something is
awaited, whoever waits gets an error that names what is missing and the setting that holds the limit. The rollout's
events are also checked for order: each of them comes once, whatever the release policy would make of a second one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from thundersync.batch import GroupKey, LogicalBatch, TrajectoryKey
from thundersync.ports import (
    ContentReady,
    Event,
    Learner,
    LearnerError,
    Receipt,
    RewardReady,
    Rollout,
    RolloutError,
    StepReport,
    TurnReady,
)

T = TypeVar("T")
NAMED = 4
"""How many missing things a message lists."""


class Silence:
    """After `limit_s` seconds of the running loop without a sign of life, every waiting task gets `error()`.

    One timer for any number of waiting tasks. `error` returns None while nothing is missing: the silence is then right.
    """

    def __init__(self, limit_s: float, error: Callable[[], Exception | None]) -> None:
        self._limit_s, self._error = limit_s, error
        self._waiting: set[asyncio.Task] = set()
        self._ended: dict[asyncio.Task, Exception] = {}
        self._heard = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Around an await in the current task; its end, however it comes, is a sign of life."""
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        if not self._waiting:
            self._heard = loop.time()
            if self._timer is None:
                self._timer = loop.call_later(self._limit_s, self._look)
        self._waiting.add(task)
        try:
            yield
        except asyncio.CancelledError:
            if (error := self._ended.pop(task, None)) is None:
                raise
            task.uncancel()
            raise error from None
        finally:
            self._waiting.discard(task)
            self._heard = loop.time()

    def _look(self) -> None:
        self._timer = None
        if not self._waiting:
            return
        loop = asyncio.get_running_loop()
        due = self._heard + self._limit_s
        if loop.time() >= due:
            if (error := self._error()) is None:
                due = loop.time() + self._limit_s
            else:
                for task in self._waiting:
                    self._ended[task] = error
                    task.cancel()
                return
        self._timer = loop.call_at(due, self._look)


class WatchedRollout:
    """The Rollout port; raises RolloutError for silence and for an event that is not the next of its trajectory."""

    def __init__(self, rollout: Rollout, timeout_s: float) -> None:
        self._rollout, self._timeout_s = rollout, timeout_s
        self._silence = Silence(timeout_s, self._missing)
        self._stage: dict[TrajectoryKey, int | None] = {}
        """Of each open trajectory: the turn that comes next, None once its content is final."""

    async def start(self, batch: LogicalBatch) -> None:
        self._stage |= dict.fromkeys(batch.keys, 0)
        await self._rollout.start(batch)

    async def events(self) -> AsyncIterator[Event]:
        events = self._rollout.events()
        while True:
            with self._silence.waiting():
                event = await anext(events)
            self._take(event)
            yield event

    def _take(self, event: Event) -> None:
        key = event.key if not isinstance(event, TurnReady) else event.key.trajectory_key
        stage = self._stage.get(key, "closed")
        match event, stage:
            case TurnReady(), int() if event.key.turn == stage:
                self._stage[key] = event.key.turn + 1
            case ContentReady(), int():
                self._stage[key] = None
            case RewardReady(), None:
                del self._stage[key]
            case _:
                kind = {TurnReady: "turn", ContentReady: "content", RewardReady: "reward"}[type(event)]
                raise RolloutError(f"the {kind} of {event.key} came twice, out of order, or was never asked for")

    def _missing(self) -> RolloutError | None:
        if not self._stage:
            return None
        waits = [f"{key} for its {'reward' if stage is None else 'turns'}" for key, stage in self._stage.items()]
        return RolloutError(
            f"no event of the rollout for {self._timeout_s:g} s (scale.rollout_timeout_s); "
            f"{len(waits)} trajectories are open: {_some(waits)}"
        )


@dataclass(slots=True)
class WatchedLearner:
    """The Learner port; raises LearnerError when no call has ended for `timeout_s` while some wait."""

    learner: Learner
    timeout_s: float
    ranks: int = 1
    """Groups are learnt by the rank at their place in the batch, modulo this number."""
    _silence: Silence = field(init=False)
    _calls: dict[asyncio.Task, tuple] = field(init=False, default_factory=dict)
    _owner: dict[GroupKey, int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._silence = Silence(self.timeout_s, self._missing)

    async def open(self, batch: LogicalBatch) -> None:
        self._owner = {plan.key: place % self.ranks for place, plan in enumerate(batch.groups)}
        await self._call("open", None, self.learner.open(batch))

    async def learn_trajectory(self, event: RewardReady) -> Receipt:
        return await self._call("learn_trajectory", event.key, self.learner.learn_trajectory(event))

    async def learn_turn(self, event: TurnReady) -> Receipt:
        return await self._call("learn_turn", event.key, self.learner.learn_turn(event))

    async def forward_turn(self, event: TurnReady) -> Receipt:
        return await self._call("forward_turn", event.key, self.learner.forward_turn(event))

    async def learn_content(self, event: ContentReady, turns: Sequence[TurnReady] = ()) -> Receipt:
        return await self._call("learn_content", event.key, self.learner.learn_content(event, turns))

    async def bind_reward(self, event: RewardReady) -> Receipt:
        return await self._call("bind_reward", event.key, self.learner.bind_reward(event))

    async def close_trajectory(self, event: ContentReady | RewardReady) -> Receipt:
        return await self._call("close_trajectory", event.key, self.learner.close_trajectory(event))

    async def close_group(self, group: GroupKey) -> Receipt:
        return await self._call("close_group", group, self.learner.close_group(group))

    async def learn_batch(self, events: list[Event]) -> list[Receipt]:
        return await self._call("learn_batch", None, self.learner.learn_batch(events))

    async def step(self) -> StepReport:
        return await self._call("step", None, self.learner.step())

    async def _call(self, name: str, key, call: Awaitable[T]) -> T:
        task = asyncio.current_task()
        self._calls[task] = (name, key)
        try:
            with self._silence.waiting():
                return await call
        finally:
            del self._calls[task]

    def _missing(self) -> LearnerError:
        waits = [self._words(name, key) for name, key in self._calls.values()]
        return LearnerError(
            f"no call of the learner ended for {self.timeout_s:g} s (scale.learner_timeout_s); "
            f"{len(waits)} wait: {_some(waits)}"
        )

    def _words(self, name: str, key) -> str:
        if key is None:
            return f"{name} on {'rank 0' if self.ranks == 1 else f'ranks 0 to {self.ranks - 1}'}"
        return f"{name} of {key} on rank {self._owner.get(GroupKey(key.update, key.group), 0)}"


def _some(items: list[str]) -> str:
    return ", ".join(items[:NAMED]) + (", ..." if len(items) > NAMED else "")

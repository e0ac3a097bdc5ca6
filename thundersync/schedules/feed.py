"""Hands the events of one logical batch to the learner in readiness order; closes trajectories and groups in time.

The queue of Equation 1 is the learner's own: calls are served in the order in which they are made here, and a call is
made the moment its event arrives, so the learner is never idle while a source is ready (work-conserving, Section 3.3).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial

from thundersync.batch import GroupKey, Ledger, LogicalBatch, TrajectoryKey
from thundersync.ports import ContentReady, Event, Journal, Learner, Receipt, RewardReady, TurnReady


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """When learner work may start, and how much of it may be held (Appendix D.3)."""

    policy: str
    """trajectory, content, turn_eager or turn_forward."""
    needs_reward: bool
    """Whether a trajectory is weighted by its reward, so that it closes with RewardReady, not with ContentReady."""
    open_groups: int | None = None
    """The cap k on groups that hold statistics at once on a rank; further work waits, in readiness order. None is
    unbounded."""
    ranks: int = 1
    """Learner ranks: the group at place i of a batch is learnt by rank i mod `ranks`."""
    waiting_rewards: int = 1
    """The cap u on gradients that are held until their reward comes (`content`)."""


class Feed:
    """The learner work of one batch.

        release       TurnReady       ContentReady                    RewardReady
        trajectory                                                    learn_trajectory, closes
        content                       learn_content, while u lasts    bind_reward, closes
        content, with no reward needed:  learn_content, closes
        turn_eager    learn_turn      close_trajectory, closes
        turn_forward  forward_turn    close_trajectory, closes    or  close_trajectory, closes

    A receipt says in `deferred` what its work had to wait for, beyond its place in the queue.
    """

    def __init__(self, batch: LogicalBatch, learner: Learner, journal: Journal, release: Release) -> None:
        self._learner, self._journal, self._release = learner, journal, release
        self._cap = len(batch.groups) if release.open_groups is None else release.open_groups
        self._ledger = Ledger(batch)
        self._rank = {plan.key: place % release.ranks for place, plan in enumerate(batch.groups)}
        self._holding: list[set[GroupKey]] = [set() for _ in range(release.ranks)]
        """The groups that hold statistics, by rank."""
        self._waiting: set[TrajectoryKey] = set()
        """Trajectories whose gradient is held until their reward comes."""
        self._turns: defaultdict[TrajectoryKey, list[TurnReady]] = defaultdict(list)
        """Turns that the learner gets with their trajectory (`content` where no reward is needed)."""
        self._deferred: deque[Event] = deque()
        self._passed_over: set[TrajectoryKey] = set()
        """Trajectories that are learnt when their reward comes, because others' gradients were waiting for theirs."""
        self._work: list[asyncio.Task[Receipt]] = []
        self._failure: BaseException | None = None

    def take(self, event: Event, reason: str = "") -> None:
        """Releases the event's learner work now, or defers it when its group may not open yet.

        `reason` is why it comes again, after it was deferred.

        Raises ValueError for an event of another batch, and whatever work released before has failed of.
        """
        if self._failure is not None:
            raise self._failure
        group = GroupKey(event.key.update, event.key.group)
        if group not in self._rank:
            raise ValueError(f"{event.key} belongs to no group of this batch: never registered, or trained already")
        if not self._is_work(event):
            if isinstance(event, TurnReady) and not self._release.needs_reward:
                self._turns[event.key.trajectory_key].append(event)
            return
        holding = self._holding[self._rank[group]]
        if group in holding or len(holding) < self._cap:
            self._admit(group, holding, event, reason)
        else:
            self._deferred.append(event)

    async def finish(self) -> None:
        """Waits until every registered trajectory has been learned exactly once and every group is closed."""
        while self._work:
            work, self._work = self._work, []
            for receipt in await asyncio.gather(*work):
                self._journal.receipt(receipt)
        self._ledger.require_complete()

    def _is_work(self, event: Event) -> bool:
        match self._release.policy:
            case "trajectory":
                return isinstance(event, RewardReady)
            case "content":
                return isinstance(event, ContentReady) or self._closes(event)
        return isinstance(event, TurnReady) or self._closes(event)

    def _closes(self, event: Event) -> bool:
        """Whether the event completes its trajectory for the learner."""
        return isinstance(event, RewardReady if self._release.needs_reward else ContentReady)

    def _call(self, event: Event) -> Callable[[Event], Awaitable[Receipt]] | None:
        learner = self._learner
        match self._release.policy, event:
            case "trajectory", _:
                return learner.learn_trajectory
            case "turn_eager", TurnReady():
                return learner.learn_turn
            case "turn_forward", TurnReady():
                return learner.forward_turn
            case "turn_eager" | "turn_forward", _:
                return learner.close_trajectory
            case "content", RewardReady():
                held = event.key in self._waiting
                self._waiting.discard(event.key)
                return learner.bind_reward if held else learner.learn_trajectory
            case "content", ContentReady() if not self._release.needs_reward:
                return partial(learner.learn_content, turns=self._turns.pop(event.key, []))
        if len(self._waiting) >= self._release.waiting_rewards:
            self._passed_over.add(event.key)
            return None  # it is learnt whole when its reward comes
        self._waiting.add(event.key)
        return learner.learn_content

    def _admit(self, group: GroupKey, holding: set[GroupKey], event: Event, reason: str) -> None:
        call = self._call(event)
        if call is None:
            return
        holding.add(group)
        self._submit(call(event), "waiting_rewards" if event.key in self._passed_over else reason)
        if self._closes(event) and self._ledger.close(event.key):
            self._submit(self._learner.close_group(group))
            holding.remove(group)
            self._open_deferred()

    def _open_deferred(self) -> None:
        waiting, self._deferred = self._deferred, deque()
        for event in waiting:
            self.take(event, "open_groups")

    def _submit(self, call: Awaitable[Receipt], reason: str = "") -> None:
        task = asyncio.ensure_future(_with_reason(call, reason) if reason else call)
        task.add_done_callback(self._note_failure)
        self._work.append(task)

    def _note_failure(self, task: asyncio.Task[Receipt]) -> None:
        error = None if task.cancelled() else task.exception()
        self._failure = self._failure or error


async def _with_reason(call: Awaitable[Receipt | None], reason: str) -> Receipt | None:
    """The receipt with the reason, unless the learner gave one; None as it is: the work belongs to another rank."""
    receipt = await call
    return replace(receipt, deferred=reason) if receipt and not receipt.deferred else receipt

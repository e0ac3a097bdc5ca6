"""Hands the events of one logical batch to the learner in readiness order; closes trajectories and groups in time.

The queue of Equation 1 is the learner's own: calls are served in the order in which they are made here, and a call is
made the moment its event arrives, so the learner is never idle while a source is ready (work-conserving, Section 3.3).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable

from thundersync.batch import GroupKey, Ledger, LogicalBatch
from thundersync.ports import ContentReady, Event, Journal, Learner, Receipt, RewardReady, TurnReady


class Feed:
    """The learner work of one batch, released as `release` says.

        release       a source is released by    a trajectory is closed by
        trajectory    RewardReady                RewardReady
        turn_eager    TurnReady                  ContentReady

    `open_groups` is the cap k of Appendix D.3: while k groups hold statistics, the work of a further group waits, in
    readiness order, until one of them closes.
    """

    def __init__(
        self, batch: LogicalBatch, learner: Learner, journal: Journal, release: str, open_groups: int | None = None
    ) -> None:
        self._learner, self._journal, self._release = learner, journal, release
        self._cap = len(batch.groups) if open_groups is None else open_groups
        self._ledger = Ledger(batch)
        self._holding: set[GroupKey] = set()
        self._deferred: deque[Event] = deque()
        self._work: list[asyncio.Task[Receipt]] = []

    def take(self, event: Event) -> None:
        """Releases the event's learner work now, or defers it when its group may not open yet."""
        group = GroupKey(event.key.update, event.key.group)
        if self._call(event) is None:
            return
        if group in self._holding or len(self._holding) < self._cap:
            self._admit(group, event)
        else:
            self._deferred.append(event)

    async def finish(self) -> None:
        """Waits until every registered trajectory has been learned exactly once and every group is closed."""
        while self._work:
            work, self._work = self._work, []
            for receipt in await asyncio.gather(*work):
                self._journal.receipt(receipt)
        self._ledger.require_complete()

    def _call(self, event: Event) -> Awaitable[Receipt] | None:
        match self._release, event:
            case "trajectory", RewardReady():
                return self._learner.learn_trajectory
            case "turn_eager", TurnReady():
                return self._learner.learn_turn
            case "turn_eager", ContentReady():
                return self._learner.close_trajectory
        return None

    def _admit(self, group: GroupKey, event: Event) -> None:
        self._holding.add(group)
        self._submit(self._call(event)(event))
        if not isinstance(event, TurnReady) and self._ledger.close(event.key):
            self._submit(self._learner.close_group(group))
            self._holding.remove(group)
            self._open_deferred()

    def _open_deferred(self) -> None:
        waiting, self._deferred = self._deferred, deque()
        for event in waiting:
            self.take(event)

    def _submit(self, call: Awaitable[Receipt]) -> None:
        self._work.append(asyncio.ensure_future(call))

"""Fully Async: no batch barrier. Groups roll without pause, complete ones form a batch, weights swap in flight.

    rollout   |= groups ==========|swap|====================|swap|=======
    learner        |== first B complete ==|step|  |== next B ==|step|

A trajectory may span versions, and a batch mixes ages. The lag of a token, the learner version that trains it minus the
version that sampled it, is bounded by D = `lag_bound` without dropping anything:

- a group admitted under version v must train at version v + D or before (its deadline);
- admission stops while (D + 1) B groups are outstanding, those in training included, so that the B places of each of
  the versions v, ..., v + D suffice for every outstanding group in order of deadline;
- the learner takes the complete groups with the earliest deadlines, and waits while those that it would leave behind
  are too many for the places before their deadlines: j B places up to version k + j, none at k itself.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from itertools import count

from thundersync.batch import GroupKey, GroupPlan, Ledger, LogicalBatch
from thundersync.ports import Event, RewardReady
from thundersync.schedules.parts import Parts, learn_direct, publish


@dataclass(slots=True, kw_only=True, eq=False)
class Outstanding:
    """A group that was admitted and not yet trained."""

    plan: GroupPlan
    admitted_under: int
    events: list[Event] = field(default_factory=list)
    rewards: Ledger = field(init=False)

    def __post_init__(self) -> None:
        self.rewards = Ledger(LogicalBatch(update=self.plan.key.update, groups=(self.plan,)))

    @property
    def complete(self) -> bool:
        return self.rewards.complete

    def take(self, event: Event) -> None:
        """Raises ValueError for a reward that came twice."""
        if isinstance(event, RewardReady):
            self.rewards.close(event.key)
        self.events.append(event)


async def run_fully_async(parts: Parts, first_update: int = 0) -> None:
    """Runs updates from `first_update` until the journal asks to stop at an optimizer boundary."""
    pool = Pool(parts, first_update)
    rolling = asyncio.ensure_future(pool.roll())
    try:
        for k in count(first_update):
            started = parts.clock.now()
            groups = await pool.take(k, rolling)
            learner_started = parts.clock.now()
            batch = LogicalBatch(update=k, groups=tuple(group.plan for group in groups))
            collected = [event for group in groups for event in group.events]
            step = await learn_direct(parts, batch, collected)
            goes_on = await publish(
                parts,
                batch,
                collected,
                step,
                started_at=started,
                rollout_closed_at=learner_started,
                learner_started_at=learner_started,
            )
            if not goes_on:
                return
            await pool.trained(groups, step.version)
    finally:
        rolling.cancel()
        await asyncio.gather(rolling, return_exceptions=True)


class Pool:
    """Admission and hand-over of groups under the lag bound."""

    def __init__(self, parts: Parts, first_update: int) -> None:
        self._parts = parts
        self._served = first_update
        self._untrained = (plan for plan in map(parts.group, count()) if str(plan.key) not in parts.trained)
        self._groups: dict[GroupKey, Outstanding] = {}
        self._complete = 0
        """How many of them are complete."""
        self._changed = asyncio.Event()

    async def roll(self) -> None:
        """Admits groups and sorts arriving events, for as long as the schedule runs."""
        events = self._parts.rollout.events()
        await self._admit()
        while True:
            event = await anext(events)
            self._parts.journal.event(event)
            group = self._groups.get(GroupKey(event.key.update, event.key.group))
            if group is None:
                raise ValueError(f"{event.key} belongs to no outstanding group: never admitted, or trained already")
            group.take(event)
            if isinstance(event, RewardReady) and group.complete:
                self._complete += 1
                await self._admit()
                self._changed.set()

    async def take(self, version: int, rolling: asyncio.Future[None]) -> list[Outstanding]:
        """The B complete groups to train at `version`, earliest deadline first; waits until the bound allows it."""
        while True:
            if self._complete >= self._parts.prompts:
                complete = [group for group in self._groups.values() if group.complete]
                chosen = sorted(complete, key=lambda group: group.admitted_under)[: self._parts.prompts]
                if self._leaves_room(chosen, version):
                    return chosen
            self._changed.clear()
            waiting = asyncio.ensure_future(self._changed.wait())
            await asyncio.wait([waiting, rolling], return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if rolling.done():
                rolling.result()  # raises what stopped the rollout

    def _leaves_room(self, chosen: list[Outstanding], version: int) -> bool:
        """Whether every group that is not `chosen` still finds a place before its deadline."""
        bound, taken = self._parts.lag_bound, {group.plan.key for group in chosen}
        deadlines = [group.admitted_under + bound for key, group in self._groups.items() if key not in taken]
        return all(
            sum(deadline <= version + ahead for deadline in deadlines) <= ahead * self._parts.prompts
            for ahead in range(bound + 1)
        )

    async def trained(self, groups: list[Outstanding], served: int) -> None:
        """The groups were trained, and `served` is published: their places are free."""
        for group in groups:
            del self._groups[group.plan.key]
        self._complete -= len(groups)
        self._served = served
        await self._admit()

    async def _admit(self) -> None:
        while len(self._groups) < (self._parts.lag_bound + 1) * self._parts.prompts:
            plan = next(self._untrained)
            self._groups[plan.key] = Outstanding(plan=plan, admitted_under=self._served)
            await self._parts.rollout.start(LogicalBatch(update=plan.key.update, groups=(plan,)))

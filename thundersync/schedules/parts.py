"""What a schedule is given, and the three moves that all of them share: collect, learn at once, step and publish."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass

from thundersync.batch import GroupPlan, Ledger, LogicalBatch, Trajectory
from thundersync.ports import (
    Clock,
    Event,
    Journal,
    Learner,
    PublishedUpdate,
    Publisher,
    RewardReady,
    Rollout,
    StepReport,
)
from thundersync.schedules.feed import Release


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The ports, and the settings that name a schedule's variant."""

    batch: Callable[[int], LogicalBatch]
    """The logical batch of update k."""
    group: Callable[[int], GroupPlan]
    """The group at a position of the endless prompt stream (Fully Async admits group by group)."""
    prompts: int
    """Groups per logical batch."""
    rollout: Rollout
    learner: Learner
    publisher: Publisher
    clock: Clock
    journal: Journal
    release: Release
    """When learner work may start."""
    reduction: str
    """Sync's reduction: `direct` or `sums`."""
    lag_bound: int
    """Fully Async: greatest lag of a token at training, in versions."""
    trained: Collection[str] = frozenset()
    """Fully Async, resumed: the groups that were trained before, which need not be the first of the prompt stream."""


async def collect(events: AsyncIterator[Event], batch: LogicalBatch, journal: Journal) -> list[Event]:
    """Waits until every registered trajectory of the batch has its reward; returns its events in readiness order."""
    ledger, collected = Ledger(batch), []
    while not ledger.complete:
        event = await anext(events)
        journal.event(event)
        collected.append(event)
        if isinstance(event, RewardReady):
            ledger.close(event.key)
    return collected


async def learn_direct(parts: Parts, batch: LogicalBatch, events: list[Event]) -> StepReport:
    """Trains a complete batch in its best form (reduction `direct`) and takes its one optimizer step."""
    await parts.learner.open(batch)
    for receipt in await parts.learner.learn_batch(events):
        parts.journal.receipt(receipt)
    return await parts.learner.step()


async def publish(
    parts: Parts,
    batch: LogicalBatch,
    events: list[Event],
    step: StepReport,
    *,
    started_at: float,
    rollout_closed_at: float,
    learner_started_at: float,
) -> bool:
    """Publishes the stepped parameters and reports the update; False when the run is to stop at this boundary."""
    await parts.publisher.publish(step.version, step.policy_hash)
    return await parts.journal.update_published(
        PublishedUpdate(
            batch=batch,
            trajectories=trajectories(events),
            step=step,
            learner_version=step.version - 1,
            started_at=started_at,
            rollout_closed_at=rollout_closed_at,
            learner_started_at=learner_started_at,
            published_at=parts.clock.now(),
        )
    )


def trajectories(events: list[Event]) -> tuple[Trajectory, ...]:
    return tuple(event.trajectory for event in events if isinstance(event, RewardReady))

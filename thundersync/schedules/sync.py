"""Sync: a batch barrier between rollout and learner. Zero staleness, and the learner idle while the batch rolls out.

    rollout   |== batch k ==========|                          |== batch k+1 ==
    learner                         |== gradients ==|step|
    publisher                                            |pub|

    T_Sync = R + L + P                                                                  (Equation 16)

Reductions: `direct` weights each trajectory by its known advantage and may pack; `sums` folds one source at a time
through the running sums, exactly as ThunderSync does, but only after the barrier.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count

from thundersync.batch import LogicalBatch
from thundersync.ports import Event, StepReport
from thundersync.schedules.feed import Feed
from thundersync.schedules.parts import Parts, collect, learn_direct, publish


async def run_sync(parts: Parts, first_update: int = 0) -> None:
    """Runs updates from `first_update` until the journal asks to stop at an optimizer boundary."""
    events = parts.rollout.events()
    for k in count(first_update):
        batch = parts.batch(k)
        started = parts.clock.now()
        await parts.rollout.start(batch)
        collected = await collect(events, batch, parts.journal)  # the batch barrier
        closed = parts.clock.now()

        step = await (learn_direct if parts.reduction == "direct" else learn_sums)(parts, batch, collected)
        goes_on = await publish(
            parts, batch, collected, step, started_at=started, rollout_closed_at=closed, learner_started_at=closed
        )
        if not goes_on:
            return


async def learn_sums(parts: Parts, batch: LogicalBatch, collected: list[Event]) -> StepReport:
    """The same events, in the same order, through the same running sums as ThunderSync; only later."""
    await parts.learner.open(batch)
    feed = Feed(batch, parts.learner, parts.journal, replace(parts.release, open_groups=None))
    for event in collected:
        feed.take(event)
    await feed.finish()
    return await parts.learner.step()

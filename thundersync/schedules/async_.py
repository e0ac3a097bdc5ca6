"""Async: one step off. Batch k is sampled from pi_{k-1} while batch k-1 trains; the surrogate is evaluated at theta_k.

    rollout   |== batch k (pi_{k-1}) ====|   |== batch k+1 (pi_k) ====|
    learner   |== batch k-1 ==|step|         |== batch k ==|step|
    publisher                            |pub|                        |pub|

No behaviour-policy correction (Appendix D.4). After start-up, whose first batch has lag 0, every token has lag 1.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import count

from thundersync.batch import LogicalBatch
from thundersync.ports import Event
from thundersync.schedules.parts import Parts, collect, learn_direct, publish


async def run_async(parts: Parts, first_update: int = 0) -> None:
    """Runs updates from `first_update` until the journal asks to stop at an optimizer boundary."""
    events = parts.rollout.events()
    started = parts.clock.now()
    batch = parts.batch(first_update)
    await parts.rollout.start(batch)
    collected = await collect(events, batch, parts.journal)  # start-up: nothing to train yet

    for k in count(first_update):
        upcoming = parts.batch(k + 1)
        await parts.rollout.start(upcoming)  # sampled from pi_k, the policy that is served now
        learner_started = parts.clock.now()
        step, (next_collected, closed) = await asyncio.gather(
            learn_direct(parts, batch, collected), _rolled(parts, events, upcoming)
        )

        goes_on = await publish(
            parts,
            batch,
            collected,
            step,
            started_at=started,
            rollout_closed_at=closed,
            learner_started_at=learner_started,
        )
        if not goes_on:
            return
        started = parts.clock.now()  # steady state: from one publication to the next
        batch, collected = upcoming, next_collected


async def _rolled(parts: Parts, events: AsyncIterator[Event], batch: LogicalBatch) -> tuple[list[Event], float]:
    """The events of the batch, and when its rollout closed."""
    return await collect(events, batch, parts.journal), parts.clock.now()

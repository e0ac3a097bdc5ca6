"""ThunderSync: every gradient starts when its inputs are fixed; one synchronous step per batch. Zero staleness.

    rollout   |== batch k ==========|      |== batch k+1 ==
    learner      |= = = = = = = = = |=|step|
    publisher                               |pub|

    c_j = max(tau_j, c_{j-1}) + p_j,   T = max(R, c_n) + P                              (Equations 1 and 2)

All trajectories of batch k are sampled from pi_k and every gradient is evaluated at theta_k: the parameters move only
in `step`, after the last registered trajectory has been learned (Algorithm 1).
"""

from __future__ import annotations

from itertools import count

from thundersync.batch import Ledger
from thundersync.ports import RewardReady
from thundersync.schedules.feed import Feed
from thundersync.schedules.parts import Parts, publish


async def run_thundersync(parts: Parts, first_update: int = 0) -> None:
    """Runs updates from `first_update` until the journal asks to stop at an optimizer boundary."""
    events = parts.rollout.events()
    for k in count(first_update):
        batch = parts.batch(k)
        started = parts.clock.now()
        await parts.learner.open(batch)
        await parts.rollout.start(batch)

        feed = Feed(batch, parts.learner, parts.journal, parts.release)
        rewards, collected = Ledger(batch), []
        while not rewards.complete:
            event = await anext(events)
            parts.journal.event(event)
            collected.append(event)
            feed.take(event)  # the learner starts now, while other trajectories are still running
            if isinstance(event, RewardReady):
                rewards.close(event.key)
        closed = parts.clock.now()

        await feed.finish()  # the learner tail
        step = await parts.learner.step()
        goes_on = await publish(
            parts, batch, collected, step, started_at=started, rollout_closed_at=closed, learner_started_at=started
        )
        if not goes_on:
            return

"""What must hold of every run, whatever goes wrong in it; read from what the ports saw, not from what they were told.

1. An optimizer step is made of its batch: every trajectory of it learned exactly once, none of another batch.
2. One step per batch: batches are opened and stepped in turn, and versions count up by one.
3. No trajectory is trained in two updates.
4. The policy lag of every trajectory is what the schedule declares.
5. A version counts as published only when every replica serves it.
6. The run makes progress to its last update, or ends in a named error.
"""

from __future__ import annotations

from collections import Counter

from thundersync.ports import PublishedUpdate
from thundersync.simulation.run import Outcome


def violations(outcome: Outcome) -> list[str]:
    """One sentence for each thing that does not hold; empty when all do."""
    return [*_steps(outcome), *_membership(outcome), *_lags(outcome), *_publications(outcome), *_progress(outcome)]


def _steps(outcome: Outcome):
    for batch, learned in outcome.learner.steps:
        registered = set(batch.keys)
        for key in registered | set(learned):
            if learned[key] != (key in registered):
                yield f"{key} was learned {learned[key]} times for the step of update {batch.update}"
    updates = [batch.update for batch, _ in outcome.learner.steps]
    if updates != list(range(len(updates))):
        yield f"optimizer steps were taken for updates {updates}"
    versions = [update.step.version for update in outcome.published]
    if versions != list(range(1, len(versions) + 1)):
        yield f"versions {versions} were published in this order"


def _membership(outcome: Outcome):
    trained = Counter(t.key for update in outcome.published for t in update.trajectories)
    yield from (f"{key} was trained in {n} updates" for key, n in trained.items() if n > 1)
    for update in outcome.published:
        if {t.key for t in update.trajectories} != set(update.batch.keys):
            yield f"update {update.batch.update} reports other trajectories than its batch"


def _lags(outcome: Outcome):
    for update in outcome.published:
        least, most = declared_lag(outcome.setting.schedule, outcome.setting.lag_bound, update)
        for trajectory in update.trajectories:
            oldest, newest = trajectory.oldest_version, trajectory.newest_version
            if not (least <= update.learner_version - newest and update.learner_version - oldest <= most):
                yield f"{trajectory.key} of versions {oldest} to {newest} was trained at {update.learner_version}"


def declared_lag(schedule: str, bound: int, update: PublishedUpdate) -> tuple[int, int]:
    """Least and greatest policy lag: none, one step off after start-up, or within Fully Async's bound."""
    if schedule == "fully_async":
        return 0, bound
    lag = int(schedule == "async" and update.batch.update > 0)
    return lag, lag


def _publications(outcome: Outcome):
    for publication in outcome.publications:
        if set(publication.served) != {publication.version}:
            yield f"version {publication.version} counted as published while replicas served {publication.served}"
    published = [publication.version for publication in outcome.publications]
    if [update.step.version for update in outcome.published] != published:
        yield f"updates were reported for other versions than the published {published}"


def _progress(outcome: Outcome):
    done, asked = len(outcome.published), outcome.setting.updates
    if outcome.error is None and done != asked:
        yield f"the run stopped after {done} of {asked} updates without an error"

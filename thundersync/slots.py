"""Which rollout slot each trajectory had, and when: from records, recorded where they say it and derived where not.

A slot is a place for one trajectory in a replica: it is taken in order of admission and kept until the reward is there.
Older records hold no start of a trajectory; as slots are taken in order, the i-th admitted trajectory starts when it is
admitted or when the earliest slot falls free, whichever is later.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from thundersync.records import RunRecord, TrajectoryRecord, UpdateRecord, parse_key


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay:
    """A trajectory in its slot, from `started_at` to its reward."""

    trajectory: TrajectoryRecord
    slot: int
    started_at: float
    recorded: bool
    """Whether the start was recorded; it was derived otherwise."""


def slot_count(run: RunRecord) -> int:
    """Trajectories that all replicas run at once, from the run's configuration."""
    return run.config["generation"]["concurrent_episodes_per_replica"] * run.config["scale"]["replicas"]


def stays(run: RunRecord, updates: Sequence[UpdateRecord], trajectories: Sequence[TrajectoryRecord]) -> list[Stay]:
    """One stay per trajectory, in order of their starts; no two overlap in a slot."""
    recorded = all(t.started_at is not None for t in trajectories)
    starts = {t.key: t.started_at for t in trajectories} if recorded else _derived(run, updates, trajectories)
    free: list[tuple[int, float]] = []  # (slot, when it falls free)
    result = []
    for t in sorted(trajectories, key=lambda t: (starts[t.key], parse_key(t.key))):
        slot = next((i for i, end in enumerate(free) if end[1] <= starts[t.key]), len(free))
        if slot == len(free):
            free.append((slot, 0.0))
        free[slot] = (slot, t.reward_at)
        result.append(Stay(trajectory=t, slot=slot, started_at=starts[t.key], recorded=recorded))
    return result


def _derived(
    run: RunRecord, updates: Sequence[UpdateRecord], trajectories: Sequence[TrajectoryRecord]
) -> dict[str, float]:
    """Starts by key, from the order of admission and the number of slots."""
    admitted = _admissions(run, updates)
    falls_free = [0.0] * slot_count(run)
    starts = {}
    for t in sorted(trajectories, key=lambda t: parse_key(t.key)):
        start = max(admitted(parse_key(t.key).update), heapq.heappop(falls_free))
        starts[t.key] = min(start, t.content_at)
        heapq.heappush(falls_free, t.reward_at)
    return starts


def _admissions(run: RunRecord, updates: Sequence[UpdateRecord]):
    """When the batch drawn for an update was admitted. Async admits a batch as the one before starts to train; Fully
    Async `lag_bound` + 1 batches at first, then one at the boundary after each update."""
    by_update = {u.update: u for u in updates}
    first, last = (updates[0].started_at, updates[-1].published_at) if updates else (0.0, 0.0)
    bound = run.config.get("schedule", {}).get("lag_bound", 0)

    def admitted(update: int) -> float:
        match run.schedule:
            case "async":
                return by_update[update - 1].learner_started_at if update - 1 in by_update else first
            case "fully_async":
                boundary = by_update.get(max(update - bound, updates[0].update))
                return boundary.started_at if boundary else last
        return by_update[update].started_at if update in by_update else last

    return admitted

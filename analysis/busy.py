"""Busy and idle shares of the devices over time (Figure 3), from records.

Rollout is busy by the share of its slots that hold a trajectory, the learner while it works on a source or a step.
Shape legend: T = bins of time, given by T + 1 edges in seconds on the training clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from analysis.load import Run, RunDetails
from thundersync.records import SourceRecord, UpdateRecord
from thundersync.slots import slot_count, stays

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilisation:
    """Shares in [0, 1], mean over each bin."""

    edges_T1: np.ndarray
    rollout_T: np.ndarray
    learner_T: np.ndarray
    starts_recorded: bool
    """Whether the starts of trajectories were recorded; they are derived from the order of slots otherwise."""


def utilisation(run: Run, details: RunDetails, edges_T1: np.ndarray) -> Utilisation:
    placed = stays(run.record, run.updates, details.trajectories)
    held = [(stay.started_at, stay.trajectory.reward_at) for stay in placed]
    return Utilisation(
        edges_T1=edges_T1,
        rollout_T=occupancy(held, edges_T1) / slot_count(run.record),
        learner_T=occupancy(union(learner_work(details.sources, run.updates)), edges_T1),
        starts_recorded=all(stay.recorded for stay in placed),
    )


def learner_idle(run: Run, details: RunDetails, updates: Sequence[UpdateRecord]) -> float:
    """Share of the updates' wall time in which the learner did nothing."""
    busy = union(learner_work(details.sources, run.updates))
    worked = sum(float(occupancy(busy, np.array([u.started_at, u.published_at]))[0]) * u.step_seconds for u in updates)
    return 1 - worked / sum(u.step_seconds for u in updates)


def learner_work(sources: Iterable[SourceRecord], updates: Iterable[UpdateRecord]) -> list[Interval]:
    """Gradients and steps of any rank; with several ranks, a time counts as busy while one of them works."""
    return [(s.started_at, s.ended_at) for s in sources] + [(u.step_started_at, u.stepped_at) for u in updates]


def occupancy(intervals: Sequence[Interval], edges_T1: np.ndarray) -> np.ndarray:
    """Mean number of intervals that cover each bin [T]."""
    if not intervals:
        return np.zeros(len(edges_T1) - 1)
    starts_N, ends_N = np.array(intervals, dtype=float).T
    until_T1N = np.clip(edges_T1[:, None], starts_N, ends_N) - starts_N
    return np.diff(until_T1N.sum(axis=1)) / np.diff(edges_T1)


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same times as intervals that do not overlap, in order."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged

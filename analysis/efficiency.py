"""Step times, speedup and its bound (Appendix B.2, B.3; Equations 12 and 17)."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from thundersync.records import UpdateRecord
from thundersync.scaling.speedup import overlap_limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Summary over seeds: each seed is one independent run, its updates are not."""

    mean: float
    sd: float | None
    """Sample standard deviation; None for a single seed."""


def over_seeds(values: Sequence[float]) -> Spread:
    return Spread(mean=statistics.fmean(values), sd=statistics.stdev(values) if len(values) > 1 else None)


WARMUP = 4
"""Updates that the paper discards (Appendix B.2)."""


def default_warmup(runs: Mapping[str, Sequence[UpdateRecord]]) -> int:
    """The paper's four, or a quarter of the shortest run where that is less; reports state which it was."""
    return min(WARMUP, min(len(updates) for updates in runs.values()) // 4)


def mean_step_seconds(updates: Sequence[UpdateRecord]) -> float:
    """Mean complete update wall time. A checkpoint saved between two updates is not part of either."""
    return statistics.fmean(update.step_seconds for update in updates)


def speedup(sync: Sequence[UpdateRecord], other: Sequence[UpdateRecord]) -> float:
    """Equation 12: a ratio of mean step times, not a mean of ratios."""
    return mean_step_seconds(sync) / mean_step_seconds(other)


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """Mean seconds of a synchronous step: rollout and verification R, learner L, common suffix P (Equation 14)."""

    rollout: float
    learner: float
    suffix: float
    """Final reduction, optimizer step and publication."""

    @property
    def bound(self) -> float:
        """Equation 17: (R + L + P) / (max(R, L) + P), what perfect overlap would gain."""
        return float(overlap_limit(self.learner / self.rollout, self.suffix / self.rollout))


def sync_phases(updates: Sequence[UpdateRecord]) -> Phases:
    """R, L, P of a Sync run; they partition its step. Raises ValueError when rollout and learner overlap."""
    early = [u for u in updates if u.learner_started_at < u.rollout_closed_at]
    if early:
        raise ValueError(f"update {early[0].update} learnt before its rollout closed: R, L and P come from a Sync run")
    return Phases(
        rollout=statistics.fmean(u.rollout_closed_at - u.started_at for u in updates),
        learner=statistics.fmean(u.step_started_at - u.rollout_closed_at for u in updates),
        suffix=statistics.fmean(u.published_at - u.step_started_at for u in updates),
    )


def lag_range(updates: Sequence[UpdateRecord]) -> tuple[int, int]:
    """Smallest and largest policy lag, from the versions stamped on the tokens."""
    return min(u.lag_min for u in updates), max(u.lag_max for u in updates)

"""What one run, and the seeds of one schedule, did per update: step time and its parts, MFU, lag, peak memory.

Within a run everything is kept as (sum, count) over the window's updates and divided once; over seeds each run is one
value (Appendix B.2: 108 correlated updates are not 108 runs).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from analysis import busy, efficiency, mfu
from analysis.campaign import SCHEDULES, Cell
from analysis.efficiency import Phases, Spread, over_seeds
from analysis.load import Run, RunDetails, load_details
from analysis.window import Window, choose
from thundersync.learner.flop_ledger import Flops
from thundersync.learner.flop_passes import Work
from thundersync.records import Mean, PeakMemory, UpdateRecord

PARTS = ("rollout", "learner", "step", "publication")


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One run over its window."""

    run: Run
    details: RunDetails
    updates: tuple[UpdateRecord, ...]
    step: Mean
    """Seconds of complete update wall time."""
    parts: dict[str, Mean]
    """Seconds; `PARTS` partition the step (Figure 4, left)."""
    mfu: Mean
    """Equation 11; a share."""
    mfu_by_update: dict[int, float]
    """Of every update of the run, warm-up included (Figure 4, right)."""
    work: Work
    """FLOPs of the window."""
    learner_idle: float
    """Share of the window in which the learner did nothing."""
    lag: tuple[int, int]
    peak_memory: PeakMemory | None
    """Largest over the window; None where an update did not record it."""


def parts(u: UpdateRecord) -> dict[str, float]:
    """The seconds of one update, cut where its rollout closed, its gradients and step ended, its policy was published.

    rollout      until the batch is complete: rollout and verification. In Async that is the next batch; Fully Async has
                 no barrier, and what it waits for complete groups stands here.
    learner      gradient work that remains then
    step         reduction over ranks, clipping, the optimizer step
    publication  until the last replica acknowledges, whatever it waits for
    """
    ends = [u.started_at, u.rollout_closed_at, u.step_started_at, u.stepped_at, u.published_at]
    for i in range(1, len(ends)):
        ends[i] = max(ends[i], ends[i - 1])  # Async may step before the next batch is complete: nothing residual then
    return dict(zip(PARTS, (b - a for a, b in zip(ends, ends[1:], strict=False)), strict=True))


def profile(run: Run, window: Window, peak: mfu.Peak) -> Profile:
    updates = tuple(window.of(run))
    details, shape = load_details(run), mfu.policy_shape(run)
    work = mfu.learner_work(run, details, run.updates, shape, mfu.adapters(run))
    memories = [u.peak_memory for u in updates]
    return Profile(
        run=run,
        details=details,
        updates=updates,
        step=pooled(updates, lambda u: u.step_seconds),
        parts={part: pooled(updates, lambda u, part=part: parts(u)[part]) for part in PARTS},
        mfu=mfu.active_mfu(run, work, updates, peak),
        mfu_by_update={u.update: mfu.active_mfu(run, work, [u], peak).value for u in run.updates},
        work=sum((work[u.update] for u in updates), Work()),
        learner_idle=busy.learner_idle(run, details, updates),
        lag=efficiency.lag_range(updates),
        peak_memory=None if None in memories else max(memories, key=lambda m: m.bytes),
    )


def pooled(updates: Sequence[UpdateRecord], value: Callable[[UpdateRecord], float]) -> Mean:
    return Mean(sum=sum(map(value, updates)), count=len(updates))


@dataclass(frozen=True, slots=True, kw_only=True)
class CellProfile:
    """The four schedules of one objective and workload, over the same number of updates."""

    cell: Cell
    window: Window
    peak: mfu.Peak
    runs: dict[str, tuple[Profile, ...]]
    """By schedule, aligned by seed."""

    def over_seeds(self, schedule: str, value: Callable[[Profile], float]) -> Spread:
        return over_seeds([value(profile) for profile in self.runs[schedule]])

    def speedup(self, schedule: str) -> Spread:
        """Equation 12 for each seed: a ratio of mean step times."""
        pairs = zip(self.runs["sync"], self.runs[schedule], strict=True)
        return over_seeds([sync.step.value / own.step.value for sync, own in pairs])

    @property
    def phases(self) -> tuple[Phases, ...]:
        """R, L and P of Sync, per seed."""
        return tuple(efficiency.sync_phases(profile.updates) for profile in self.runs["sync"])

    @property
    def bound(self) -> Spread:
        """Equation 17: the speedup of perfect overlap."""
        return over_seeds([phases.bound for phases in self.phases])


def profile_cell(
    cell: Cell, *, peak: Callable[[Run], mfu.Peak], warmup: int | None = None, size: int | None = None
) -> CellProfile:
    """Raises ValueError where a run is too short, RecordError where records for the FLOPs are missing."""
    window = choose({run.name: run for runs in cell.runs.values() for run in runs}, warmup=warmup, size=size)
    rate = peak(cell.reference)
    runs = {s: tuple(profile(run, window, rate) for run in cell.runs[s]) for s in SCHEDULES}
    return CellProfile(cell=cell, window=window, peak=rate, runs=runs)


def shares(flops: Flops) -> Mapping[str, float]:
    """Each operator's share of the total."""
    return {operator: flops.of(operator) / flops.total for operator in sorted(flops.forward | flops.backward)}

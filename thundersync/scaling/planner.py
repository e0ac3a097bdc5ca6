"""What streaming would bring on a trace that somebody already has: schedules, release policies, GPU split, batch size.

Everything is predicted from the trace's own work; what is assumed beside the lane model of Appendix F.1 stands with
each function. Times are means over the updates of the trace, speedups ratios of means (Equation 12).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from thundersync.scaling.queue import step_time, sync_step_time
from thundersync.scaling.releases import TURN_EAGER, TURN_FORWARD, Shares, predictable, release
from thundersync.scaling.trace import WHOLE, StepTrace, Trace, mean

BATCH_FACTORS = (0.25, 0.5, 1, 2, 4, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What the user may set."""

    rollout_gpus: int = 4
    learner_gpus: int = 4
    capacity: int | None = None
    """Trajectories (groups, where a trace has no trajectories) rolled out at once; None is all of an update."""
    shares: dict[str, Shares] = field(default_factory=lambda: {"turn_eager": TURN_EAGER, "turn_forward": TURN_FORWARD})

    def __post_init__(self) -> None:
        for name in ("rollout_gpus", "learner_gpus", "capacity"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}: it must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """One row of the answer: a schedule, and the release policy where it streams."""

    schedule: str
    release: str
    step: float
    """Seconds per update."""
    speedup: float
    """Over the replayed Sync step."""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Step seconds on a division of the same GPUs."""

    rollout_gpus: int
    learner_gpus: int
    sync: float
    streamed: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Step seconds with `factor` times the trace's batch."""

    factor: float
    sync: float
    streamed: float

    @property
    def speedup(self) -> float:
        return self.sync / self.streamed


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The answer. Seconds per update, means over the trace."""

    trace: Trace
    question: Question
    rollout: float
    learner: float
    suffix: float
    observed: float | None
    predictions: tuple[Prediction, ...]
    best_release: str
    splits: tuple[Split, ...]
    batches: tuple[Batch, ...]

    @property
    def share(self) -> float:
        """s: training's share of rollout and training together."""
        return self.learner / (self.rollout + self.learner)

    @property
    def bound(self) -> float:
        """max(s, 1 - s)^-1: what perfect overlap would gain without a suffix."""
        return 1 / max(self.share, 1 - self.share)

    @property
    def bound_with_suffix(self) -> float:
        """Equation 17: (R + L + P) / (max(R, L) + P)."""
        whole = self.rollout + self.learner + self.suffix
        return whole / (max(self.rollout, self.learner) + self.suffix)

    def prediction(self, schedule: str, policy: str = "") -> Prediction:
        return next(p for p in self.predictions if (p.schedule, p.release) == (schedule, policy))

    @property
    def best_split(self) -> Split:
        return min(self.splits, key=lambda split: split.streamed)


def make_plan(trace: Trace, question: Question | None = None) -> Plan:
    """Raises ValueError for a trace in which nothing takes any time."""
    question = question or Question()
    steps = trace.steps
    if not any(step.rollout + step.learner for step in steps):
        raise ValueError(f"{trace.source}: neither rollout nor learner takes any time, nothing can be planned")
    sync = mean(step.sync_step for step in steps)
    streamed = {
        policy: mean(step.streamed_step for step in released) for policy, released in _released(trace, question)
    }
    best = min(streamed, key=streamed.get)
    chosen = dict(_released(trace, question))[best]
    observed = [step.observed for step in steps]
    return Plan(
        trace=trace,
        question=question,
        rollout=mean(step.rollout for step in steps),
        learner=mean(step.learner for step in steps),
        suffix=mean(step.suffix for step in steps),
        observed=None if None in observed else mean(observed),
        predictions=(
            Prediction(schedule="sync", release="", step=sync, speedup=1.0),
            *(Prediction(schedule="thundersync", release=r, step=t, speedup=sync / t) for r, t in streamed.items()),
            *_stale(steps, question.capacity, sync),
        ),
        best_release=best,
        splits=tuple(_splits(chosen, steps, question)),
        batches=tuple(_batch(chosen, steps, factor) for factor in BATCH_FACTORS),
    )


def _released(trace: Trace, question: Question) -> list[tuple[str, list[StepTrace]]]:
    """The trace under every release policy that it can tell; as recorded where that is none of them."""
    released = [
        (policy, [release(step, policy, question.shares.get(policy)) for step in trace.steps])
        for policy in predictable(trace)
    ]
    if trace.unit == "turn" and "turn_eager" not in dict(released):
        released.append(("as recorded", list(trace.steps)))
    return released


def _stale(steps: tuple[StepTrace, ...], capacity: int | None, sync: float) -> list[Prediction]:
    """The schedules that buy speed with staleness, in their steady state.

    Async rolls batch k + 1 out while batch k trains: max(R, L) + P. Fully Async keeps its slots busy, so a batch takes
    the mean time for which a slot is busy with it; without idle slots at the start, the last readiness on each of Q
    slots is one of the Q latest. It never takes less than L + P; waiting for groups and lag bounds comes on top.
    """
    async_ = mean(max(step.rollout, step.learner) + step.suffix for step in steps)
    fully = mean(max(slot_time(step, capacity), step.learner + step.suffix) for step in steps)
    return [
        Prediction(schedule="async", release="", step=async_, speedup=sync / async_, note="lag 1"),
        Prediction(schedule="fully_async", release="", step=fully, speedup=sync / fully, note="lag varies; at best"),
    ]


def slot_time(step: StepTrace, capacity: int | None) -> float:
    """Mean seconds for which one of Q rollout slots is busy with the step's trajectories, admitted in order."""
    ends: dict[tuple[int, int], float] = {}
    grouped = all(job.trajectory == WHOLE for job in step.jobs)
    for job in step.jobs:
        if grouped or job.trajectory != WHOLE:
            key = (job.group, job.trajectory)
            ends[key] = max(job.ready, ends.get(key, 0.0))
    latest = sorted(ends.values())[-(capacity or len(ends)) :]
    return float(np.mean(latest))


def _splits(released: list[StepTrace], steps: tuple[StepTrace, ...], question: Question) -> list[Split]:
    """Every division of the GPUs. Assumes that rollout and learner speed up in proportion to theirs, and P stays."""
    total = question.rollout_gpus + question.learner_gpus
    splits = []
    for rollout_gpus in range(1, total):
        slower = question.rollout_gpus / rollout_gpus
        longer = question.learner_gpus / (total - rollout_gpus)
        splits.append(
            Split(
                rollout_gpus=rollout_gpus,
                learner_gpus=total - rollout_gpus,
                sync=mean(_scaled(step, slower, longer).sync_step for step in steps),
                streamed=mean(_scaled(step, slower, longer).streamed_step for step in released),
            )
        )
    return splits


def _scaled(step: StepTrace, rollout: float, learner: float) -> StepTrace:
    jobs = tuple(replace(job, ready=job.ready * rollout, service=job.service * learner) for job in step.jobs)
    return replace(step, rollout=step.rollout * rollout, jobs=jobs)


def _batch(released: list[StepTrace], steps: tuple[StepTrace, ...], factor: float) -> Batch:
    """`factor` times the batch on the same rollout capacity (Appendix F.3, Equation 28).

    More is rolled out in successive waves, each a copy of the trace (Equation 25); less keeps the rollout window and
    does `factor` of the learner work.
    """
    waves, share = max(1, round(factor)), min(1.0, factor)
    return Batch(
        factor=factor,
        sync=mean(
            sync_step_time(step.service_N * waves * share, step.rollout * waves, step.suffix, step.rank_N)
            for step in steps
        ),
        streamed=mean(_waves(step, waves, share) for step in released),
    )


def _waves(step: StepTrace, waves: int, share: float) -> float:
    ready = np.concatenate([step.ready_N + wave * step.rollout for wave in range(waves)])
    service, rank = np.tile(step.service_N * share, waves), np.tile(step.rank_N, waves)
    return step_time(ready, service, step.rollout * waves, step.suffix, rank)

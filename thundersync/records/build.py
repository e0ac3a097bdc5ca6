"""Records from the dataclasses that pass through the ports. Pure functions: nothing is written here."""

from __future__ import annotations

import platform
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from thundersync.batch import GroupKey, Trajectory
from thundersync.ports import PublishedUpdate, Receipt, RewardReady
from thundersync.records.provenance import digest_of, package_versions, platform_text, source_commit, utc_now
from thundersync.records.schemas import (
    CheckpointRecord,
    Mean,
    Mismatch,
    PeakMemory,
    RunRecord,
    SourceRecord,
    Tokens,
    TrajectoryRecord,
    TurnSpans,
    UpdateRecord,
)

NO_TOKENS = Tokens(prompt=0, context=0, generated=0, scored=0)


def run_record(
    *, config: dict[str, Any], packages: Iterable[str], commit: str | None = None, **fields: Any
) -> RunRecord:
    """`fields` are the rest of RunRecord; digest of settings, commit, versions, platform and start time are found here.

    Call it when initialisation is over and the training clock is about to start. Raises ValueError without a commit.
    """
    return RunRecord(
        config=config,
        settings_digest=digest_of(config),
        commit=source_commit(commit),
        packages=package_versions(packages),
        python=platform.python_version(),
        platform=platform_text(),
        started_at_utc=utc_now(),
        **fields,
    )


def tokens_of(trajectory: Trajectory) -> Tokens:
    sampled = sum(len(turn.action_ids_A) for turn in trajectory.turns)
    return Tokens(
        prompt=len(trajectory.prompt_ids_P),
        context=sum(len(turn.context_ids_C) for turn in trajectory.turns),
        generated=sampled,
        scored=trajectory.scored_tokens,
    )


def trajectory_record(event: RewardReady, *, content_at: float) -> TrajectoryRecord:
    """`content_at` is the time of the trajectory's ContentReady event."""
    trajectory, tokens = event.trajectory, tokens_of(event.trajectory)
    return TrajectoryRecord(
        key=str(trajectory.key),
        task_id=trajectory.task_id,
        reward=trajectory.reward,
        success=trajectory.success,
        outcome=trajectory.outcome,
        turns=len(trajectory.turns),
        tokens=tokens,
        oldest_version=trajectory.oldest_version if tokens.generated else None,
        newest_version=trajectory.newest_version if tokens.generated else None,
        content_at=content_at,
        reward_at=event.at,
        started_at=event.started_at,
        turn_spans=None if event.turn_times is None else tuple(TurnSpans(**asdict(t)) for t in event.turn_times),
    )


def source_record(receipt: Receipt) -> SourceRecord:
    return SourceRecord(
        key=None if receipt.key is None else str(receipt.key),
        kind=receipt.kind,
        update=receipt.update,
        ready_at=receipt.ready_at,
        started_at=receipt.started_at,
        ended_at=receipt.ended_at,
        tokens=receipt.tokens,
        rank=receipt.rank,
        deferred=receipt.deferred,
    )


def update_record(
    published: PublishedUpdate, *, receipts: Sequence[Receipt], previous: UpdateRecord | None
) -> UpdateRecord:
    """`receipts` are those of this update, `previous` the record of the update before (None for the first)."""
    step, trajectories = published.step, published.trajectories
    tokens = sum((tokens_of(t) for t in trajectories), NO_TOKENS)
    lags = lags_of(trajectories, published.learner_version)
    sources = [r for r in receipts if r.kind in ("source", "direct") and r.update == published.learner_version]
    return UpdateRecord(
        update=published.batch.update,
        learner_version=published.learner_version,
        published_version=step.version,
        policy_hash=step.policy_hash,
        groups=tuple(str(group.key) for group in published.batch.groups),
        started_at=published.started_at,
        rollout_closed_at=published.rollout_closed_at,
        learner_started_at=published.learner_started_at,
        step_started_at=step.started_at,
        stepped_at=step.ended_at,
        published_at=published.published_at,
        trajectories=len(trajectories),
        tokens=tokens,
        total_trajectories=len(trajectories) + (previous.total_trajectories if previous else 0),
        total_tokens=tokens + (previous.total_tokens if previous else NO_TOKENS),
        divisor=step.divisor,
        gradient_norm=step.gradient_norm,
        clip_coefficient=step.clip_coefficient,
        entropy=step.entropy,
        logprob_mismatch=Mismatch(**step.logprob_mismatch),
        peak_memory=None
        if step.peak_memory is None
        else PeakMemory(counter=step.peak_memory[0], bytes=step.peak_memory[1]),
        reward=mean_of([t.reward for t in trajectories]),
        success=mean_of([t.success for t in trajectories]),
        lag_min=min(lags),
        lag_max=max(lags),
        uniform_groups=uniform_groups(trajectories),
        sources=len(sources),
        # Direct work has its whole batch; under Async `rollout_closed_at` is the close of the batch that came after.
        sources_before_close=sum(r.kind == "source" and r.started_at < published.rollout_closed_at for r in sources),
    )


def lags_of(trajectories: Iterable[Trajectory], learner_version: int) -> list[int]:
    """Learner version minus the version stamped on the oldest token, for each trajectory that sampled any."""
    return [learner_version - t.oldest_version for t in trajectories if t.scored_tokens]


def uniform_groups(trajectories: Iterable[Trajectory]) -> int:
    """Groups whose rewards are all equal, by comparison; a group without rewards does not count."""
    rewards: dict[GroupKey, set[float]] = defaultdict(set)
    for trajectory in trajectories:
        if trajectory.reward is not None:
            rewards[trajectory.key.group_key].add(trajectory.reward)
    return sum(len(values) == 1 for values in rewards.values())


def mean_of(values: Iterable[float | None]) -> Mean:
    known = [float(value) for value in values if value is not None]
    return Mean(sum=sum(known), count=len(known))


def checkpoint_record(
    *, run: RunRecord, reason: str, path: str, after: UpdateRecord | None, updates: int
) -> CheckpointRecord:
    """The checkpoint taken `after` an update; None for the warm start, published when the training clock starts."""
    return CheckpointRecord(
        seed=run.seed,
        update=updates,
        reason=reason,
        policy_hash=after.policy_hash if after else run.initial_policy_hash,
        published_at=after.published_at if after else 0.0,
        trajectories=after.total_trajectories if after else 0,
        generated_tokens=after.total_tokens.generated if after else 0,
        path=path,
        tokenizer_digest=run.tokenizer_digest,
        workload_digest=run.workload_digest,
        settings_digest=run.settings_digest,
    )

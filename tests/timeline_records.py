"""Hand-made records of two small updates: two groups of two trajectories on three slots. Shared by timeline tests."""

from __future__ import annotations

from datetime import UTC, datetime

from thundersync.records import (
    Mean,
    Mismatch,
    RunRecord,
    SourceRecord,
    Tokens,
    TrajectoryRecord,
    TurnSpans,
    UpdateRecord,
    digest_of,
)

TOKENS = Tokens(prompt=5, context=4, generated=6, scored=6)


def run(schedule: str, objective: str = "grpo", slots: int = 3) -> RunRecord:
    config = {
        "objective": {"release": "turn_eager" if objective == "opd" else "trajectory"},
        "generation": {"concurrent_episodes_per_replica": slots},
        "scale": {"replicas": 1},
    }
    digest = digest_of(config)
    return RunRecord(
        name="made-up",
        objective=objective,
        workload="w",
        schedule=schedule,
        seed=1,
        config=config,
        settings_digest=digest,
        tokenizer_digest=digest,
        workload_digest=digest,
        initial_policy_hash="p",
        evaluation_tasks=("t",),
        evaluation_attempts=1,
        budget_seconds=10.0,
        devices=2,
        device_name="invented",
        core_independence=None,
        price_usd_per_device_hour=None,
        initialisation_seconds=0.0,
        started_at_utc=datetime(2030, 1, 1, tzinfo=UTC),
        commit="0" * 40,
        python="3",
        platform="nowhere",
        packages={},
    )


def update(
    k: int, started: float, closed: float, learner: float, step: tuple[float, float], published: float, **changes
):
    fields = dict(
        update=k,
        learner_version=k,
        published_version=k + 1,
        policy_hash=f"policy {k + 1}",
        groups=(f"update={k}/group=0", f"update={k}/group=1"),
        started_at=started,
        rollout_closed_at=closed,
        learner_started_at=learner,
        step_started_at=step[0],
        stepped_at=step[1],
        published_at=published,
        trajectories=4,
        tokens=TOKENS,
        total_trajectories=4,
        total_tokens=TOKENS,
        divisor=1.0,
        gradient_norm=0.5,
        clip_coefficient=1.0,
        entropy=1.0,
        logprob_mismatch=Mismatch(max=0, mean=0, kl=0),
        reward=Mean(sum=1, count=4),
        success=Mean(sum=1, count=4),
        lag_min=0,
        lag_max=0,
        uniform_groups=0,
        sources=4,
        sources_before_close=2,
    )
    return UpdateRecord(**fields | changes)


def trajectory(key: str, content: float, reward: float, started: float | None = None, turns=None) -> TrajectoryRecord:
    """`turns`: (generation started, generated, scored or None, acted) each."""
    names = ("generation_started_at", "generated_at", "scored_at", "acted_at")
    return TrajectoryRecord(
        key=key,
        task_id="task",
        reward=1.0,
        success=True,
        outcome="submitted",
        turns=2,
        tokens=TOKENS,
        oldest_version=0,
        newest_version=0,
        content_at=content,
        reward_at=reward,
        started_at=started,
        turn_spans=None if turns is None else tuple(TurnSpans(**dict(zip(names, t, strict=True))) for t in turns),
    )


def source(key: str, kind: str, update: int, ready: float, started: float, ended: float, tokens=10) -> SourceRecord:
    return SourceRecord(
        key=key,
        kind=kind,
        update=update,
        ready_at=ready,
        started_at=started,
        ended_at=ended,
        tokens=tokens,
        rank=0,
        deferred="",
    )


# One update of ThunderSync, worked by hand. Slots: 0 has t00, then t11 from 3.0; 1 has t01; 2 has t10.
KEYS = [f"update=0/group={g}/trajectory={t}" for g in (0, 1) for t in (0, 1)]
TRAJECTORIES = [
    trajectory(KEYS[0], 2.0, 3.0, 0.5, [(0.5, 1.0, None, 1.5), (1.5, 2.0, None, 2.0)]),
    trajectory(KEYS[1], 4.0, 5.0, 0.5, [(0.5, 2.0, None, 4.0)]),
    trajectory(KEYS[2], 3.5, 4.5, 0.5, [(0.5, 3.0, None, 3.5)]),
    trajectory(KEYS[3], 5.0, 6.0, 3.0, [(3.0, 4.0, None, 5.0)]),
]
SOURCES = [
    source(KEYS[0], "source", 0, 3.0, 3.1, 4.7),
    source(KEYS[2], "source", 0, 4.5, 4.7, 5.2),
    source(KEYS[1], "source", 0, 5.0, 5.2, 5.6),
    source("update=0/group=0", "group", 0, 5.6, 5.6, 5.7, tokens=4),
    source(KEYS[3], "source", 0, 6.0, 6.0, 6.5),
    source("update=0/group=1", "group", 0, 6.5, 6.5, 6.6, tokens=4),
]
UPDATE = update(0, 0.4, 6.1, 0.4, (6.6, 6.8), 7.0)

"""A small campaign made up for tests: saturating learning curves on invented clocks. Never a result."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from thundersync.records import (
    AttemptRecord,
    CheckpointRecord,
    EndRecord,
    Mean,
    Mismatch,
    RunDirectory,
    RunRecord,
    TargetRecord,
    Tokens,
    UpdateRecord,
    digest_of,
    write_json,
)

EPOCH = datetime(2030, 1, 1, 12, tzinfo=UTC)
STEP = {"sync": 2.0, "async": 1.1, "fully_async": 1.08, "thundersync": 1.05}
LOSS = {"sync": 0.0, "async": 0.05, "fully_async": 0.04, "thundersync": 0.0}
LAGS = {"sync": (0, 0), "async": (0, 1), "fully_async": (0, 2), "thundersync": (0, 0)}
TASKS = tuple(f"task-{i:02d}" for i in range(24))
DIGEST = digest_of("made up for a test")


def hash_of(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def run_record(name: str, schedule: str, objective: str, workload: str, seed: int, **changes) -> RunRecord:
    config = {"schedule": schedule, "seed": seed}
    fields = {
        "name": name,
        "objective": objective,
        "workload": workload,
        "schedule": schedule,
        "seed": seed,
        "config": config,
        "settings_digest": digest_of(config),
        "tokenizer_digest": DIGEST,
        "workload_digest": DIGEST,
        "initial_policy_hash": hash_of("warm start"),
        "evaluation_tasks": TASKS,
        "evaluation_attempts": 3,
        "budget_seconds": 60.0,
        "devices": 2,
        "device_name": "invented",
        "price_usd_per_device_hour": None,
        "initialisation_seconds": 3.5,
        "core_independence": 1.0,
        "started_at_utc": EPOCH + timedelta(hours=1),
        "commit": "0" * 40,
        "python": "3.11.0",
        "platform": "nowhere",
        "packages": {"thundersync": "0"},
    }
    return RunRecord(**fields | changes)


def tokens(trajectories: int) -> Tokens:
    return Tokens(
        prompt=50 * trajectories, context=30 * trajectories, generated=40 * trajectories, scored=40 * trajectories
    )


def update_record(k: int, started: float, schedule: str, policy_hash: str, reward: float, step: float) -> UpdateRecord:
    closed = started + (0.9 * step if schedule == "thundersync" else 0.5 * step)
    learner = started + 0.1 * step if schedule == "thundersync" else closed
    low, high = LAGS[schedule]
    return UpdateRecord(
        update=k,
        learner_version=k,
        published_version=k + 1,
        policy_hash=policy_hash,
        groups=tuple(f"update={k}/group={g}" for g in range(4)),
        started_at=started,
        rollout_closed_at=closed,
        learner_started_at=learner,
        step_started_at=started + 0.95 * step,
        stepped_at=started + 0.97 * step,
        published_at=started + step,
        trajectories=32,
        tokens=tokens(32),
        total_trajectories=32 * (k + 1),
        total_tokens=tokens(32 * (k + 1)),
        divisor=1.0,
        gradient_norm=0.5,
        clip_coefficient=1.0,
        entropy=1.0,
        logprob_mismatch=Mismatch(max=0.0, mean=0.0, kl=0.0),
        reward=Mean(sum=32 * reward, count=32),
        success=Mean(sum=0, count=32),
        lag_min=low,
        lag_max=min(high, k),
        uniform_groups=1,
        sources=32,
        sources_before_close=30 if schedule == "thundersync" else 0,
    )


def write_run(
    root: Path,
    objective: str,
    workload: str,
    schedule: str,
    seed: int,
    *,
    updates: int | None = None,
    gain=0.5,
    **changes,
) -> Path:
    """A run until the budget: a checkpoint every five updates, each fully evaluated."""
    path = root / f"{objective}-{workload}-{schedule}-seed{seed}"
    kind = "sync" if schedule == "pilot" else schedule
    run = run_record(path.name, kind, objective, workload, seed, **changes)
    random = np.random.default_rng([seed, *schedule.encode(), *objective.encode(), *workload.encode()])
    directory = RunDirectory.create(path, run)
    step = STEP[kind] * (1 + 0.01 * (seed - 42))
    total = updates if updates is not None else int(run.budget_seconds / step) + 1
    for k in range(total + 1):  # k = completed updates
        skill = 0.3 + (gain - LOSS[kind]) * (1 - np.exp(-k / 12))
        if k:
            policy = hash_of(path.name, k)
            directory.append(update_record(k - 1, (k - 1) * step, kind, policy, skill + random.normal(0, 0.03), step))
        if k % 5 == 0 or k == total:
            policy = hash_of(path.name, k) if k else run.initial_policy_hash
            directory.append(_checkpoint(run, k, step, policy, "start" if k == 0 else "cadence"))
            for record in _attempts(run, policy, skill / 1.6, random if k else np.random.default_rng(7)):
                directory.append(record)
    directory.end(EndRecord(reason="budget", updates=total, training_seconds=total * step))
    return path


def _checkpoint(run: RunRecord, k: int, step: float, policy: str, reason: str) -> CheckpointRecord:
    return CheckpointRecord(
        seed=run.seed,
        update=k,
        reason=reason,
        policy_hash=policy,
        published_at=k * step,
        trajectories=32 * k,
        generated_tokens=1280 * k,
        path=f"checkpoints/{k}",
        tokenizer_digest=run.tokenizer_digest,
        workload_digest=run.workload_digest,
        settings_digest=run.settings_digest,
    )


def _attempts(run: RunRecord, policy: str, skill: float, random: np.random.Generator) -> list[AttemptRecord]:
    hardness = np.linspace(0.5, 1.5, len(run.evaluation_tasks))
    return [
        AttemptRecord(
            policy_hash=policy,
            task_id=task,
            attempt=a,
            seed=a,
            outcome="graded",
            success=bool(random.random() < skill * h),
            reward=None,
            seconds=0.1,
            tokens=40,
            turns=2,
            ended="submitted",
            retries=0,
        )
        for task, h in zip(run.evaluation_tasks, hardness, strict=True)
        for a in range(run.evaluation_attempts)
    ]


def pass3(path: Path, policy: str) -> float:
    records = [r for r in RunDirectory(path).read(AttemptRecord) if r.policy_hash == policy]
    return 100 * len({r.task_id for r in records if r.success}) / len(TASKS)


def write_pilot(root: Path, objective: str, workload: str, *, at: datetime = EPOCH, **changes) -> TargetRecord:
    """The pilot run of seed 41, and the target that it fixes at the midpoint."""
    path = write_run(root, objective, workload, "pilot", 41, started_at_utc=EPOCH - timedelta(hours=1), **changes)
    last = RunDirectory(path).read(CheckpointRecord)[-1].policy_hash
    low, high = pass3(path, hash_of("warm start")), pass3(path, last)
    target = TargetRecord(
        objective=objective,
        workload=workload,
        pilot_run=path.name,
        pilot_policy_hash=last,
        warm_start_pass3=low,
        pilot_pass3=high,
        target=(low + high) / 2,
        written_at_utc=at,
    )
    write_json(root / "targets" / f"{objective}-{workload}.json", target)
    return target


def write_campaign(root: Path, *, seeds=(42, 43, 44), objectives=("grpo", "opd"), target_at=EPOCH, **changes) -> Path:
    for objective in objectives:
        for workload in ("micro_swe", "micro_terminal"):
            write_pilot(root, objective, workload, at=target_at)
            for schedule in STEP:
                for seed in seeds:
                    write_run(root, objective, workload, schedule, seed, **changes)
    return root

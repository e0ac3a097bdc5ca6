"""The compared runs of one objective and workload.

    <runs>/<objective>-<workload>-<schedule>-seed<seed>/   a run directory each
    <runs>/<objective>-<workload>-pilot-seed41/            the pilot that fixed the target
    <runs>/targets/<objective>-<workload>.json             the target, older than every compared run

Incomplete, unlike or unevaluated runs are refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from analysis.load import Attempts, Run, load_run
from analysis.time_axis import ScoredCheckpoint
from thundersync.records import Incomplete, RecordError, RunDirectory, TargetRecord, outcomes, read_json

SCHEDULES = ("sync", "async", "fully_async", "thundersync")
ALIKE = (
    "budget_seconds",
    "devices",
    "price_usd_per_device_hour",
    "evaluation_tasks",
    "evaluation_attempts",
    "workload_digest",
    "tokenizer_digest",
    "initial_policy_hash",
)
"""What the schedules of a comparison must share (Appendix D.4, E.3)."""

ScoreTasks = Callable[[np.ndarray], np.ndarray]
"""(tasks x attempts) outcomes to one estimate in [0, 1] per task."""


class IncompleteCampaign(ValueError):
    """Names the runs that are missing, unfinished or unevaluated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One objective on one workload: runs by schedule, aligned by seed."""

    objective: str
    workload: str
    seeds: tuple[int, ...]
    runs: dict[str, tuple[Run, ...]]
    attempts: Attempts
    target: TargetRecord
    pending: tuple[str, ...]
    """What the seeds left out still lack, one sentence each."""

    @property
    def reference(self) -> Run:
        """Any run, for what all of them share."""
        return self.runs["sync"][0]


def run_name(objective: str, workload: str, schedule: str, seed: int) -> str:
    return f"{objective}-{workload}-{schedule}-seed{seed}"


def load_cell(root: Path, objective: str, workload: str, *, seeds: Sequence[int], partial: bool) -> Cell:
    """Runs of every schedule for the given seeds.

    With `partial`, seeds complete for all four schedules are used and what the others lack is listed as pending.
    Raises IncompleteCampaign without it, and when no seed is complete.
    """
    root = Path(root)
    attempts = Attempts(path.parent for path in root.glob(f"*-{workload}-*/attempts.jsonl"))
    complete, pending = {}, []
    for seed in seeds:
        loaded = {s: _load_if_complete(root / run_name(objective, workload, s, seed), attempts) for s in SCHEDULES}
        problems = [run for run in loaded.values() if isinstance(run, str)]
        if problems:
            pending += problems
        else:
            complete[seed] = loaded
    if not complete or (pending and not partial):
        raise IncompleteCampaign(f"{root} is incomplete: " + "; ".join(pending))
    runs = {s: tuple(complete[seed][s] for seed in complete) for s in SCHEDULES}
    everyone = [run for group in runs.values() for run in group]
    _require_alike(everyone)
    return Cell(
        objective=objective,
        workload=workload,
        seeds=tuple(complete),
        runs=runs,
        attempts=attempts,
        target=_target(root / "targets" / f"{objective}-{workload}.json", everyone),
        pending=tuple(pending),
    )


def _load_if_complete(path: Path, attempts: Attempts) -> Run | str:
    """The run, or one sentence on what it lacks. A damaged record is an error, not a lack."""
    directory = RunDirectory(path)
    if not (path / "run.json").exists():
        return f"{path.name} has not started"
    if not directory.ended:
        return f"{path.name} has not finished"
    run = load_run(path)
    try:
        scored_checkpoints(run, attempts, lambda outcomes_TA: outcomes_TA.any(axis=1))
    except Incomplete as lack:
        return str(lack)
    return run


def scored_checkpoints(run: Run, attempts: Attempts, score: ScoreTasks) -> list[ScoredCheckpoint]:
    """The run's evaluated checkpoints up to the budget, in order of publication.

    Every checkpoint of the declared cadence must be evaluated: raises Incomplete naming run and checkpoint. One that
    only an interruption left behind counts where it was evaluated and is passed over where it was not.
    """
    record, scored = run.record, []
    for checkpoint in sorted(run.checkpoints, key=lambda c: c.published_at):
        tries = attempts.of(run.name, checkpoint.policy_hash)
        if checkpoint.published_at > record.budget_seconds or (checkpoint.reason == "interrupt" and not tries):
            continue
        outcomes_TA = outcomes(
            tries,
            policy_hash=checkpoint.policy_hash,
            task_ids=record.evaluation_tasks,
            attempts=record.evaluation_attempts,
            what=f"{run.name}, checkpoint after update {checkpoint.update}",
        )
        point = ScoredCheckpoint(
            published_at=checkpoint.published_at,
            score_M=np.asarray(score(outcomes_TA), dtype=float),
            updates=checkpoint.update,
            trajectories=checkpoint.trajectories,
            generated_tokens=checkpoint.generated_tokens,
        )
        if not scored or scored[-1].updates != point.updates:  # the final checkpoint may repeat one of the cadence
            scored.append(point)
    return scored


def _require_alike(runs: Sequence[Run]) -> None:
    first = runs[0]
    for run in runs[1:]:
        for field in ALIKE:
            if getattr(run.record, field) != getattr(first.record, field):
                raise IncompleteCampaign(f"{run.name} and {first.name} differ in {field}: they cannot be compared")


def _target(path: Path, runs: Sequence[Run]) -> TargetRecord:
    target = read_json(path, TargetRecord)
    early = min(runs, key=lambda run: run.record.started_at_utc)
    if target.written_at_utc >= early.record.started_at_utc:
        raise RecordError(f"{path} was written after {early.name} started: a target is fixed before the compared runs")
    return target

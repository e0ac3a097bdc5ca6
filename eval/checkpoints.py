"""Scores the checkpoints of a run on its held-out tasks, on every rollout process of the session."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError
from tqdm import tqdm

from eval.ledger import AttemptLedger, InfrastructureError
from eval.offline import evaluate
from thundersync.batch import Task, Trajectory, TrajectoryKey
from thundersync.cluster.session import Session
from thundersync.cluster.specs import ReplicaSpec, WorkloadSpec
from thundersync.config import parse_config
from thundersync.environments import SandboxError, load_workload
from thundersync.records import AttemptRecord, CheckpointRecord, RunDirectory
from thundersync.rollout.settings import GenerationSettings

EVALUATION_SEED = 0
"""Attempts of every checkpoint of every run share their sampling seeds, so that a difference is the policy's."""


def evaluate_run(path: Path, session: Session, *, elsewhere: Iterable[Path] = ()) -> None:
    """Evaluates every checkpoint of the declared cadence that was published within the budget.

    A policy that a run in `elsewhere` evaluated on the same tasks (the shared warm start) is not evaluated again.
    Raises Incomplete, naming the coverage, where the infrastructure kept an attempt from being graded.
    """
    directory = RunDirectory(path)
    run = directory.run()
    config = parse_config(run.config)
    workload = load_workload(run.workload, root=Path(config.cache), seed=config.workload.seed)
    by_id = {task.task_id: task for task in workload.heldout}
    tasks = [by_id[task_id] for task_id in run.evaluation_tasks]
    generation = offline_settings(config.generation)
    known = _complete_elsewhere(elsewhere, len(tasks) * run.evaluation_attempts)
    ledger = AttemptLedger(directory)
    for checkpoint in directory.read(CheckpointRecord):
        due = checkpoint.reason != "interrupt" and checkpoint.published_at <= run.budget_seconds
        pending = len(ledger.pending(checkpoint.policy_hash, run.evaluation_tasks, run.evaluation_attempts))
        if not due or not pending or checkpoint.policy_hash in known:
            continue
        spec = ReplicaSpec(
            policy=directory.path / checkpoint.path,
            version=checkpoint.update,
            workload=WorkloadSpec(name=run.workload, root=Path(config.cache), seed=config.workload.seed),
            generation=generation,
            run_seed=EVALUATION_SEED,
        )
        served = ray.get([evaluator.configure.remote(spec, None) for evaluator in session.evaluators])
        if any(s.policy_hash != checkpoint.policy_hash for s in served):
            raise ValueError(f"{spec.policy} does not hold the policy that its checkpoint record names")
        what = f"evaluate {path.name} @{checkpoint.update}"
        with tqdm(total=pending, desc=what, unit="try", leave=False, disable=None) as bar:
            asyncio.run(
                evaluate(
                    checkpoint.policy_hash,
                    tasks,
                    run.evaluation_attempts,
                    _attempts_on(session.evaluators, {task.task_id: i for i, task in enumerate(tasks)}),
                    ledger,
                    seed=EVALUATION_SEED,
                    concurrency=len(session.evaluators) * generation.concurrent_episodes_per_replica,
                    on_attempt=lambda record: bar.update(record.outcome == "graded"),
                )
            )
    directory.close()


def offline_settings(generation: GenerationSettings) -> GenerationSettings:
    """The same limits with more attempts at once: offline only throughput counts, and an attempt's tokens do not depend
    on its neighbours. More episodes than sequences, so that those in their sandbox leave no sequence idle."""
    return replace(
        generation,
        active_sequences_per_replica=2 * generation.active_sequences_per_replica,
        concurrent_episodes_per_replica=3 * generation.concurrent_episodes_per_replica,
    )


def _attempts_on(evaluators: list[Any], places: dict[str, int]):
    """An attempt on one evaluator after the other; the outcome does not depend on which."""
    turn = itertools.cycle(evaluators)

    async def run_attempt(task: Task, attempt: int, seed: int) -> Trajectory:
        key = TrajectoryKey(0, places[task.task_id], attempt)
        try:
            return await next(turn).attempt.remote(task, key, seed)
        except RayActorError as error:
            raise InfrastructureError(f"the rollout process died: {error}") from error
        except RayTaskError as error:
            if isinstance(error.cause, SandboxError):
                raise InfrastructureError(str(error.cause)) from error
            raise

    return run_attempt


def _complete_elsewhere(paths: Iterable[Path], wanted: int) -> set[str]:
    graded: dict[tuple[Path, str], int] = {}
    for path in paths:
        for record in RunDirectory(path).read_if_any(AttemptRecord):
            if record.outcome == "graded":
                slot = (path, record.policy_hash)
                graded[slot] = graded.get(slot, 0) + 1
    return {policy_hash for (_, policy_hash), count in graded.items() if count == wanted}

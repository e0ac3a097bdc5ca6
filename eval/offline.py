"""Offline evaluation of one checkpoint: run what the ledger lacks, retry what the infrastructure lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

import numpy as np

from eval.ledger import AttemptLedger, InfrastructureError, attempt_seed
from thundersync.batch import Task, Trajectory
from thundersync.records import AttemptRecord

RunAttempt = Callable[[Task, int, int], Awaitable[Trajectory]]
"""(task, attempt, seed) -> a trajectory with `success`; raises InfrastructureError where there is no verdict."""


async def evaluate(
    policy_hash: str,
    tasks: Sequence[Task],
    attempts: int,
    run_attempt: RunAttempt,
    ledger: AttemptLedger,
    *,
    seed: int,
    concurrency: int,
    max_retries: int = 2,
    on_attempt: Callable[[AttemptRecord], None] = lambda record: None,
) -> np.ndarray:
    """bool [tasks, attempts]: success of every attempt of the policy that `run_attempt` runs.

    Attempts already graded in the ledger are not repeated. An InfrastructureError is recorded and the attempt tried
    again with its own seed, up to `max_retries` times in this call; any other exception ends the evaluation, because it
    is a fault of the program. Raises Incomplete when attempts are still missing at the end.
    """
    if concurrency < 1:
        raise ValueError(f"concurrency must be at least 1, not {concurrency}")
    by_id = {task.task_id: task for task in tasks}
    if len(by_id) < len(tasks):
        raise ValueError("a task appears twice in the evaluation list")
    queue = iter(ledger.pending(policy_hash, list(by_id), attempts))

    async def worker() -> None:
        for task_id, attempt in queue:  # the workers share one iterator
            for _ in range(max_retries + 1):
                record = await _try(policy_hash, by_id[task_id], attempt, run_attempt, ledger, seed)
                ledger.record(record)
                on_attempt(record)
                if record.outcome == "graded":
                    break

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(worker())
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return ledger.outcomes(policy_hash, list(by_id), attempts)


async def _try(
    policy_hash: str, task: Task, attempt: int, run_attempt: RunAttempt, ledger: AttemptLedger, seed: int
) -> AttemptRecord:
    assigned = attempt_seed(seed, task.task_id, attempt)
    slot = {"policy_hash": policy_hash, "task_id": task.task_id, "attempt": attempt, "seed": assigned}
    retries = len(ledger.tries(policy_hash, task.task_id, attempt))
    started = time.monotonic()
    try:
        trajectory = await run_attempt(task, attempt, assigned)
    except InfrastructureError as error:
        return AttemptRecord(
            **slot,
            outcome="infrastructure",
            success=None,
            reward=None,
            seconds=time.monotonic() - started,
            tokens=0,
            turns=0,
            ended=str(error),
            retries=retries,
        )
    if trajectory.success is None:
        raise ValueError(
            f"{task.task_id} attempt {attempt} came back without a verdict: raise InfrastructureError instead"
        )
    return AttemptRecord(
        **slot,
        outcome="graded",
        success=trajectory.success,
        reward=trajectory.reward,
        seconds=time.monotonic() - started,
        tokens=trajectory.scored_tokens,
        turns=len(trajectory.turns),
        ended=trajectory.outcome,
        retries=retries,
    )

"""Every try of every evaluation attempt, graded or not, kept in order (Appendix E.2).

An infrastructure failure is no failure of the agent: the attempt is tried again with the same task, checkpoint and
seed. What stays missing makes the evaluation incomplete; it never counts as zero and never leaves the denominator.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from thundersync.records import AttemptRecord, Incomplete, RunDirectory, outcomes

__all__ = ["AttemptLedger", "Incomplete", "InfrastructureError", "attempt_seed"]


class InfrastructureError(RuntimeError):
    """The sandbox, verifier or engine failed, not the agent: the attempt says nothing about the policy."""


def attempt_seed(seed: int, task_id: str, attempt: int) -> int:
    """The assigned 63-bit sampling seed of an attempt: the same for every checkpoint and every retry."""
    digest = hashlib.sha256(f"evaluation/{seed}/{task_id}/{attempt}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


class AttemptLedger:
    """The attempts of one run directory."""

    def __init__(self, directory: RunDirectory):
        self._directory = directory
        self.records: list[AttemptRecord] = []
        self._tries: dict[tuple[str, str, int], list[AttemptRecord]] = defaultdict(list)
        for record in directory.read_if_any(AttemptRecord):
            self._keep(record)

    def _keep(self, record: AttemptRecord) -> None:
        self.records.append(record)
        self._tries[record.policy_hash, record.task_id, record.attempt].append(record)

    def record(self, record: AttemptRecord) -> None:
        """Appends a try. Raises ValueError for an attempt already graded, or retried under another seed."""
        earlier = self.tries(record.policy_hash, record.task_id, record.attempt)
        if any(e.outcome == "graded" for e in earlier):
            raise ValueError(f"{record.task_id} attempt {record.attempt} is graded already: no second try is allowed")
        if any(e.seed != record.seed for e in earlier):
            raise ValueError(
                f"{record.task_id} attempt {record.attempt} must be retried with its seed {earlier[0].seed}"
            )
        self._directory.append(record)
        self._keep(record)

    def tries(self, policy_hash: str, task_id: str, attempt: int) -> list[AttemptRecord]:
        return self._tries.get((policy_hash, task_id, attempt), [])

    def pending(self, policy_hash: str, task_ids: Sequence[str], attempts: int) -> list[tuple[str, int]]:
        """(task, attempt) pairs without a graded try, in order."""
        return [
            (task_id, attempt)
            for task_id in task_ids
            for attempt in range(attempts)
            if not any(r.outcome == "graded" for r in self.tries(policy_hash, task_id, attempt))
        ]

    def outcomes(self, policy_hash: str, task_ids: Sequence[str], attempts: int) -> np.ndarray:
        """bool [tasks, attempts]. Raises Incomplete, with the coverage, while an attempt is missing."""
        return outcomes(self.records, policy_hash=policy_hash, task_ids=task_ids, attempts=attempts)

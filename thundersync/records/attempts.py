"""From attempt records to the (tasks x attempts) array that every score is computed from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from thundersync.records.schemas import AttemptRecord


class Incomplete(ValueError):
    """Some attempts were never graded: there is no score (Appendix E.2), only a coverage."""

    def __init__(self, what: str, graded: int, wanted: int, missing: Sequence[str]):
        self.graded, self.wanted, self.missing = graded, wanted, tuple(missing)
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        super().__init__(
            f"evaluation of {what} is incomplete: coverage {graded}/{wanted}, missing {', '.join(missing[:3])}{more}; "
            "evaluate again, no score is given"
        )


def outcomes(
    records: Iterable[AttemptRecord],
    *,
    policy_hash: str,
    task_ids: Sequence[str],
    attempts: int,
    what: str | None = None,
) -> np.ndarray:
    """bool [tasks, attempts]: success of each graded attempt, tasks in the given order.

    Raises Incomplete, calling the evaluation `what`, when one is missing, and ValueError when two graded tries of one
    attempt disagree.
    """
    graded: dict[tuple[str, int], bool] = {}
    for record in records:
        if record.policy_hash == policy_hash and record.outcome == "graded":
            slot = (record.task_id, record.attempt)
            if graded.setdefault(slot, record.success) != record.success:
                raise ValueError(
                    f"policy {policy_hash[:12]}, {slot[0]}, attempt {slot[1]} was graded twice, differently"
                )
    wanted = [(task_id, attempt) for task_id in task_ids for attempt in range(attempts)]
    missing = [f"{task_id} attempt {attempt}" for task_id, attempt in wanted if (task_id, attempt) not in graded]
    if missing:
        raise Incomplete(what or f"policy {policy_hash[:12]}", len(wanted) - len(missing), len(wanted), missing)
    return np.array([graded[slot] for slot in wanted], dtype=bool).reshape(len(task_ids), attempts)

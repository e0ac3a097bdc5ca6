"""pass@k of a (tasks x attempts) array.

    pass@k = 100/M * sum_i [1 - C(n_i - c_i, k) / C(n_i, k)]        Equation 31, n_i >= k

With n = k = 3 this is the share of tasks solved in any of three attempts, Equation 13.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb

import numpy as np


def estimate(n: int, c: int, k: int) -> float:
    """Unbiased probability in [0, 1] that one of k attempts solves a task solved in c of n; ValueError if n < k."""
    if not 0 <= c <= n:
        raise ValueError(f"{c} of {n} attempts cannot have succeeded")
    if k < 1 or n < k:
        raise ValueError(f"pass@{k} needs at least {max(k, 1)} graded attempts, found {n}: evaluate more attempts")
    return 1 - comb(n - c, k) / comb(n, k)


def per_task(outcomes_TA: np.ndarray, k: int, task_ids: Sequence[str] | None = None) -> np.ndarray:
    """float64 [tasks] in [0, 1] from a (tasks x attempts) array, bool or 0/1 with NaN where no attempt was graded.

    Raises ValueError naming the first task with fewer than k graded attempts: dropping it would raise the score.
    """
    outcomes_TA = np.asarray(outcomes_TA, dtype=np.float64)
    if outcomes_TA.ndim != 2 or not len(outcomes_TA):
        raise ValueError(f"outcomes must be a (tasks x attempts) array with a task, not of shape {outcomes_TA.shape}")
    names = task_ids if task_ids is not None else [f"task {i}" for i in range(len(outcomes_TA))]
    values = []
    for name, row in zip(names, outcomes_TA, strict=True):
        graded = row[~np.isnan(row)]
        if not np.isin(graded, (0.0, 1.0)).all():
            raise ValueError(f"{name}: outcomes must be 0 or 1")
        try:
            values.append(estimate(len(graded), int(graded.sum()), k))
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return np.array(values)


def pass_at_k(outcomes_TA: np.ndarray, k: int, task_ids: Sequence[str] | None = None) -> float:
    """Percent; each task has equal weight. Raises as `per_task`."""
    return 100 * float(per_task(outcomes_TA, k, task_ids).mean())


def pass_at_3(outcomes_TA: np.ndarray) -> np.ndarray:
    """float64 [T]: what targets and figures are scored by (Equation 13)."""
    return per_task(outcomes_TA, 3)

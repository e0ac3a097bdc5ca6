"""What a tail costs, and what no schedule can beat (Equations 16 and 17).

Everything is in units of the rollout time R: rho = L/R the learner's work, kappa = P/R the common suffix, lambda the
learner time that remains after rollout has closed. Arrays broadcast against each other.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def normalized_tail(last_finish: ArrayLike, rollout: ArrayLike) -> NDArray[np.float64]:
    """lambda = [c_n - R]+ / R, from the end c_n of the learner's queue (Appendix F.1)."""
    return np.maximum(np.asarray(last_finish) - rollout, 0) / rollout


def speedup(
    rho: ArrayLike, tail: ArrayLike, kappa: ArrayLike = 0.0, rho_sync: ArrayLike | None = None
) -> NDArray[np.float64]:
    """Equation 16: S = (1 + rho + kappa) / (1 + lambda + kappa).

    The paper compares schedules that do the same work. A release policy that does more (`turn_eager` runs turns
    forward twice) has a larger rho, in its tail, than Sync: `rho_sync` is then that of Sync, None where they agree.
    """
    sync = rho if rho_sync is None else rho_sync
    return (1 + np.asarray(sync) + kappa) / (1 + np.asarray(tail) + kappa)


def overlap_limit(rho: ArrayLike, kappa: ArrayLike = 0.0) -> NDArray[np.float64]:
    """Equation 17 over R: (1 + rho + kappa) / (max(1, rho) + kappa) <= 2. At kappa = 0 it is symmetric in log rho."""
    return speedup(rho, np.maximum(np.asarray(rho, dtype=np.float64) - 1, 0), kappa)


def training_share(rollout: ArrayLike, learner: ArrayLike) -> NDArray[np.float64]:
    """s = L / (R + L): the learner's share of the two stages of a synchronous step."""
    return np.asarray(learner) / (np.asarray(rollout) + learner)


def share_limit(share: ArrayLike) -> NDArray[np.float64]:
    """Equation 17 without a suffix, by the share: max(s, 1 - s)^-1. Best, 2, where both stages take equally long."""
    s = np.asarray(share, dtype=np.float64)
    return 1 / np.maximum(s, 1 - s)

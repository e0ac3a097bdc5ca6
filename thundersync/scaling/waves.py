"""Batches larger or smaller than what rolls out at once (Equations 25, 26 and 28).

One full rollout wave takes W, with learner service rho_w W; w waves follow each other at intervals of W, and one suffix
P = kappa_w W ends the step. Arrays broadcast against each other; (u_N, F_N) is the release distribution of one wave,
as in `tail.py`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from thundersync.scaling.tail import tail


def wave_endpoints(u_N: ArrayLike, F_N: ArrayLike, rho_w: float, w: int) -> NDArray[np.float64]:
    """Equation 25: (i - 1) + u + rho_w [1 - F-(u)] + rho_w (w - i), for waves i = 1..w; (w, N), in units of W.

    A job of wave i has the rest of its wave and all later waves' service behind it. The learner is done at the largest.
    """
    i = np.arange(1, w + 1)[:, None]
    return (i - 1) + np.asarray(u_N) + rho_w * (1 - np.asarray(F_N)) + rho_w * (w - i)


def wave_speedup(w: ArrayLike, rho_w: ArrayLike, kappa_w: ArrayLike, lambda_w: ArrayLike) -> NDArray[np.float64]:
    """Equation 26: S(w) = (w (1 + rho_w) + kappa_w) / (w max(1, rho_w) + kappa_w - [rho_w - 1]+ + lambda_w)."""
    w, rho_w = np.asarray(w, dtype=np.float64), np.asarray(rho_w, dtype=np.float64)
    return (w * (1 + rho_w) + kappa_w) / (
        w * np.maximum(1, rho_w) + kappa_w - np.maximum(rho_w - 1, 0) + np.asarray(lambda_w)
    )


def waves_of_batch(
    batch: ArrayLike, ratio: ArrayLike, capacity: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Equation 28: w = max(1, B/Q), rho_w = min(1, B/Q) / r. Returns (w, rho_w).

    B = `batch` trajectories per optimizer step, Q = `capacity` trajectories that roll out at once, r = `ratio` of
    rollout time to learner time at full capacity. Below capacity the window stays and the service shrinks with
    occupancy; above it the wave formula is continued to non-integer B/Q.
    """
    filled = np.asarray(batch, dtype=np.float64) / capacity
    return np.maximum(1, filled), np.minimum(1, filled) / np.asarray(ratio)


def predicted_speedup(
    u_N: ArrayLike, F_N: ArrayLike, *, batch: ArrayLike, ratio: ArrayLike, capacity: float, kappa_w: float
) -> NDArray[np.float64]:
    """The analytical surface of Figures 7b, 8, 9 and 10: Equation 28, then 19 for one wave, then 26."""
    w, rho_w = waves_of_batch(batch, ratio, capacity)
    distinct, where = np.unique(rho_w, return_inverse=True)
    lambda_w = tail(u_N, F_N, distinct)[where].reshape(rho_w.shape)
    return wave_speedup(w, rho_w, kappa_w, lambda_w)


def best_ratio(
    u_N: ArrayLike, F_N: ArrayLike, *, batch: float, capacity: float, kappa_w: float, ratios: ArrayLike
) -> tuple[float, float]:
    """(r, speedup) of the largest predicted speedup among `ratios`; with a tail it need not lie at r = 1."""
    found = predicted_speedup(u_N, F_N, batch=batch, ratio=ratios, capacity=capacity, kappa_w=kappa_w)
    best = int(np.argmax(found))
    return float(np.asarray(ratios)[best]), float(found[best])

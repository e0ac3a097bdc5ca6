"""From the release of work to the learner's tail (Equations 18 to 20 and 27).

u = t/R is time as a fraction of the rollout window. A release distribution is a pair of arrays: points u_N in [0, 1]
and F_N, the fraction F-(u) of learner service that is released *strictly before* u: the work released at u itself, and
all later work, still lies ahead. From a trace comes `released_before`; from a law, its values on `grid()`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from thundersync.scaling.queue import checked


def grid(points: int = 20_001) -> NDArray[np.float64]:
    """(points,) evenly spaced u from 0 to 1 on which a law is tabulated.

    F does not decrease, so u + rho (1 - F) grows by at most h over a step h: a supremum looked up on the grid is at
    most 1/(points - 1) too small, and at a smooth maximum only of the order of that squared.
    """
    return np.linspace(0, 1, points)


def released_before(
    ready: ArrayLike, service: ArrayLike, rollout: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Equation 18: F-(u) = 1/L sum_{tau_j < uR} p_j, at the release times tau_j / R (n,) and at u = 0 and 1.

    Between two release times F- is constant, so every supremum below is attained at one of these points. Returns
    (u (n + 2,), F- (n + 2,)). Raises ValueError when a source is ready after rollout has closed: the laws assume
    0 <= tau_j <= R, and work that belongs to the final barrier is part of P.
    """
    tau, p = checked(ready, service)
    if np.any(tau > rollout):
        raise ValueError(
            f"ready[{int(np.argmax(tau))}] is {tau.max()}, after rollout closed at {rollout}: count such work to the "
            "suffix P, or use queue.step_time, which takes any ready time"
        )
    if not p.sum() > 0:
        raise ValueError("the service times sum to 0: there is no work whose release could be described")
    order = np.argsort(tau, kind="stable")
    u = np.concatenate([[0.0], tau[order], [rollout]])
    done = np.concatenate([[0.0], np.cumsum(p[order])])
    before = np.searchsorted(tau[order], u, side="left")
    return u / rollout, done[before] / done[-1]


def tail(u_N: ArrayLike, F_N: ArrayLike, rho: ArrayLike) -> NDArray[np.float64]:
    """Equation 19: 1 + lambda = max(1, sup_u [u + rho (1 - F-(u))]). Returns lambda with the shape of `rho`."""
    u, waiting, rho = np.asarray(u_N), 1 - np.asarray(F_N), np.asarray(rho, dtype=np.float64)
    latest = [np.max(u + one * waiting) for one in rho.ravel()]
    return np.maximum(np.reshape(latest, rho.shape) - 1, 0)


def release_lag(u_N: ArrayLike, F_N: ArrayLike) -> float:
    """D = sup_u [u - F-(u)], how far release lags behind uniform service; at rho = 1 the tail equals D."""
    return float(np.max(np.asarray(u_N) - F_N))


def tail_bounds(rho: ArrayLike, lag: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Equation 20: [rho - 1]+ <= lambda <= [rho - 1]+ + rho D. Returns (lower, upper)."""
    lower = np.maximum(np.asarray(rho, dtype=np.float64) - 1, 0)
    return lower, lower + np.asarray(rho) * lag


def tail_difference_bound(F_N: ArrayLike, G_N: ArrayLike, rho: ArrayLike) -> NDArray[np.float64]:
    """Equation 27: |lambda(F, rho) - lambda(G, rho)| <= rho sup_u |F(u) - G(u)|, both at the same points.

    The supremum is over the points given: where a distribution has a step, give both of its sides.
    """
    return np.asarray(rho) * np.max(np.abs(np.asarray(F_N) - G_N))


def atoms_tail_error(atoms: int, rho: ArrayLike) -> NDArray[np.float64]:
    """Appendix F.4: n equal atoms at the midpoint quantiles of a law miss its tail by at most rho / (2n)."""
    return np.asarray(rho) / (2 * atoms)

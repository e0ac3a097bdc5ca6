"""The learner's queue: when does the last gradient finish (Equations 1, 14 and 15), and how long is the step?

Symbols of Appendix F.1, all times from the first rollout request, in any one unit: source j is ready at tau_j and takes
p_j on its learner lane; R is when rollout closes, L = sum p_j, P the common suffix (reduction, optimizer, publication).
A lane serves its sources in order of readiness, one at a time. Sources assigned to ranks beforehand queue per rank.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def finish_times(ready: ArrayLike, service: ArrayLike) -> NDArray[np.float64]:
    """Equation 14 on one lane: c_j = max(tau_j, c_{j-1}) + p_j with c_0 = 0, in nondecreasing order of readiness.

    `ready` (n,) and `service` (n,) may come in any order (sources ready at the same instant keep theirs); the result
    (n,) is in the order of the input. Raises ValueError for unequal lengths and for values negative or not finite.
    """
    tau, p = checked(ready, service)
    c = np.empty(len(tau))
    finished = 0.0
    for j in np.argsort(tau, kind="stable"):
        finished = max(tau[j], finished) + p[j]
        c[j] = finished
    return c


def last_finish(ready: ArrayLike, service: ArrayLike) -> float:
    """Equation 15, the closed form: c_n = max over j of (tau_j + sum_{i=j..n} p_i). 0 for no source."""
    tau, p = checked(ready, service)
    order = np.argsort(tau, kind="stable")
    from_j_on = np.cumsum(p[order][::-1])[::-1]
    return float(np.max(tau[order] + from_j_on, initial=0.0))


def close_time(ready: ArrayLike, service: ArrayLike, rank: ArrayLike | None = None) -> float:
    """c_n: when the last source finishes; the latest over ranks, each with a queue of its own (Appendix F.4).

    `rank` (n,) names the rank of each source; None is one lane. Raises ValueError as `finish_times` does.
    """
    tau, p = checked(ready, service)
    return max((last_finish(tau[lane], p[lane]) for lane in _lanes(rank, len(tau))), default=0.0)


def learner_time(service: ArrayLike, rank: ArrayLike | None = None) -> float:
    """L: the whole service of one lane; over ranks, that of the busiest, which Sync waits for."""
    p = np.asarray(service, dtype=np.float64)
    return max((float(p[lane].sum()) for lane in _lanes(rank, len(p))), default=0.0)


def step_time(
    ready: ArrayLike, service: ArrayLike, rollout: float, suffix: float, rank: ArrayLike | None = None
) -> float:
    """Equations 2 and 14: T = max(R, c_n) + P, the step of ThunderSync, a float."""
    return max(rollout, close_time(ready, service, rank)) + suffix


def sync_step_time(service: ArrayLike, rollout: float, suffix: float, rank: ArrayLike | None = None) -> float:
    """Appendix F.1: T = R + L + P, every source released when rollout closes."""
    return rollout + learner_time(service, rank) + suffix


def _lanes(rank: ArrayLike | None, sources: int) -> list:
    """One index per rank: which sources queue there."""
    if rank is None:
        return [slice(None)]
    ranks = np.asarray(rank)
    if ranks.shape != (sources,):
        raise ValueError(f"rank must name one rank per source: got shape {ranks.shape} for {sources} sources")
    return [ranks == one for one in np.unique(ranks)]


def checked(ready: ArrayLike, service: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(tau, p) as float64 arrays (n,). Raises ValueError naming the first value that is negative or not finite."""
    tau, p = np.asarray(ready, dtype=np.float64), np.asarray(service, dtype=np.float64)
    if tau.ndim != 1 or tau.shape != p.shape:
        raise ValueError(f"ready and service must be two lists of one length, got shapes {tau.shape} and {p.shape}")
    for name, values in (("ready", tau), ("service", p)):
        wrong = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
        if len(wrong):
            raise ValueError(f"{name}[{wrong[0]}] is {values[wrong[0]]}: times are finite and not negative")
    return tau, p

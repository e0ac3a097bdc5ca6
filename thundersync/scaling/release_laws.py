"""How much learner work is released by time u: one law per release policy (Equations 21 to 24, and two of our own).

Model of Appendix F.2: trajectories complete at independent U ~ Uniform(0, 1), in units of the rollout window, and take
learner service proportional to U^gamma. A piece of work released at time x U, for a share x of the trajectory's
duration, is out by u when U <= u/x; weighted by service, that has probability H(min(1, u/x)). Every law is a mixture of
such terms and rises from 0 at u = 0 to 1 at u = 1. `u` may have any shape; the result has the same.

| release        | work of a trajectory is released                                | law                            |
|----------------|------------------------------------------------------------------|--------------------------------|
| `trajectory`   | all at its reward, the group's closure when all m have theirs   | `grpo`, Equation 22            |
| `turn_eager`   | turn j of a at jU/a, the deferred share when it completes       | `opd`, Equation 24             |
| `content`      | as `trajectory`, but before verification                        | `content`, derived there       |
| `turn_forward` | forward of turn j at jU/a, backward when it completes           | `turn_forward`, derived there  |
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def completed(u: ArrayLike, gamma: float) -> NDArray[np.float64]:
    """Equation 21: H(u) = int_0^u t^gamma dt / int_0^1 t^gamma dt = u^(gamma + 1), gamma >= 0."""
    return np.asarray(u, dtype=np.float64) ** (gamma + 1)


def grpo(u: ArrayLike, *, m: int, beta: float, gamma: float) -> NDArray[np.float64]:
    """Equation 22: F_GRPO(u) = (1 - beta) u^(gamma+1) + beta u^(gamma+m).

    A share beta of the service waits until all m trajectories of the group have completed; the other m - 1 have done so
    by u with probability u^(m-1).
    """
    return (1 - beta) * completed(u, gamma) + beta * completed(u, gamma + m - 1)


def opd(u: ArrayLike, *, turns: int, delta: float, gamma: float) -> NDArray[np.float64]:
    """Equation 24: F_OPD(u) = (1 - delta)/a sum_{j=1..a} min(1, a u / j)^(gamma+1) + delta u^(gamma+1).

    a = `turns` of equal service, turn j released at jU/a; a share delta is deferred until the trajectory completes.
    """
    return (1 - delta) * _turns(u, turns, gamma) + delta * completed(u, gamma)


def opd_limit(u: ArrayLike, *, gamma: float) -> NDArray[np.float64]:
    """Appendix F.2: `opd` at delta = 0 and infinitely many turns; at least u everywhere, so its tail is [rho - 1]+.

    u (1 + 1/gamma) - u^(gamma+1)/gamma for gamma > 0; u (1 - log u) for gamma = 0, with value 0 at u = 0.
    """
    u = np.asarray(u, dtype=np.float64)
    if gamma > 0:
        return u * (1 + 1 / gamma) - completed(u, gamma) / gamma
    return u * (1 - np.log(u, where=u > 0, out=np.zeros_like(u)))


def content(u: ArrayLike, *, verification: float, m: int, beta: float, gamma: float) -> NDArray[np.float64]:
    """Release `content`: F(u) = (1 - beta) min(1, u / (1 - v))^(gamma+1) + beta u^(gamma+m). Not in the paper.

    v = `verification`, 0 <= v < 1, is the share of a trajectory's duration that passes between its last token and its
    reward. H_i does not depend on the reward, so its service is released at (1 - v) U, and by u when U <= u / (1 - v).
    Nothing else moves: the reward still comes at U, and the closure share beta waits for all m rewards of the group.
    v = 0 is Equation 22. Compared with it F grows everywhere, so by Equation 19 the tail can only shrink. For beta = 0
    put u = (1 - v) x: 1 + lambda = max(1, (1 - v)(1 + lambda_0)), lambda_0 the tail of x^(gamma+1) at rho / (1 - v);
    the learner sees a rollout window that is shorter by the verification.
    Where verification takes every trajectory the same time, not the same share of its own, use a trace.
    """
    tokens_final = np.minimum(1, np.asarray(u, dtype=np.float64) / (1 - verification))
    return (1 - beta) * completed(tokens_final, gamma) + beta * completed(u, gamma + m - 1)


def turn_forward(
    u: ArrayLike,
    *,
    turns: int,
    forward: float,
    gamma: float,
    verification: float = 0.0,
    m: int = 1,
    beta: float = 0.0,
) -> NDArray[np.float64]:
    """Release `turn_forward`: F(u) = f/a sum_{j=1..a} min(1, a u / (j (1-v)))^(gamma+1)
    + (1 - f - beta) u^(gamma+1) + beta u^(gamma+m). Not in the paper.

    f = `forward` is the share of service that runs forward (about a third of forward plus backward), split equally over
    a = `turns`. A turn's forward pass needs its own tokens and the states before it, no reward: turn j is released at
    j (1-v) U / a. The one backward pass through the whole trajectory, 1 - f - beta of the service, is released when the
    trajectory closes, at U: OPD closes with its last turn (v = 0, m = 1, beta = 0), GRPO with its reward, v as in
    `content`, and a share beta with its group. For OPD this is Equation 24 with delta = 1 - f: a larger deferred share
    than `turn_eager`, but no forward pass is repeated, so rho is smaller. f = 0 is Equation 22 (GRPO).
    """
    u = np.asarray(u, dtype=np.float64)
    early = _turns(np.minimum(1, u / (1 - verification)), turns, gamma)
    return forward * early + (1 - forward - beta) * completed(u, gamma) + beta * completed(u, gamma + m - 1)


def grpo_stationary_point(rho: float, *, m: int, beta: float, gamma: float) -> float | None:
    """Equation 23: the u in (0, 1) at which u + rho (1 - F_GRPO(u)) is largest, or None where it is largest at an end.

    Solves (1 - beta)(gamma+1) u^gamma + beta (gamma+m) u^(gamma+m-1) = 1/rho by bisection; the left side increases with
    u. There is no interior maximum when the tail is zero, rho (gamma + 1 + beta (m - 1)) <= 1 (largest at u = 1), nor
    when the left side exceeds 1/rho at once, which takes gamma = 0 (largest at u = 0).
    """

    def density(u: float) -> float:
        return (1 - beta) * (gamma + 1) * u**gamma + beta * (gamma + m) * u ** (gamma + m - 1)

    if density(1.0) <= 1 / rho or density(0.0) >= 1 / rho:
        return None
    low, high = 0.0, 1.0
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if density(middle) < 1 / rho else (low, middle)
    return low


def grpo_tail(rho: float, *, m: int, beta: float, gamma: float) -> float:
    """The tail of Equation 22 to rounding, without a grid: Equation 19 at both ends and at Equation 23's point."""
    inner = grpo_stationary_point(rho, m=m, beta=beta, gamma=gamma)
    u = np.array([0.0, 1.0] if inner is None else [0.0, inner, 1.0])
    return max(0.0, float(np.max(u + rho * (1 - grpo(u, m=m, beta=beta, gamma=gamma)))) - 1)


def _turns(u: ArrayLike, a: int, gamma: float) -> NDArray[np.float64]:
    """1/a sum_{j=1..a} min(1, a u / j)^(gamma+1): by u the turns j <= a u are out for every trajectory, each counts 1;
    of the later ones the factor (a u)^(gamma+1) is common, so that a table of sum_{j>k} j^-(gamma+1) serves all u."""
    au = a * np.asarray(u, dtype=np.float64)
    later = np.append(np.cumsum(np.arange(a, 0, -1.0) ** -(gamma + 1))[::-1], 0.0)
    out = np.clip(np.floor(au), 0, a).astype(int)
    return (out + au ** (gamma + 1) * later[out]) / a

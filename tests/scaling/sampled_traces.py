"""Traces drawn from the model of Appendix F.2, event by event: an independent reference for the release laws.

Trajectories complete (GRPO: have their reward) at U ~ Uniform(0, 1) and take service U^gamma in all. Each function
returns (ready, service) of n trajectories, service scaled to sum to 1, rollout closing at 1.
"""

import numpy as np


def trajectory(rng, n, *, m, beta, gamma, verification=0.0):
    """A trajectory's work at (1 - v) U, and a share beta when the last of its group of m has its reward."""
    completed = rng.uniform(size=(n // m, m))
    service = completed**gamma
    closes = np.repeat(completed.max(axis=1), m)
    ready = np.concatenate([((1 - verification) * completed).ravel(), closes])
    return ready, _scaled(np.concatenate([(1 - beta) * service.ravel(), beta * service.ravel()]))


def turns(rng, n, *, turns, late, gamma, verification=0.0, m=1, beta=0.0):
    """A share 1 - late - beta over turns that end at j (1 - v) U / a; `late` at U; beta when the group closes."""
    completed = rng.uniform(size=(n // m, m))
    closes = np.broadcast_to(completed.max(axis=1, keepdims=True), completed.shape)
    ready, service = [completed, closes], [late * completed**gamma, beta * completed**gamma]
    for j in range(1, turns + 1):
        ready.append(j * (1 - verification) * completed / turns)
        service.append((1 - late - beta) / turns * completed**gamma)
    return np.concatenate(ready, axis=None), _scaled(np.concatenate(service, axis=None))


def _scaled(service):
    return service / service.sum()

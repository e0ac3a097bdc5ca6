"""Durations drawn from a distribution, in the release model of Appendix F.2.

A trajectory lasts U times the mean, its learner service is proportional to U^gamma, and is released in `turns` equal
parts; a share beta of a group's service waits for its last reward (GRPO, Equation 22), a share delta of a trajectory's
for its closure (OPD, Equation 24). Every draw is a function of (seed, update, group) alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from thundersync.batch import GroupKey, TrajectoryKey
from thundersync.simulation.durations import Durations, TrajectoryTimes

Shape = Callable[[float], float]
"""Quantile function, of a probability in (0, 1), of a trajectory's duration in units of the mean."""


def uniform(p: float) -> float:
    """Uniform on (0, 2): Appendix F.2's completion times. Standard deviation over mean: 0.577."""
    return 2 * p


@lru_cache  # one function for one dispersion, so that its mean powers are computed once
def lognormal(dispersion: float) -> Shape:
    """Log-normal with mean 1 and the given standard deviation."""
    sigma = math.sqrt(math.log1p(dispersion**2))
    normal = NormalDist(-(sigma**2) / 2, sigma) if sigma else None
    return lambda p: math.exp(normal.inv_cdf(p)) if normal else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """Settings of the distribution; `durations()` is what the ports take."""

    seed: int
    group_size: int
    trajectory_s: float
    """Mean rollout time of a trajectory on its slot."""
    service_s: float
    """Mean learner service of a trajectory, group closure included."""
    shape: Shape = uniform
    turns: int = 1
    verification_s: float = 0.0
    """Part of `trajectory_s` in which the verifier works."""
    gamma: float = 0.0
    """Exponent of service in duration."""
    closure: float = 0.0
    """beta: share of service that waits for the group."""
    deferred: float = 0.0
    """delta: share of service that waits for the trajectory's closure, where service is released by turns."""
    step_s: float = 0.0
    publication_s: float = 0.0

    def durations(self) -> Durations:
        mean_power = _mean_power(self.shape, self.gamma)
        turn_shares_T = np.full(self.turns, 1 / self.turns)
        turn_ends_T = np.arange(1, self.turns + 1) / self.turns

        def service(group: GroupKey) -> list[float]:
            return [self.service_s * self.shape(p) ** self.gamma / mean_power for p in self._draws(group)]

        @lru_cache(maxsize=16384)  # asked for by the rollout and again by the learner
        def trajectory(key: TrajectoryKey) -> TrajectoryTimes:
            lasts = self.shape(self._draws(key.group_key)[key.trajectory])
            own = (1 - self.closure) * self.service_s * lasts**self.gamma / mean_power
            return TrajectoryTimes(
                seconds=max(lasts * self.trajectory_s - self.verification_s, 0.0),
                turn_ends_T=turn_ends_T,
                verification=self.verification_s,
                service=own,
                turn_service=(1 - self.deferred) * own,
                turn_shares_T=turn_shares_T,
                deferred=self.deferred * own,
            )

        return Durations(
            trajectory=trajectory,
            group=lambda group: self.closure * sum(service(group)) if self.closure else 0.0,
            step=lambda update: self.step_s,
            publication=lambda version: self.publication_s,
        )

    def _draws(self, group: GroupKey) -> tuple[float, ...]:
        """A probability for each trajectory of the group."""
        return _draws(self.seed, group, self.group_size)


@lru_cache(maxsize=4096)
def _draws(seed: int, group: GroupKey, size: int) -> tuple[float, ...]:
    return tuple(np.random.default_rng([seed, *group]).random(size).tolist())


@lru_cache(maxsize=64)
def _mean_power(shape: Shape, gamma: float, points: int = 20_000) -> float:
    """E[U^gamma], at midpoint quantiles."""
    return math.fsum(shape((i + 0.5) / points) ** gamma for i in range(points)) / points

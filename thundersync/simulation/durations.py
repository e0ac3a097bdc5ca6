"""How long each piece of work takes: functions of identity, so that the order of execution changes no duration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from thundersync.batch import GroupKey, TrajectoryKey

WHOLE = np.ones(1)
"""The turns of a trajectory that is one piece."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryTimes:
    """Seconds of one trajectory, and how turns divide them. Shape legend: T = its turns."""

    seconds: float
    """From the start to the final content: generation, tools and teacher of all turns."""
    turn_ends_T: np.ndarray = field(default_factory=lambda: WHOLE)
    """float64; when each turn is ready, as a fraction of `seconds`; rising to 1."""
    verification: float = 0.0
    """From the final content to the reward."""
    service: float
    """Learner work of the whole trajectory at once (Equation 1's p_j)."""
    turn_service: float = 0.0
    """Learner work of all turns together, where it is released by turns."""
    turn_shares_T: np.ndarray = field(default_factory=lambda: WHOLE)
    """float64; each turn's fraction of `turn_service`; their sum is 1."""
    deferred: float = 0.0
    """Learner work that such a trajectory leaves until it closes: replayed adjoints, or the one backward."""

    @property
    def rollout(self) -> float:
        """From the start to the reward: how long a rollout slot is taken."""
        return self.seconds + self.verification


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """Seconds of every kind of work."""

    trajectory: Callable[[TrajectoryKey], TrajectoryTimes]
    group: Callable[[GroupKey], float]
    """Closure of a group: its sums combined, one backward through the shared prompt."""
    step: Callable[[int], float] = lambda update: 0.0
    """Reduction over ranks and optimizer step of an update."""
    publication: Callable[[int], float] = lambda version: 0.0
    """From the step until a replica serves the version."""
    boundary: Callable[[int], float] = lambda update: 0.0
    """From the publication of an update to the start of the next: records, a checkpoint where one is due."""

"""Which cores each process may use: the learner alone on one, everything else on the others.

Two processes pinned apart do not slow each other, so that the overlap of rollout and learner is real and measurable.
"""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    rollout_cores: tuple[int, ...]
    """Rollout replicas, teacher, sandboxes, controller, Ray itself."""
    learner_cores: tuple[int, ...]


def place() -> Placement:
    """The last available core for the learner, one other for everything else: exactly two devices whatever there is.

    Raises RuntimeError with fewer than two cores: overlap cannot be shown there.
    """
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise RuntimeError(
            f"two CPU cores are needed, one for the learner and one for rollout; this process may use {len(cores)}"
        )
    return Placement(rollout_cores=(cores[0],), learner_cores=(cores[1],))


def pin(cores: tuple[int, ...]) -> None:
    """Pins this process and all its threads to come; the session's environment keeps libraries to one thread."""
    os.sched_setaffinity(0, cores)

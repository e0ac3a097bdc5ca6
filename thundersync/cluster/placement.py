"""Which cores each process may use: the learner alone on its own, everything else on another.

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
    """No more than there are learner ranks; there may be fewer."""

    def devices(self, ranks: int) -> int:
        """Cores that rollout and so many learner ranks take."""
        return len(self.rollout_cores) + min(ranks, len(self.learner_cores))

    def of_rank(self, rank: int) -> tuple[int, ...]:
        """The core of a learner rank; ranks take turns where there are more of them than cores."""
        return (self.learner_cores[rank % len(self.learner_cores)],)

    def shortage(self, ranks: int) -> str:
        """What is said when so many learner ranks have to share cores; empty when each has its own."""
        cores = len(self.learner_cores)
        return f"{ranks} learner ranks share {cores} core{'s'[: cores > 1]}" if ranks > cores else ""


def place(learner_ranks: int = 1) -> Placement:
    """The first available core for rollout and everything else, one of the next for each learner rank, while they last.

    With one rank exactly two devices, whatever there is. Raises RuntimeError with fewer than two cores: overlap cannot
    be shown there.
    """
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise RuntimeError(
            f"two CPU cores are needed, one for the learner and one for rollout; this process may use {len(cores)}"
        )
    return Placement(rollout_cores=(cores[0],), learner_cores=tuple(cores[1 : 1 + learner_ranks]))


def pin(cores: tuple[int, ...]) -> None:
    """Pins this process and all its threads to come; the session's environment keeps libraries to one thread."""
    os.sched_setaffinity(0, cores)

"""The trace of a step: what the learner had to do, when each piece became ready, and how long it took (Appendix F.5).

A trace says nothing about a schedule. Releasing the same work at other times, as another release policy would, gives
another trace (`releases.py`); Equation 14 turns it into a step time (`queue.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from thundersync.scaling.queue import learner_time, step_time, sync_step_time

WHOLE = -1
"""Stands for the turn of a job that belongs to a whole trajectory, and for the trajectory of a whole group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One piece of learner work. Seconds, from the first rollout request of its update."""

    group: int
    trajectory: int = WHOLE
    turn: int = WHOLE
    ready: float
    service: float
    rank: int = 0
    content: float | None = None
    """When the last token of its trajectory was final, before its reward; None where it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTrace:
    """One update: R, P and its learner jobs."""

    update: int
    rollout: float
    """R: until the last rollout event that the objective needs."""
    suffix: float
    """P: final reduction, optimizer step, publication."""
    jobs: tuple[Job, ...]
    observed: float | None = None
    """The step as it was measured, under whatever schedule ran; None where nobody measured it."""
    ready_N: np.ndarray = field(init=False, repr=False, compare=False)
    service_N: np.ndarray = field(init=False, repr=False, compare=False)
    rank_N: np.ndarray = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.jobs:
            raise ValueError(f"update {self.update} has no learner work")
        for name, kind in (("ready", np.float64), ("service", np.float64), ("rank", np.int64)):
            object.__setattr__(self, f"{name}_N", np.array([getattr(job, name) for job in self.jobs], kind))

    @property
    def learner(self) -> float:
        """L: the service of the busiest rank."""
        return learner_time(self.service_N, self.rank_N)

    @property
    def sync_step(self) -> float:
        """Appendix F.1: R + L + P."""
        return sync_step_time(self.service_N, self.rollout, self.suffix, self.rank_N)

    @property
    def streamed_step(self) -> float:
        """Equation 14, one queue per rank: max(R, c_n) + P."""
        return step_time(self.ready_N, self.service_N, self.rollout, self.suffix, self.rank_N)

    @property
    def tail(self) -> float:
        """Seconds of learner work left when rollout closes."""
        return self.streamed_step - self.suffix - self.rollout

    @property
    def trajectories(self) -> int:
        """How many trajectories the jobs name; 0 for a trace of whole groups."""
        return len({(job.group, job.trajectory) for job in self.jobs if job.trajectory != WHOLE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Several updates of one run, and what they were read from."""

    source: str
    steps: tuple[StepTrace, ...]
    unit: str
    """What one job is: turn, trajectory or group."""
    notes: tuple[str, ...] = ()
    """What a reader of the answer has to know about the reading."""

    def __post_init__(self) -> None:
        if not self.steps:
            raise ValueError(f"{self.source} holds no update")


def mean(values: Iterable[float]) -> float:
    """Of the steps of a trace, as float."""
    return float(np.mean(list(values)))


def unit_of(jobs: Sequence[Job]) -> str:
    """The finest unit that the jobs come in."""
    if any(job.turn != WHOLE for job in jobs):
        return "turn"
    return "trajectory" if any(job.trajectory != WHOLE for job in jobs) else "group"

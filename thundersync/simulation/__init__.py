"""The ports on virtual time: the schedule files run unchanged, and an hour of rollout takes milliseconds."""

from thundersync.simulation.durations import Durations, TrajectoryTimes
from thundersync.simulation.generated import Generated, lognormal, uniform
from thundersync.simulation.run import Outcome, Setting, simulate
from thundersync.simulation.virtual_time import Deadlock

__all__ = [
    "Deadlock",
    "Durations",
    "Generated",
    "Outcome",
    "Setting",
    "TrajectoryTimes",
    "lognormal",
    "simulate",
    "uniform",
]

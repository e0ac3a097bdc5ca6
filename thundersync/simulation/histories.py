"""Seeded histories: a drawn run with drawn faults, and whether it kept the invariants and named what failed."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from thundersync.batch import TrajectoryKey
from thundersync.simulation.faults import Fault, Faults, Targets, draw_faults
from thundersync.simulation.generated import Generated, lognormal
from thundersync.simulation.invariants import violations
from thundersync.simulation.run import Outcome, Setting, simulate
from thundersync.simulation.virtual_time import Deadlock

RELEASES = ("trajectory", "content", "turn_eager", "turn_forward")
SCHEDULES = ("sync", "async", "fully_async", "thundersync")


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What was drawn, and what was wrong with what came of it."""

    seed: int
    setting: Setting
    faults: Faults
    error: str
    """Class and message of the named error that ended the run; empty when it completed."""
    wrong: tuple[str, ...]
    """Broken invariants, a deadlock, an error that is not named, or one that names nothing."""

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(fault.kind for fault in self.faults.faults)


def run_history(seed: int, schedule: str | None = None) -> History:
    """Draws a small run and up to two faults from the seed alone, and checks everything that must hold of it."""
    rng = np.random.default_rng([seed, 0x5EED])
    setting = _draw_setting(rng, schedule)
    durations = Generated(
        seed=seed,
        group_size=setting.group_size,
        trajectory_s=4.0,
        service_s=float(rng.choice([0.3, 1.0, 3.0])),
        shape=lognormal(0.8),
        turns=int(rng.integers(1, 4)),
        verification_s=0.5,
        gamma=0.5,
        closure=0.1,
        deferred=0.4,
        step_s=0.2,
        publication_s=1.0,
    ).durations()
    keys = tuple(
        TrajectoryKey(update, group, i)
        for update in range(setting.updates)
        for group in range(setting.prompts)
        for i in range(setting.group_size)
    )
    targets = Targets(replicas=setting.replicas, ranks=setting.ranks, keys=keys, until=40.0)
    faults = draw_faults(rng, targets)
    try:
        outcome = simulate(setting, durations, faults)
    except Deadlock as error:
        return _history(seed, setting, faults, "", (f"deadlock: {error}",))
    except Exception as error:
        return _history(seed, setting, faults, "", (f"not a named error: {type(error).__name__}: {error}",))
    said = f"{type(outcome.error).__name__}: {outcome.error}" if outcome.error else ""
    return _history(seed, setting, faults, said, (*violations(outcome), *_unnamed(outcome, faults)))


def _history(seed: int, setting: Setting, faults: Faults, error: str, wrong: tuple[str, ...]) -> History:
    return History(seed=seed, setting=setting, faults=faults, error=error, wrong=wrong)


def _draw_setting(rng: np.random.Generator, schedule: str | None) -> Setting:
    release = RELEASES[rng.integers(len(RELEASES))]
    setting = Setting(
        schedule=schedule or SCHEDULES[rng.integers(len(SCHEDULES))],
        prompts=int(rng.integers(1, 4)),
        group_size=int(rng.integers(1, 4)),
        updates=3,
        slots=int(rng.integers(1, 5)),
        replicas=int(rng.integers(1, 4)),
        ranks=int(rng.integers(1, 4)),
        release=release,
        needs_reward=release == "trajectory" or bool(rng.integers(2)),
        open_groups=[None, 1, 2][rng.integers(3)],
        waiting_rewards=int(rng.integers(1, 3)),
        reduction=["direct", "sums"][rng.integers(2)],
        lag_bound=int(rng.integers(0, 4)),
        acknowledge_timeout_s=60.0,
        rollout_timeout_s=200.0,
        learner_timeout_s=300.0,
        tool_timeout_s=20.0,
        turn_events=bool(rng.integers(2)),
    )
    return replace(setting, needs_reward=False) if release == "turn_eager" else setting


def _unnamed(outcome: Outcome, faults: Faults) -> list[str]:
    """A named error must come from a fault that was injected, and name what that fault struck or the setting."""
    if outcome.error is None:
        return []
    if any(_names(str(outcome.error), fault) for fault in faults.faults):
        return []
    return [f"the error names none of what failed: {outcome.error}"]


def _names(message: str, fault: Fault) -> bool:
    """Whether a message points at this fault."""
    replica, rank, key = f"replica-{fault.target}", f"rank {fault.target}", str(fault.key)
    match fault.kind:
        case "replica_dies":
            return replica in message
        case "replica_hangs" | "replica_late":
            return replica in message or "scale.rollout_timeout_s" in message
        case "rank_dies":
            return f"learner {rank} died" in message
        case "rank_hangs" | "rank_late":
            return "scale.learner_timeout_s" in message and ("rank" in message)
        case "reward_lost":
            return "scale.rollout_timeout_s" in message
        case "event_twice":
            return key in message
    return False  # a hanging tool ends in its timeout, and the run goes on

"""Faults of a simulated run, fixed before it starts: what goes wrong, where, and when.

replica_dies    from `at` on the replica answers nothing; the rollout port reports its death, loads fail
replica_hangs   from `at` on it answers nothing, and nobody reports it
replica_late    from `at` on its events and acknowledgements come `seconds` later
rank_dies       the learner rank's calls that would end after `at` raise an error that names it
rank_hangs      they never end
rank_late       they take `seconds` longer
reward_lost     the verifier of a trajectory never answers
tool_hangs      a tool of a turn never returns: the tool timeout ends the trajectory, where there is one
event_twice     the turn, content or reward of a trajectory is delivered again `seconds` later
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from thundersync.batch import TrajectoryKey

Kind = Literal[
    "replica_dies",
    "replica_hangs",
    "replica_late",
    "rank_dies",
    "rank_hangs",
    "rank_late",
    "reward_lost",
    "tool_hangs",
    "event_twice",
]
KINDS: tuple[Kind, ...] = Kind.__args__


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    kind: Kind
    target: int = 0
    """Number of the replica or rank."""
    key: TrajectoryKey | None = None
    """The trajectory, for what happens to one."""
    event: Literal["turn", "content", "reward"] = "reward"
    at: float = 0.0
    """Virtual seconds."""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Faults:
    """All faults of one run, looked up by where they strike."""

    faults: tuple[Fault, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.faults)

    def of(self, kind: Kind, target: int) -> Fault | None:
        """The earliest fault of this kind on this replica or rank."""
        found = [fault for fault in self.faults if fault.kind == kind and fault.target == target]
        return min(found, key=lambda fault: fault.at, default=None)

    def on(self, kind: Kind, key: TrajectoryKey) -> Fault | None:
        return next((fault for fault in self.faults if fault.kind == kind and fault.key == key), None)

    def silent_from(self, prefix: Literal["replica", "rank"], target: int) -> float:
        """When this replica or rank stops to answer; infinity where it never does."""
        found = (self.of(f"{prefix}_dies", target), self.of(f"{prefix}_hangs", target))
        return min((fault.at for fault in found if fault), default=float("inf"))

    def delay(self, prefix: Literal["replica", "rank"], target: int, at: float) -> float:
        fault = self.of(f"{prefix}_late", target)
        return fault.seconds if fault and at >= fault.at else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """What the faults of a drawn history may strike."""

    replicas: int
    ranks: int
    keys: tuple[TrajectoryKey, ...]
    until: float
    """Latest time at which a replica or rank fails."""


def draw_faults(rng: np.random.Generator, targets: Targets, most: int = 2) -> Faults:
    """Up to `most` faults, none included."""

    def one() -> Fault:
        kind = KINDS[rng.integers(len(KINDS))]
        return Fault(
            kind=kind,
            target=int(rng.integers(targets.ranks if kind.startswith("rank") else targets.replicas)),
            key=targets.keys[rng.integers(len(targets.keys))],
            event=("turn", "content", "reward")[rng.integers(3)],
            at=float(rng.uniform(0, targets.until)),
            seconds=float(rng.choice([0.0, 0.5, 5.0, 500.0])),
        )

    return Faults(tuple(one() for _ in range(rng.integers(most + 1))))

"""Which cores each process may use: the learner alone on its own, everything else on another.

Two processes pinned apart do not slow each other, so that the overlap of rollout and learner is real and measurable.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    rollout_cores: tuple[int, ...]
    """Rollout replicas, teacher, sandboxes, controller, Ray itself."""
    learner_cores: tuple[int, ...]
    """No more than there are learner ranks; there may be fewer."""

    def devices(self, ranks: int) -> int:
        """Cores that rollout and so many learner ranks take."""
        return len({*self.rollout_cores, *self.learner_cores[:ranks]})

    def of_rank(self, rank: int) -> tuple[int, ...]:
        """The core of a learner rank; ranks take turns where there are more of them than cores."""
        return (self.learner_cores[rank % len(self.learner_cores)],)

    def shortage(self, ranks: int) -> str:
        """What is said when so many learner ranks have to share cores; empty when each has its own."""
        cores = len(self.learner_cores)
        return f"{ranks} learner ranks share {cores} core{'s'[: cores > 1]}" if ranks > cores else ""


def place(learner_ranks: int = 1, *, apart: bool = True) -> Placement:
    """The first available core for rollout and everything else, one of the next for each learner rank, while they last.

    With one rank exactly two devices, whatever there is. Not `apart`, rollout may use the first learner's core as well:
    quicker, but times say nothing. Raises RuntimeError with fewer than two cores: overlap cannot be shown there.
    """
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise RuntimeError(
            f"two CPU cores are needed, one for the learner and one for rollout; this process may use {len(cores)}"
        )
    rollout = cores[:1] if apart else cores[:2]
    return Placement(rollout_cores=tuple(rollout), learner_cores=tuple(cores[1 : 1 + learner_ranks]))


def import_then_pin(cores: tuple[int, ...], *modules: str) -> None:
    """Pins this process after it has imported what it will need: torch and transformers take seconds on one core."""
    for module in modules:
        importlib.import_module(module)
    pin(cores)


def pin(cores: tuple[int, ...], process: int | None = None) -> None:
    """Pins all threads of this process, or of the one of that number; what they start inherits it."""
    for thread in Path(f"/proc/{process or os.getpid()}/task").iterdir():
        with suppress(ProcessLookupError):  # it ended meanwhile
            os.sched_setaffinity(int(thread.name), cores)


def descendants() -> set[psutil.Process]:
    """All processes that this one has started, and theirs."""
    return set(psutil.Process().children(recursive=True))


def pin_unpinned(processes: Iterable[psutil.Process], cores: tuple[int, ...]) -> None:
    """Pins those that may use as many cores as this process: the others have pinned themselves."""
    anywhere = os.sched_getaffinity(0)
    for process in processes:
        with suppress(ProcessLookupError, FileNotFoundError):
            if os.sched_getaffinity(process.pid) == anywhere:
                pin(cores, process.pid)

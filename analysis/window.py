"""The updates that efficiency is measured over (Appendix B.2): of 40, the first 4 are start-up and the other 36 count.

Every schedule counts complete cycles, and equally many. Sync and ThunderSync begin each update with its own first
rollout request. Async and Fully Async go from one publication to the next; the first update of a run, and the first
after it was resumed, fill the pipeline instead and are left out. What such a run still rolls out at its end belongs to
no update.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from analysis.efficiency import WARMUP, default_warmup
from analysis.load import Run
from thundersync.records import UpdateRecord

SIZE = 36


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Which updates count, in every run alike."""

    warmup: int
    size: int

    @property
    def is_the_papers(self) -> bool:
        return (self.warmup, self.size) == (WARMUP, SIZE)

    def of(self, run: Run) -> Sequence[UpdateRecord]:
        return _after(run, self.warmup)[: self.size]


def choose(runs: Mapping[str, Run], *, warmup: int | None = None, size: int | None = None) -> Window:
    """The paper's window, or as much of it as the shortest run has; reports state which it was.

    Raises ValueError naming the run that has too few updates, where a setting asks for more or nothing is left.
    """
    if warmup is None:
        warmup = default_warmup({name: run.updates for name, run in runs.items()})
    left = {name: len(_after(run, warmup)) for name, run in runs.items()}
    shortest = min(left, key=left.get)
    if left[shortest] < (size or 1):
        raise ValueError(
            f"{shortest} has {left[shortest]} complete update cycles after {warmup} of warm-up, {size or 1} are asked "
            "for: lower --warmup or --window, or train longer"
        )
    return Window(warmup=warmup, size=size or min(SIZE, left[shortest]))


def _after(run: Run, warmup: int) -> list[UpdateRecord]:
    return [u for u in complete_cycles(run) if u.update >= run.updates[0].update + warmup]


def complete_cycles(run: Run) -> list[UpdateRecord]:
    """Updates without those that fill the pipeline of Async and Fully Async; a run too short for others keeps them."""
    if run.record.schedule in ("sync", "thundersync"):
        return list(run.updates)
    filling = {run.updates[0].update} | {c.update for c in run.checkpoints if c.reason == "interrupt"}
    # In Async every batch is one version old but the one that a start-up made: it is known even where a crash, and no
    # interrupt, came before.
    complete = [
        u for u in run.updates if u.update not in filling and not (run.record.schedule == "async" and u.lag_max == 0)
    ]
    return complete or list(run.updates)

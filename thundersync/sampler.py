"""Which tasks an update trains on (Appendix C.2): one shuffled list per seed, without replacement, then reshuffled.

The batch of update k is a function of (tasks, seed, k) alone, so every schedule draws the same prompts, and a resumed
run goes on where it stopped without any stored position.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from thundersync.batch import GroupKey, GroupPlan, LogicalBatch, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSampler:
    tasks: tuple[Task, ...]
    """The training list, in its canonical order."""
    seed: int
    prompts: int
    """Prompts per update (Table 5)."""
    group_size: int
    """Trajectories per prompt (Table 5)."""

    def __post_init__(self) -> None:
        if not self.tasks:
            raise ValueError("the workload has no training task: there is nothing to sample")

    def group(self, position: int) -> GroupPlan:
        """The group at `position` in the endless stream of prompts; update k holds positions k*prompts onwards."""
        epoch, place = divmod(position, len(self.tasks))
        order = np.random.default_rng([self.seed, epoch]).permutation(len(self.tasks))
        update, group = divmod(position, self.prompts)
        return GroupPlan(key=GroupKey(update, group), task=self.tasks[order[place]], size=self.group_size)

    def batch(self, update: int) -> LogicalBatch:
        """The logical batch of update k."""
        first = update * self.prompts
        return LogicalBatch(update=update, groups=tuple(self.group(first + j) for j in range(self.prompts)))

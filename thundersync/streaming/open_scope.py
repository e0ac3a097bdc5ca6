"""What waits until beta is known: the running sums, rewards and shift of one group, or of the whole batch."""

from __future__ import annotations

from dataclasses import dataclass, field

from thundersync.streaming.exact_sums import ExactSums, Rewards
from thundersync.streaming.running_sums import RunningSums


@dataclass(slots=True)
class OpenScope:
    """A group has one of its own; with an objective of scope "batch" all groups of a batch share one.

    g = sum_b beta_b G_b holds for either: only the moment at which beta is known differs.
    """

    shift: float | None = None
    """c, constant in the scope: the first reward bound to it unless given; None before that."""
    rewards: list[float] = field(default_factory=list)
    """In the order in which they were bound."""
    exact: Rewards | None = None
    """Exact sums only: the rewards as whole numbers."""
    sums: RunningSums | ExactSums | None = None
    """G_b; None before the first source that has a gradient."""

    def bind(self, reward: float) -> None:
        self.rewards.append(reward)
        if self.shift is None:
            self.shift = reward

"""REINFORCE with the mean reward of the batch as its baseline, streamed (Williams 1992).

    S_i = sum_t w log pi(a_it | h_it),  w = 1 / (trajectories * L_i),  H_i = grad S_i
    g = sum_i (r_i - mu) H_i,  mu the mean reward of all trajectories of the batch

mu needs the whole batch, but g splits into two sums that do not. With d_i = r_i - c for any c constant in the *batch*,

    g = G1 - mean(d) G2,  G1 = sum_i d_i H_i,  G2 = sum_i H_i,  both over all groups

so phi = (d, 1) and beta = (1, -mean(d)), known when the batch closes: scope "batch". The shift is the first reward
bound in the batch. c = 0, which is phi = (r, 1), is the same in exact arithmetic; the shift keeps FP32 sums of a batch
of nearly equal rewards from drowning in rounding. Ranks may differ in c: each combines its own sums with its mean(d).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from thundersync.objectives.baseline import mean_baseline


@dataclass(frozen=True, slots=True, kw_only=True)
class REINFORCE:
    """REINFORCE with a batch baseline and trajectory-normalised scores; groups only share their prompt."""

    name: ClassVar[str] = "reinforce"
    source: ClassVar[Literal["trajectory"]] = "trajectory"
    scope: ClassVar[Literal["batch"]] = "batch"
    bases: ClassVar[int] = 2
    needs_reward: ClassVar[bool] = True
    needs_teacher: ClassVar[bool] = False

    trajectories: int
    """Trajectories of a logical batch, over all groups and ranks."""

    def __post_init__(self) -> None:
        if self.trajectories < 2:
            raise ValueError(f"REINFORCE: a batch baseline needs at least 2 trajectories, got {self.trajectories}")

    def check_group_size(self, size: int, group: object) -> None:
        """Raises ValueError for an empty group. One trajectory is enough: the batch is what it is compared with."""
        if size < 1:
            raise ValueError(f"group {group}: a group needs at least 1 trajectory, got {size}")

    def token_weights(self, student_A: Any, teacher_A: Any | None = None) -> float:
        """w = 1 / (trajectories * L_i), the same for each of the trajectory's L_i = A scored tokens."""
        return 1.0 / (self.trajectories * len(student_A))

    def phi(self, reward: float, c: float) -> tuple[float, float]:
        """(d_i, 1): the trajectory's weights in G1 and G2."""
        return reward - c, 1.0

    def beta(self, rewards: Sequence[float], c: float) -> tuple[float, float]:
        """(1, -mean(d)) over the batch. (0, 0) for equal rewards, by comparison.

        Raises ValueError when these are not the rewards of the whole batch, say of one rank or group only.
        """
        if len(rewards) != self.trajectories:
            raise ValueError(
                f"REINFORCE: its baseline is the mean of the batch's {self.trajectories} rewards, got {len(rewards)}"
            )
        return mean_baseline(rewards, c, 1.0)

    def divisor(self, scored_tokens: int) -> float:
        """1: the normalisation is in the token weights. A batch without a scored token is a step of length zero."""
        return 1.0

"""Dr. GRPO, streamed: GRPO without its division by sigma and by the length (Liu et al., arXiv 2503.20783).

    S_i = sum_t log pi(a_it | h_it),  H_i = grad S_i
    g = 1/(prompts * length) sum_G (1/m) sum_i (r_i - mu_G) H_i

`length` is one constant for all trajectories, so that a long wrong answer is not punished less per token than a short
one. With d_i = r_i - c for any c constant in the group,

    sum_i (r_i - mu_G) H_i = G1 - mean(d) G2,  G1 = sum_i d_i H_i,  G2 = sum_i H_i

so phi = (d, 1), beta = (1, -mean(d)) / m, w = 1, N = prompts * length. The shift c is GRPO's: the first reward bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from thundersync.objectives.baseline import mean_baseline, require_comparison


@dataclass(frozen=True, slots=True, kw_only=True)
class DrGRPO:
    """Dr. GRPO with a constant length in place of each trajectory's own."""

    name: ClassVar[str] = "dr_grpo"
    source: ClassVar[Literal["trajectory"]] = "trajectory"
    scope: ClassVar[Literal["group"]] = "group"
    bases: ClassVar[int] = 2
    needs_reward: ClassVar[bool] = True
    needs_teacher: ClassVar[bool] = False

    prompts: int
    """Groups of a logical batch, over all ranks."""
    length: int
    """Tokens that a trajectory's sum is divided by, whatever its own length; usually the generation limit."""

    def __post_init__(self) -> None:
        for name, value in (("prompts", self.prompts), ("length", self.length)):
            if value < 1:
                raise ValueError(f"Dr. GRPO: {name} must be at least 1, got {value}")

    def check_group_size(self, size: int, group: object) -> None:
        """Raises ValueError for fewer than two trajectories."""
        require_comparison("Dr. GRPO", size, group)

    def token_weights(self, student_A: Any, teacher_A: Any | None = None) -> float:
        """w = 1: the length enters once, in the divisor."""
        return 1.0

    def phi(self, reward: float, c: float) -> tuple[float, float]:
        """(d_i, 1): the trajectory's weights in G1 and G2."""
        return reward - c, 1.0

    def beta(self, rewards: Sequence[float], c: float) -> tuple[float, float]:
        """(1, -mean(d)) / m. (0, 0) for equal rewards, by comparison."""
        return mean_baseline(rewards, c, 1.0 / len(rewards))

    def divisor(self, scored_tokens: int) -> float:
        """prompts * length, whatever was scored. A batch without a scored token is a step of length zero."""
        return float(self.prompts * self.length)

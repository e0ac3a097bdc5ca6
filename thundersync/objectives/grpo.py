"""Group relative policy optimisation, streamed (Equations 4 to 7, Appendix D.1).

    S_i = sum_t w log pi(a_it | h_it),  w = 1 / (prompts * L_i)                    Eq. 4, D.1
    g_G = (1/m) sum_i (r_i - mu) / (sigma + eps) * H_i,  H_i = grad S_i            Eq. 6

mu needs the whole group, but g_G splits into two sums that do not. With d_i = r_i - c for any c constant in the group,

    g_G = (G1 - mean(d) G2) / (m (sigma + eps)),  G1 = sum_i d_i H_i,  G2 = sum_i H_i       Eq. 7

so phi = (d, 1) and beta = (1, -mean(d)) / (m (sigma + eps)), sigma the population deviation of the d_i.

The shift c is the first reward bound in the group. The paper has c = 0, which is the same in exact arithmetic; but FP32
sums then leave about 3 % of a normal gradient for eight equal rewards of 0.35, where Eq. 6 gives zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class GRPO:
    """GRPO with trajectory-normalised scores; the sum over groups is the mean over all trajectories of the batch."""

    name: ClassVar[str] = "grpo"
    source: ClassVar[Literal["trajectory"]] = "trajectory"
    scope: ClassVar[Literal["group"]] = "group"
    bases: ClassVar[int] = 2
    needs_reward: ClassVar[bool] = True
    needs_teacher: ClassVar[bool] = False

    prompts: int
    """Groups of a logical batch, over all ranks (32 in Table 5)."""
    eps: float = 1e-6
    """Stabilises the division by sigma (Table 5)."""

    def __post_init__(self) -> None:
        if self.prompts < 1:
            raise ValueError(f"GRPO: prompts must be at least 1, got {self.prompts}")

    def check_group_size(self, size: int, group: object) -> None:
        """Raises ValueError for fewer than two trajectories: the advantage of a lone one is always zero."""
        if size < 2:
            raise ValueError(f"group {group}: GRPO compares trajectories, so a group needs at least 2, got {size}")

    def token_weights(self, student_A: Any, teacher_A: Any | None = None) -> float:
        """w = 1 / (prompts * L_i), the same for each of the trajectory's L_i = A scored tokens (Appendix D.1)."""
        return 1.0 / (self.prompts * len(student_A))

    def phi(self, reward: float, c: float) -> tuple[float, float]:
        """(d_i, 1): the trajectory's weights in G1 and G2."""
        return reward - c, 1.0

    def beta(self, rewards: Sequence[float], c: float) -> tuple[float, float]:
        """(1, -mean(d)) / (m (sigma + eps)): Equation 7. (0, 0) for equal rewards, by comparison."""
        d = [r - c for r in rewards]
        if max(d) == min(d):
            return 0.0, 0.0
        m = len(d)
        mean = math.fsum(d) / m
        sigma = math.sqrt(math.fsum((x - mean) ** 2 for x in d) / m)
        scale = 1.0 / (m * (sigma + self.eps))
        return scale, -mean * scale

    def divisor(self, scored_tokens: int) -> float:
        """1: the normalisation is in the token weights. A batch without a scored token is a step of length zero."""
        return 1.0

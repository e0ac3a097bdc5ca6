"""REINFORCE leave-one-out, streamed (Kool et al. 2019; Ahmadian et al., arXiv 2402.14740).

    g = 1/prompts sum_G (1/m) sum_i (r_i - b_i) H_i,  b_i = mean of r_j over the others, j != i

The baseline differs between trajectories, but with b_i = (m mu - r_i) / (m - 1) it needs the group's mean only:

    r_i - b_i = m/(m - 1) (r_i - mu)

    (1/m) sum_i (r_i - b_i) H_i = (G1 - mean(d) G2) / (m - 1),  G1 = sum_i d_i H_i,  G2 = sum_i H_i,  d_i = r_i - c

so phi = (d, 1) and beta = (1, -mean(d)) / (m - 1). The shift c is the first reward bound, as in GRPO.

Two forms are in use. They differ in the score, H_i = grad sum_t w log pi(a_it | h_it):

    sequence      w = 1 / prompts            log-probability of the whole trajectory, one action as in the paper
    token_mean    w = 1 / (prompts * L_i)    mean over its L_i scored tokens, as GRPO
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

from thundersync.objectives.baseline import mean_baseline, require_comparison

Score = Literal["sequence", "token_mean"]
"""What a trajectory's score is: its log-probability, or the mean of its tokens'."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RLOO:
    """RLOO on whole trajectories, in either form."""

    name: ClassVar[str] = "rloo"
    source: ClassVar[Literal["trajectory"]] = "trajectory"
    scope: ClassVar[Literal["group"]] = "group"
    bases: ClassVar[int] = 2
    needs_reward: ClassVar[bool] = True
    needs_teacher: ClassVar[bool] = False

    prompts: int
    """Groups of a logical batch, over all ranks."""
    score: Score = "sequence"

    def __post_init__(self) -> None:
        if self.prompts < 1:
            raise ValueError(f"RLOO: prompts must be at least 1, got {self.prompts}")
        if self.score not in get_args(Score):
            raise ValueError(f"RLOO: unknown score {self.score!r}; valid: {', '.join(get_args(Score))}")

    def check_group_size(self, size: int, group: object) -> None:
        """Raises ValueError for fewer than two trajectories: a lone one has no others to be compared with."""
        require_comparison("RLOO", size, group)

    def token_weights(self, student_A: Any, teacher_A: Any | None = None) -> float:
        """w of the chosen form, the same for each of the trajectory's L_i = A scored tokens."""
        tokens = len(student_A) if self.score == "token_mean" else 1
        return 1.0 / (self.prompts * tokens)

    def phi(self, reward: float, c: float) -> tuple[float, float]:
        """(d_i, 1): the trajectory's weights in G1 and G2."""
        return reward - c, 1.0

    def beta(self, rewards: Sequence[float], c: float) -> tuple[float, float]:
        """(1, -mean(d)) / (m - 1). (0, 0) for equal rewards, by comparison."""
        return mean_baseline(rewards, c, 1.0 / (len(rewards) - 1))

    def divisor(self, scored_tokens: int) -> float:
        """1: the normalisation is in the token weights. A batch without a scored token is a step of length zero."""
        return 1.0

"""On-policy distillation at turn level, streamed (Equations 8 and 9).

    A_jt = sg[log pi_T(a_jt | h_jt) - log pi_k(a_jt | h_jt)]
    g_j = sum_t A_jt grad log pi(a_jt | h_jt)                        Eq. 8
    g_k = (1/N_k) sum_j g_j,  N_k = sum_j |M_j|                      Eq. 9

A turn's weights depend on its own tokens only, so phi = beta = 1. N_k is known when the batch closes: sums stay
unnormalised until then, and are divided once, by the count over all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class OPD:
    """On-policy distillation with the global scored-token mean."""

    name: ClassVar[str] = "opd"
    source: ClassVar[Literal["turn"]] = "turn"
    scope: ClassVar[Literal["source"]] = "source"
    bases: ClassVar[int] = 1
    needs_reward: ClassVar[bool] = False
    needs_teacher: ClassVar[bool] = True

    def check_group_size(self, size: int, group: object) -> None:
        """Raises ValueError for an empty group."""
        if size < 1:
            raise ValueError(f"group {group}: a group needs at least 1 trajectory, got {size}")

    def token_weights(self, student_A: Any, teacher_A: Any) -> Any:
        """A_jt = log pi_T - log pi_k at the sampled tokens, [A]: token t of one is token t of the other.

        Raises ValueError when the lengths differ.
        """
        if len(teacher_A) != len(student_A):
            raise ValueError(f"OPD: {len(teacher_A)} teacher log-probabilities for {len(student_A)} scored tokens")
        return teacher_A - student_A

    def phi(self, reward: float | None = None, c: float = 0.0) -> tuple[float]:
        """1: the reward plays no part."""
        return (1.0,)

    def beta(self, rewards: Sequence[float | None] = (), c: float = 0.0) -> tuple[float]:
        """1, known at once."""
        return (1.0,)

    def divisor(self, scored_tokens: int) -> float:
        """N_k. Raises ValueError when nothing in the batch was scored."""
        if scored_tokens < 1:
            raise ValueError("OPD: the batch has no scored token, so its token mean is undefined; no step is taken")
        return float(scored_tokens)

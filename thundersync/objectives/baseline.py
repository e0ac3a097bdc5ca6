"""The mean reward of a scope as the baseline of its trajectories: what Dr. GRPO, RLOO and REINFORCE share.

    sum_i (r_i - mean(r)) H_i = sum_i d_i H_i - mean(d) sum_i H_i,  d_i = r_i - c for any c constant in the scope

so phi = (d, 1) and beta = (1, -mean(d)), up to a scale that each objective has of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def mean_baseline(rewards: Sequence[float], c: float, scale: float) -> tuple[float, float]:
    """scale * (1, -mean(d)), float64. (0, 0) for equal rewards, by comparison. Any order of the rewards will do."""
    d = [r - c for r in rewards]
    if max(d) == min(d):
        return 0.0, 0.0
    return scale, -scale * math.fsum(d) / len(d)


def require_comparison(objective: str, size: int, group: object) -> None:
    """Raises ValueError for fewer than two trajectories: a lone one is its own baseline, its advantage always zero."""
    if size < 2:
        raise ValueError(f"group {group}: {objective} compares trajectories, so a group needs at least 2, got {size}")

"""What enters a gradient stream: tokens that follow a prompt or an earlier turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """Tokens that follow a prompt (a whole trajectory) or an earlier turn (the next turn): lists, arrays or tensors.

    Shape legend: T = tokens, A = scored tokens among them.
    """

    ids: Any
    """Integers [T]; for a trajectory, everything after the prompt."""
    scored: Any
    """Booleans [T]: which tokens carry loss."""
    reward: float | None = None
    """Of the trajectory, where the objective needs one; finite."""
    teacher_logprobs: Any = None
    """Teacher log-probabilities [A], where the objective needs them."""
    rollout_logprobs: Any = None
    """The rollout engine's log-probabilities [A], for the mismatch statistics only."""

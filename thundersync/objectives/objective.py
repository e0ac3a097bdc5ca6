"""What makes an objective streamable: the weights that are known when a source is ready, and those that come later.

    g = 1/N * sum_b  beta_b * sum_i  phi_b(i) * H_i,        H_i = grad sum_t w_t log pi(a_t)

    w_t       token weights of source i, fixed when it is ready        `token_weights`
    phi_b(i)  basis weights of source i, fixed when it is ready        `phi`
    beta_b    combination weights, fixed when the scope closes         `beta`
    N         divisor, fixed when the batch closes                     `divisor`

A learner keeps one running sum per basis b and open scope and never asks which objective it serves. Pure arithmetic on
Python floats; `token_weights` uses operators only, so that arrays and tensors of any library pass through it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, Protocol, runtime_checkable

Scope = Literal["source", "group", "batch"]
"""What has to close before beta is known."""


@runtime_checkable
class Objective(Protocol):
    """A streamable objective. Implementations are frozen dataclasses of their hyper-parameters."""

    name: str
    """One word: configuration value, file name, record value."""
    source: Literal["trajectory", "turn"]
    """The smallest unit that can be released (Section 3.2)."""
    scope: Scope
    bases: int
    """Running sums per open scope."""
    needs_reward: bool
    needs_teacher: bool

    def check_group_size(self, size: int, group: object) -> None:
        """Raises ValueError when a group of `size` trajectories has no defined update."""
        ...

    def token_weights(self, student_A: Any, teacher_A: Any | None) -> Any:
        """w_t of a source's scored tokens: a scalar or an array [A]. Arguments: detached log-probabilities [A]."""
        ...

    def phi(self, reward: float | None, c: float) -> tuple[float, ...]:
        """Basis weights of a source, float64; `c` is the shift of its scope."""
        ...

    def beta(self, rewards: Sequence[float | None], c: float) -> tuple[float, ...]:
        """Combination weights at closure, float64, from the rewards of the whole scope (over all ranks, for "batch").

        All zero when the scope contributes nothing.
        """
        ...

    def divisor(self, scored_tokens: int) -> float:
        """N of a batch with `scored_tokens` over all ranks. Raises ValueError when it has no defined update."""
        ...


def check_reward(reward: float | None, source: object) -> float:
    """The reward in float64. Raises ValueError when it is missing or not finite."""
    if reward is None or not math.isfinite(reward):
        raise ValueError(f"{source}: reward must be a finite number, got {reward}")
    return float(reward)


class Settled:
    """An objective whose scope is complete: beta is known, so sum_b beta_b phi_b(i) is one known weight of H_i.

    For GRPO that weight is the advantage over m of Equation 6. One basis, nothing left to wait for. `rewards` are those
    of the whole scope, `shift` their c.
    """

    scope: Scope = "source"
    bases = 1

    def __init__(self, objective: Objective, rewards: Sequence[float | None]) -> None:
        self.name, self.needs_reward = objective.name, objective.needs_reward
        self._objective = objective
        self.shift = rewards[0] or 0.0
        self._beta = objective.beta(rewards, self.shift)

    def weight(self, reward: float | None) -> float:
        """sum_b beta_b phi_b(i)."""
        return math.fsum(b * p for b, p in zip(self._beta, self._objective.phi(reward, self.shift), strict=True))

    def beta(self, rewards: Sequence[float | None], c: float) -> tuple[float]:
        """1: all that closure adds is in the weights already."""
        return (1.0,)

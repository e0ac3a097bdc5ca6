"""Trajectories of a set length, for runs that measure time: what the policy says is scripted, all work is real.

The engine computes every token's logits and takes the scripted token instead of a sampled one; the command runs in its
sandbox; the learner differentiates the tokens as always. Rewards mean nothing in such a run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from thundersync.batch import SourceKey, TrajectoryKey
from thundersync.rollout.tools import SUBMIT, fenced

if TYPE_CHECKING:
    from thundersync.rollout.chat import Chat


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnScript:
    """How many turns trajectories have, and how long they are. The same for every schedule: a function of the key.

    Raises ValueError naming the setting.
    """

    turns: int
    """Mean number of turns; the last one submits."""
    spread: float = 0.0
    """Standard deviation over mean of the number of turns, drawn from a gamma distribution (before rounding)."""
    tokens: int = 24
    """Tokens of an action that runs a command, which prints about as many."""
    observation: int = 0
    """Tokens that the command prints beside these: learner work that costs a rollout little."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("turns", 1), ("spread", 0), ("tokens", 24), ("observation", 0), ("seed", 0)):
            if not getattr(self, name) >= least:
                raise ValueError(f"script.{name} is {getattr(self, name)!r}: it must be at least {least}")

    def turns_of(self, key: TrajectoryKey) -> int:
        """At least one."""
        if self.spread == 0:
            return self.turns
        shape = self.spread**-2
        drawn = np.random.default_rng([self.seed, *key]).gamma(shape, self.turns / shape)
        return max(1, round(drawn))

    def action_ids(self, chat: Chat, key: SourceKey) -> np.ndarray:
        """int32 [A]; an echo of digits, each a token of its own, and no two turns alike; `submit` in the last turn."""
        if key.turn + 1 >= self.turns_of(key.trajectory_key):
            return chat.action(fenced(SUBMIT))
        printing = f"; printf %0{self.observation}d 0" if self.observation else ""
        digits = max(1, self.tokens - len(chat.action(fenced(f"echo 0{printing}"))) + 1)
        text = "".join(map(str, np.random.default_rng([self.seed, *key]).integers(0, 10, digits)))
        return chat.action(fenced(f"echo {text}{printing}"))

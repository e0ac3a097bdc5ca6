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

FEWEST_TOKENS, MOST_TOKENS = 20, 32


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
    """Tokens of an action that runs a command; a third of them or more are the digits that tell it from others."""
    observation: int = 0
    """Tokens that the command prints, where they are more than its digits: learner work that costs a rollout little."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("turns", 1), ("spread", 0), ("tokens", FEWEST_TOKENS), ("observation", 0), ("seed", 0)):
            if not getattr(self, name) >= least:
                raise ValueError(f"script.{name} is {getattr(self, name)!r}: it must be at least {least}")
        if self.observation and self.tokens > MOST_TOKENS:
            raise ValueError(
                f"script.tokens is {self.tokens!r}: with script.observation it must be at most {MOST_TOKENS}, for the"
                " command pads a number that the shell can hold"
            )

    def turns_of(self, key: TrajectoryKey) -> int:
        """At least one."""
        if self.spread == 0:
            return self.turns
        shape = self.spread**-2
        drawn = np.random.default_rng([self.seed, *key]).gamma(shape, self.turns / shape)
        return max(1, round(drawn))

    def action_ids(self, chat: Chat, key: SourceKey) -> np.ndarray:
        """int32 [A]; prints digits, each a token of its own, and no two turns alike; `submit` in the last turn."""
        if key.turn + 1 >= self.turns_of(key.trajectory_key):
            return chat.action(fenced(SUBMIT))
        command = f"printf %0{self.observation}d " if self.observation else "echo "
        digits = max(1, self.tokens - len(chat.action(fenced(f"{command}1"))) + 1)
        text = "".join(map(str, np.random.default_rng([self.seed, *key]).integers(1, 10, digits)))
        return chat.action(fenced(f"{command}{text}"))

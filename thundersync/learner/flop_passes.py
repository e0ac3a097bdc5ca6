"""Which passes the learner runs for a group, from token counts alone: the operator counts need no second execution.

    shared prompt       forward once with the group's first source; backward once from its states when the group closes
    trajectory, content one pass after the prompt; turn_forward the same work, cut at the turns
    turn_eager          one pass per turn; when the trajectory closes, the turns run forward and backward again to pay
                        the adjoints that they owe: recomputation, kept apart
    direct              whole trajectories, packed to at most `run_tokens` padded tokens

A segment's inputs start at the last token before it, so a prompt of P tokens is a segment of P - 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from thundersync.learner.flop_ledger import Flops, Lora, Pass, total
from thundersync.learner.flop_shapes import Shape
from thundersync.streaming.differentiate import packs


@dataclass(frozen=True, slots=True, kw_only=True)
class Spoken:
    """The tokens of one trajectory after its prompt."""

    tokens: int
    scored: int
    turns: tuple[int, ...] = ()
    """Tokens of each turn, where it was learnt by turns; they add up to `tokens`."""
    replayed: int = 0
    """Tokens that ran forward again to pay adjoints."""


@dataclass(frozen=True, slots=True)
class Work:
    """The credited FLOPs of Equation 10, and recomputation, which takes time without being credited."""

    useful: Flops = field(default_factory=Flops)
    recomputed: Flops = field(default_factory=Flops)

    def __add__(self, other: Work) -> Work:
        return Work(self.useful + other.useful, self.recomputed + other.recomputed)


def streamed(
    shape: Shape, prompt: int, trajectories: Sequence[Spoken], *, closures: int, lora: Lora | None = None
) -> Work:
    """A group whose sources came one by one.

    `closures` is how often the prompt was differentiated: 0 for a group of equal rewards, once per basis where the
    objective's scope is the batch, 1 otherwise.
    """
    shared = prompt - 1
    runs = _prompt(shared, closures) if any(t.scored for t in trajectories) else []
    again = []
    for trajectory in trajectories:
        context = shared
        # How scored tokens fall on turns does not matter to the sum: the vocabulary projection is linear in them.
        scored = trajectory.scored
        for turn in trajectory.turns or (trajectory.tokens,):
            logits, scored = min(turn, scored), scored - min(turn, scored)
            if turn and (trajectory.scored or trajectory.turns):
                backward = "loss" if trajectory.scored else "none"
                runs.append(Pass(tokens=turn, context=context, logits=logits, backward=backward))
            context += turn
        if trajectory.replayed:
            # Consecutive turns run together; how they are cut changes neither products nor pairs of dense attention.
            again.append(Pass(tokens=trajectory.replayed, context=shared, backward="states"))
    return Work(total(shape, runs, lora), total(shape, again, lora))


def direct(
    shape: Shape,
    prompt: int,
    trajectories: Sequence[Spoken],
    *,
    run_tokens: int = 1024,
    lora: Lora | None = None,
) -> Work:
    """A complete group at once (reduction `direct`).

    A pack projects every row at each position that some row scores: records do not keep these positions, so a pack
    of several counts as many as it can have. An upper bound for this one operator, and exact for packs of one.
    """
    shared = prompt - 1
    runs = _prompt(shared, 1) if any(t.scored for t in trajectories) else []
    for pack in packs([t.tokens for t in trajectories], run_tokens):
        longest, scored = max(trajectories[i].tokens for i in pack), sum(trajectories[i].scored for i in pack)
        if scored:
            runs.append(Pass(tokens=longest, rows=len(pack), context=shared, logits=min(longest, scored)))
    return Work(total(shape, runs, lora))


def _prompt(shared: int, closures: int) -> list[Pass]:
    """A prompt of one token is every continuation's first input: nothing is shared then."""
    if not shared:
        return []
    first = Pass(tokens=shared, backward="states" if closures else "none")
    return [first, *(Pass(tokens=shared, backward="states", forward=False) for _ in range(closures - 1))]

"""One group while it is open: its prompt, its running sums, and what has been bound to it so far."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from thundersync.objectives.objective import Objective, check_reward
from thundersync.streaming.boundaries import Piece, cut, run_segment
from thundersync.streaming.differentiate import Gradients, backward
from thundersync.streaming.guards import require_finite
from thundersync.streaming.running_sums import RunningSums
from thundersync.streaming.turn_chain import TurnChain


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupClosure:
    """How a group was reduced: with the order of its sources and the shift, a replay repeats the bits."""

    group: Hashable
    shift: float
    """c: the first reward bound, 0 where the objective needs none."""
    rewards: tuple[float, ...]
    """In the order in which they were bound."""
    beta: tuple[float, ...]
    """The combination weights; (1,) where each source carried its final weight (OPD, and the reduction `direct`)."""
    folds: tuple[tuple[int, int | None], ...]
    """(trajectory, turn) in the order in which sources were folded; turn is None for a whole trajectory."""
    prompt_tokens: int
    """Tokens of the shared prompt that the closing backward pass went through."""


@dataclass(slots=True)
class OpenGroup:
    """Nothing is allocated before the first source, and nothing is left after `close`."""

    key: Hashable
    size: int
    prompt_ids_P: Tensor
    objective: Objective
    parameters: Sequence[Tensor]
    batch: RunningSums
    """The batch's accumulator: takes the group's direction when it closes, or each source at once (scope `source`)."""
    shift: float | None = None
    rewards: list[float] = field(default_factory=list)
    folds: list[tuple[int, int | None]] = field(default_factory=list)
    bound: set[int] = field(default_factory=set)
    """Trajectories that are complete."""
    chains: dict[int, TurnChain] = field(default_factory=dict)
    """Trajectories that are growing turn by turn."""
    sums: RunningSums | None = None
    _prompt_states: tuple[Tensor, ...] = ()
    _prompt: Piece | None = None

    @property
    def sums_bytes(self) -> int:
        """Of the running sums over parameters that are this group's own."""
        return 0 if self.sums is None or self.sums is self.batch else self.sums.nbytes

    @property
    def adjoint_bytes(self) -> int:
        """Of the running sums over boundary adjoints: the prompt's and those of growing trajectories."""
        pieces = [piece for chain in self.chains.values() for piece in chain.pieces]
        if self._prompt is not None:
            pieces.append(self._prompt)
        return sum(piece.adjoints.nbytes for piece in pieces if piece.adjoints is not None)

    def name(self, trajectory: int, turn: int | None = None) -> str:
        whole = f"group {self.key}, trajectory {trajectory}"
        return whole if turn is None else f"{whole}, turn {turn}"

    def check_new(self, trajectory: int) -> None:
        """Raises ValueError for a trajectory that is not of this group, or is bound already."""
        if not 0 <= trajectory < self.size:
            raise ValueError(f"{self.name(trajectory)}: the group was opened with {self.size} trajectories")
        if trajectory in self.bound:
            raise ValueError(f"{self.name(trajectory)} is bound already; each source enters exactly once")

    def context(self, model: nn.Module) -> list[Piece]:
        """The shared prompt as a piece; its forward pass runs once, with the group's first source."""
        if len(self.prompt_ids_P) < 2:
            return []  # a prompt of one token is every continuation's first input: nothing to share
        if self._prompt is None:
            no_logits = torch.empty(0, dtype=torch.long, device=self.prompt_ids_P.device)
            _, self._prompt_states = run_segment(model, self.prompt_ids_P[None, :-1], [], no_logits)
            self._prompt = cut(self._prompt_states)
        return [self._prompt]

    def bind(self, trajectory: int, reward: float | None) -> None:
        """Counts a trajectory as complete. Its reward enters the group's statistics even if nothing was scored."""
        if self.objective.needs_reward:
            self.rewards.append(check_reward(reward, self.name(trajectory)))
            if self.shift is None:
                self.shift = self.rewards[0]
        self.bound.add(trajectory)

    def fold(self, phi: Sequence[float], gradients: Gradients, context: Sequence[Piece], dtype: torch.dtype) -> None:
        """Adds phi_b H_i to each running sum, boundary adjoints included."""
        if self.sums is None:
            by_source = self.objective.scope == "source"
            self.sums = self.batch if by_source else RunningSums(self.parameters, self.objective.bases, dtype)
        self.sums.fold(phi, gradients.parameters)
        for piece, adjoints in zip(context, gradients.adjoints, strict=True):
            piece.fold(phi, adjoints, dtype)

    def close(self) -> GroupClosure:
        """Combines the sums, sends the combined adjoints through the shared prompt, and lets go of everything.

        Raises RuntimeError while trajectories are missing or owe adjoints; the group then stays open.
        """
        growing = [f"{i} ({len(chain)} turns)" for i, chain in sorted(self.chains.items())]
        if growing:
            raise RuntimeError(f"group {self.key}: adjoints are not replayed yet for trajectories {', '.join(growing)}")
        missing = sorted(set(range(self.size)) - self.bound)
        if missing:
            raise RuntimeError(f"group {self.key} has {len(self.bound)} of {self.size} trajectories, without {missing}")
        c = self.shift or 0.0
        beta = self.objective.beta(self.rewards, c)
        if any(beta) and self.sums is not None:
            if self.objective.scope == "group":
                self.batch.fold((1.0,), self.sums.combine(beta))
            self._backward_through_prompt(beta)
        prompt_tokens = 0 if self._prompt is None or not any(beta) else len(self.prompt_ids_P) - 1
        self._prompt, self._prompt_states, self.sums = None, (), None
        return GroupClosure(
            group=self.key,
            shift=c,
            rewards=tuple(self.rewards),
            beta=beta,
            folds=tuple(self.folds),
            prompt_tokens=prompt_tokens,
        )

    def _backward_through_prompt(self, beta: Sequence[float]) -> None:
        if self._prompt is None or self._prompt.adjoints is None:
            return
        seeds = [
            adjoint.to(state)
            for adjoint, state in zip(self._prompt.adjoints.combine(beta), self._prompt_states, strict=True)
        ]
        gradients = backward(self._prompt_states, seeds, self.parameters, [])
        require_finite(gradients.parameters, f"group {self.key}, shared prompt")
        self.batch.fold((1.0,), gradients.parameters)

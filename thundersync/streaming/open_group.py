"""One group while it is open: its prompt, its running sums, and what has been bound to it so far."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from thundersync.objectives.objective import Objective, check_reward
from thundersync.streaming.boundaries import Piece, cut, run_segment
from thundersync.streaming.differentiate import Gradients, backward
from thundersync.streaming.exact_sums import ExactSums
from thundersync.streaming.guards import require_finite
from thundersync.streaming.open_scope import OpenScope
from thundersync.streaming.running_sums import NewSums, RunningSums
from thundersync.streaming.turn_chain import TurnChain
from thundersync.streaming.turn_graph import TurnGraph


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupClosure:
    """How a group was reduced: with the order of its sources and the shift, a replay repeats the bits."""

    group: Hashable
    shift: float
    """c: the first reward bound in the objective's scope (group or batch), 0 where it needs none."""
    rewards: tuple[float, ...]
    """Of the group, in the order in which they were bound."""
    beta: tuple[float, ...]
    """The combination weights; (1,) where each source carried its final weight (OPD, and the reduction `direct`), empty
    where they are known only when the batch closes."""
    folds: tuple[tuple[int, int | None], ...]
    """(trajectory, turn) in the order in which sources were folded; turn is None for a whole trajectory."""
    prompt_tokens: int
    """Tokens of the shared prompt that the closing backward pass (one per basis for scope "batch") went through."""


@dataclass(frozen=True, slots=True)
class Held:
    """H of a trajectory whose reward is not there yet: one more buffer of the parameters' size."""

    gradients: Gradients | None
    context: Sequence[Piece]


@dataclass(slots=True)
class OpenGroup:
    """Nothing is allocated before the first source, and nothing is left after `close`."""

    key: Hashable
    size: int
    prompt_ids_P: Tensor
    objective: Objective
    parameters: Sequence[Tensor]
    new_sums: NewSums
    batch: RunningSums | ExactSums
    """The batch's accumulator: takes the group's direction when it closes, or each source at once (scope `source`)."""
    scope: OpenScope
    """The group's own, or the batch's."""
    rewards: list[float] = field(default_factory=list)
    folds: list[tuple[int, int | None]] = field(default_factory=list)
    bound: set[int] = field(default_factory=set)
    """Trajectories that are complete."""
    chains: dict[int, TurnChain] = field(default_factory=dict)
    """Trajectories that are growing turn by turn, differentiated at once (`turn_eager`)."""
    graphs: dict[int, TurnGraph] = field(default_factory=dict)
    """Trajectories that are growing turn by turn, run forward only (`turn_forward`)."""
    waiting: dict[int, Held] = field(default_factory=dict)
    """Trajectories that are differentiated and wait for their reward (`content`)."""
    _prompt_states: tuple[Tensor, ...] = ()
    _prompt: Piece | None = None

    @property
    def waiting_bytes(self) -> int:
        """Of the gradients that wait for their reward."""
        held = [one.gradients for one in self.waiting.values() if one.gradients is not None]
        return sum(tensor.nbytes for gradients in held for tensor in gradients.parameters if tensor is not None)

    @property
    def adjoint_bytes(self) -> int:
        """Of boundary adjoints: the sums of the prompt and of growing trajectories, and those of held gradients."""
        pieces = [piece for chain in self.chains.values() for piece in chain.pieces]
        if self._prompt is not None:
            pieces.append(self._prompt)
        held = [one.gradients.adjoints for one in self.waiting.values() if one.gradients is not None]
        return sum(piece.adjoints.nbytes for piece in pieces if piece.adjoints is not None) + sum(
            tensor.nbytes for adjoints in held for piece in adjoints for tensor in piece if tensor is not None
        )

    def name(self, trajectory: int, turn: int | None = None) -> str:
        whole = f"group {self.key}, trajectory {trajectory}"
        return whole if turn is None else f"{whole}, turn {turn}"

    def check_new(self, trajectory: int) -> None:
        """Raises ValueError for a trajectory that is not of this group, is bound already or waits for its reward."""
        self.check_known(trajectory)
        if trajectory in self.waiting:
            raise ValueError(f"{self.name(trajectory)} waits for its reward already; each source enters exactly once")

    def check_whole(self, trajectory: int) -> None:
        """As `check_new`, for a trajectory that comes in one piece: also for one that is growing by turns."""
        self.check_new(trajectory)
        if trajectory in self.chains or trajectory in self.graphs:
            raise ValueError(f"{self.name(trajectory)} is growing turn by turn: end it with close_trajectory")

    def check_known(self, trajectory: int) -> None:
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

    def phi(self, reward: float | None, name: str) -> Sequence[float]:
        """Basis weights of a source: of the objective, or (R, 1) over the group's common denominator."""
        if self.scope.exact is None or self.objective.bases == 1:
            return self.objective.phi(reward, reward if self.scope.shift is None else self.scope.shift)
        numerator, factor = self.scope.exact.admit(reward, name)
        for sums in (self.scope.sums, self._prompt and self._prompt.adjoints):
            if sums is not None and factor > 1:
                sums.rescale(0, factor)
        return numerator, 1

    def bind(self, trajectory: int, reward: float | None) -> None:
        """Counts a trajectory as complete. Its reward enters the group's statistics even if nothing was scored."""
        if self.objective.needs_reward:
            reward = check_reward(reward, self.name(trajectory))
            if self.scope.exact is not None and self.objective.bases > 1:
                numerator, _ = self.phi(reward, self.name(trajectory))
                self.scope.exact.numerators.append(numerator)
            self.rewards.append(reward)
            self.scope.bind(reward)
        self.bound.add(trajectory)

    def fold(self, phi: Sequence[float], gradients: Gradients, context: Sequence[Piece]) -> None:
        """Adds phi_b H_i to each running sum, boundary adjoints included."""
        if self.scope.sums is None:
            by_source = self.objective.scope == "source"
            self.scope.sums = self.batch if by_source else self.new_sums(self.parameters, self.objective.bases)
        self.scope.sums.fold(phi, gradients.parameters)
        for piece, adjoints in zip(context, gradients.adjoints, strict=True):
            piece.fold(phi, adjoints, self.new_sums)

    def require_closable(self) -> None:
        """Raises RuntimeError while trajectories are missing, owe adjoints or wait for their reward."""
        growing = [f"{i} ({len(turns)} turns)" for i, turns in sorted((self.chains | self.graphs).items())]
        if growing:
            raise RuntimeError(f"group {self.key}: close_trajectory() is missing for trajectories {', '.join(growing)}")
        if self.waiting:
            raise RuntimeError(f"group {self.key}: bind_reward() is missing for trajectories {sorted(self.waiting)}")
        missing = sorted(set(range(self.size)) - self.bound)
        if missing:
            raise RuntimeError(f"group {self.key} has {len(self.bound)} of {self.size} trajectories, without {missing}")

    def close(self) -> GroupClosure:
        """Combines the sums, sends the combined adjoints through the shared prompt, and lets go of everything.

        With scope "batch" beta is not known yet. The prompt's backward pass is linear in the adjoints, so each basis
        passes through it alone and joins the batch's running sums: no graph and no adjoint waits for the batch.
        """
        c, bases = self.scope.shift or 0.0, self.objective.bases
        beta: tuple[float, ...] = ()
        factor: list[float] = []
        prompt_tokens = 0
        if self.objective.scope == "batch":
            for b in range(bases):
                unit = tuple(float(a == b) for a in range(bases))
                prompt_tokens += self._backward_through_prompt((unit,), self.scope.sums, unit, keep_graph=b + 1 < bases)
        else:
            beta, *factor = self._combination(c)
            if any(beta) and self.scope.sums is not None:
                if self.objective.scope == "group":
                    self.batch.fold((1.0,), self.scope.sums.combine(beta, *factor))
                prompt_tokens = self._backward_through_prompt((beta, *factor), self.batch, (1.0,))
        self._prompt, self._prompt_states, self.scope = None, (), OpenScope()
        return GroupClosure(
            group=self.key,
            shift=c,
            rewards=tuple(self.rewards),
            beta=tuple(b * f for f in factor for b in beta) or beta,
            folds=tuple(self.folds),
            prompt_tokens=prompt_tokens,
        )

    def _combination(self, c: float) -> tuple:
        """What `combine` takes: beta, and for exact sums whole beta and a factor.

        Every objective with two bases has beta = scale (1, -mean(d)), and a scale that is a function of the rewards as
        a set, to the last bit when c does not depend on who came first.
        """
        if self.scope.exact is None or self.objective.bases == 1:
            return (self.objective.beta(self.rewards, c),)
        scale = self.objective.beta(self.rewards, 0.0)[0]
        return self.scope.exact.combination(scale) if scale else ((0, 0), 0.0)

    def _backward_through_prompt(
        self, combination: tuple, sums: RunningSums | ExactSums, phi: Sequence[float], keep_graph: bool = False
    ) -> int:
        """Folds the gradient of the adjoints' combination into `sums`; returns the tokens it went through."""
        if self._prompt is None or self._prompt.adjoints is None:
            return 0
        seeds = [
            adjoint.to(state)
            for adjoint, state in zip(self._prompt.adjoints.combine(*combination), self._prompt_states, strict=True)
        ]
        gradients = backward(self._prompt_states, seeds, self.parameters, [], keep_graph)
        require_finite(gradients.parameters, f"group {self.key}, shared prompt")
        sums.fold(phi, gradients.parameters)
        return len(self.prompt_ids_P) - 1

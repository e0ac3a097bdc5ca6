"""GradientStream: the gradient of a logical batch, accumulated source by source while the batch is still being made.

    stream = GradientStream(model, GRPO(prompts=2))
    stream.open()
    stream.open_group("a", size=2, prompt_ids=[5, 3, 9])
    stream.add_trajectory("a", 1, Continuation(ids=ids, scored=mask, reward=1.0))    # in any order, as rewards arrive
    stream.add_trajectory("a", 0, Continuation(ids=ids, scored=mask, reward=0.0))
    stream.close_group("a")
    ...
    direction = stream.close()      # the ascent direction g_k, name -> FP32 tensor

With OPD(), turns enter by `add_turn` as the teacher scores them, and `close_trajectory` ends each trajectory.
The parameters stay fixed between `open` and `close`; the caller clips and takes the one optimizer step.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from thundersync.objectives.objective import Objective, Settled, check_reward
from thundersync.streaming.boundaries import Piece
from thundersync.streaming.differentiate import differentiate, packs
from thundersync.streaming.exact_sums import ExactSums, Grid, Rewards
from thundersync.streaming.guards import FixedParameters, require_finite, require_no_dropout
from thundersync.streaming.host_memory import HostMemory
from thundersync.streaming.open_group import GroupClosure, Held, OpenGroup
from thundersync.streaming.open_scope import OpenScope
from thundersync.streaming.running_sums import RunningSums
from thundersync.streaming.scores import Segment, SourceStatistics, make_segment
from thundersync.streaming.turn_chain import TurnChain
from thundersync.streaming.turn_graph import GraphMemory, TurnGraph


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


class GradientStream:
    """One rank's share of a logical batch. Works with any transformers causal LM whose state `boundaries` can cut.

    model      in eval mode, or without dropout; only parameters with requires_grad are differentiated
    objective  GRPO, OPD, or any `Objective`
    dtype      of the running sums and of the direction; they live in host memory
    grid       makes the sums exact: the same bits in any order of arrival, at 8 bytes a parameter and sum
    graph_bytes most memory of the graphs that release `turn_forward` keeps; None is unbounded
    run_tokens most tokens of one forward pass where several sources or turns may share one (`add_group`, replays)
    """

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        *,
        dtype: torch.dtype = torch.float32,
        run_tokens: int = 1024,
        grid: Grid | None = None,
        graph_bytes: int | None = None,
    ) -> None:
        self.model, self.objective, self.dtype, self.run_tokens = model, objective, dtype, run_tokens
        if grid is not None and objective.scope == "batch":
            raise ValueError(f"exact sums do not cover {objective.name}, whose weights depend on the whole batch")
        self.grid = grid
        self.graphs = GraphMemory(budget=graph_bytes)
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        if not named:
            raise ValueError("the model has no parameter with requires_grad=True: there is nothing to learn")
        self._names = [name for name, _ in named]
        self._parameters = [p for _, p in named]
        self._fixed: FixedParameters | None = None
        self._sums: RunningSums | ExactSums | None = None
        self._scope = OpenScope()
        """Of the batch, for an objective of scope "batch"; unused otherwise."""
        self._groups: dict[Hashable, OpenGroup] = {}
        self._closed: set[Hashable] = set()
        self.statistics = SourceStatistics()
        """Of all sources since the batch was opened."""
        self.memory = HostMemory()
        """Of the running sums: now, and the peak since the batch was opened."""

    @property
    def is_open(self) -> bool:
        return self._sums is not None

    def open(self) -> None:
        """Opens a logical batch at the model's current parameters.

        Raises RuntimeError when one is open already, or dropout is active.
        """
        if self.is_open:
            raise RuntimeError("a batch is open already: close() or abort() it first")
        require_no_dropout(self.model)
        self._fixed = FixedParameters(self._parameters)
        self._sums = self._new_sums(self._parameters, 1)
        self.statistics = SourceStatistics()
        self.memory = HostMemory()
        self._measure()

    def open_group(self, group: Hashable, *, size: int, prompt_ids: Any, shift: float | None = None) -> None:
        """Registers a group of `size` trajectories that continue `prompt_ids`. Allocates nothing yet.

        `shift` fixes c of Equation 7; by default it is the first reward bound in the objective's scope. Raises
        ValueError for a group that is known already, an empty prompt, a size that the objective refuses, or another
        shift than the batch has where that is the scope.
        """
        self._require_open()
        if group in self._groups or group in self._closed:
            raise ValueError(f"group {group} was opened already in this batch")
        self.objective.check_group_size(size, group)
        prompt_ids_P = torch.as_tensor(prompt_ids, device=self._parameters[0].device).long().reshape(-1)
        if not len(prompt_ids_P):
            raise ValueError(f"group {group}: the prompt is empty, so the first token has no distribution")
        exact = None if self.grid is None else Rewards()
        scope = self._scope if self.objective.scope == "batch" else OpenScope(exact=exact)
        if shift is not None:
            if scope.shift not in (None, shift):
                raise ValueError(f"group {group}: the batch has one shift for all groups, {scope.shift}, not {shift}")
            scope.shift = shift
        self._groups[group] = OpenGroup(
            key=group,
            size=size,
            prompt_ids_P=prompt_ids_P,
            objective=self.objective,
            parameters=self._parameters,
            new_sums=self._new_sums,
            batch=self._sums,
            scope=scope,
        )

    def add_trajectory(self, group: Hashable, trajectory: int, source: Continuation) -> SourceStatistics:
        """Forward and backward of a whole trajectory (release `trajectory`), folded into the group's running sums.

        Raises ValueError for input that does not fit and FloatingPointError for a gradient that is not finite, both
        naming the source; nothing is folded then.
        """
        opened = self._group(group)
        opened.check_new(trajectory)
        name, reward = opened.name(trajectory), source.reward
        if trajectory in opened.chains:
            raise ValueError(f"{name} is growing turn by turn: end it with close_trajectory")
        if self.objective.needs_reward:
            reward = check_reward(reward, name)
        segment = self._segment(name, int(opened.prompt_ids_P[-1]), source)
        phi = opened.phi(reward, name)
        statistics, _ = self._learn(opened, name, [segment], [1.0], phi, [])
        opened.bind(trajectory, reward)
        opened.folds.append((trajectory, None))
        return statistics

    def add_turn(
        self, group: Hashable, trajectory: int, source: Continuation, *, turn: int | None = None
    ) -> SourceStatistics:
        """Forward and backward of a trajectory's next turn against detached state (release `turn_eager`).

        `turn`, its number, is only checked. Raises as `add_trajectory`, and ValueError where a turn is not a source, or
        is not the next one.
        """
        opened = self._group(group)
        opened.check_new(trajectory)
        if self.objective.source != "turn":
            raise ValueError(f"{self.objective.name} weights whole trajectories: use add_trajectory")
        chain = opened.chains.get(trajectory) or TurnChain(int(opened.prompt_ids_P[-1]))
        name = opened.name(trajectory, len(chain))
        if turn is not None and turn != len(chain):
            raise ValueError(f"{name} is the next one, but turn {turn} came: each turn enters once, in order")
        segment = self._segment(name, chain.last_token, source)
        phi = self.objective.phi(None, 0.0)
        statistics, states = self._learn(opened, name, [segment], [1.0], phi, chain.pieces, keep_states=True)
        opened.folds.append((trajectory, len(chain)))
        chain.append(segment, states)
        opened.chains[trajectory] = chain
        return statistics

    def forward_turn(self, group: Hashable, trajectory: int, source: Continuation, *, turn: int | None = None) -> None:
        """Forward of a trajectory's next turn; its backward comes with `close_trajectory` (release `turn_forward`).

        For every objective. Where the graph would exceed `graph_bytes`, the trajectory is run again when it closes.
        """
        opened = self._group(group)
        opened.check_new(trajectory)
        graph = opened.graphs.get(trajectory) or TurnGraph(int(opened.prompt_ids_P[-1]))
        name = opened.name(trajectory, len(graph))
        if turn is not None and turn != len(graph):
            raise ValueError(f"{name} is the next one, but turn {turn} came: each turn enters once, in order")
        segment = self._segment(name, graph.last_token, source)
        self._fixed.check()
        opened.graphs[trajectory] = graph
        alive = {(key, i): graph for key, one in self._groups.items() for i, graph in one.graphs.items()}
        tokens = len(segment.targets_T)
        if tokens and self.graphs.make_room(opened.name(trajectory), (group, trajectory), alive, tokens):
            graph.forward(self.model, self._parameters, segment, opened.context(self.model))
            self.graphs.note(graph, alive)
        else:
            graph.add(segment)

    def add_content(self, group: Hashable, trajectory: int, source: Continuation) -> SourceStatistics:
        """Forward and backward of a whole trajectory before its reward is known (release `content`).

        H does not depend on the reward; it is kept apart until `bind_reward` brings it.
        """
        opened = self._group(group)
        opened.check_new(trajectory)
        name = opened.name(trajectory)
        if trajectory in opened.waiting:
            raise ValueError(f"{name} waits for its reward already; each source enters exactly once")
        segment = self._segment(name, int(opened.prompt_ids_P[-1]), source)
        held, statistics, _ = self._differentiate(opened, name, [segment], [1.0], [])
        opened.waiting[trajectory] = held
        self._measure()
        return statistics

    def bind_reward(self, group: Hashable, trajectory: int, reward: float) -> None:
        """Folds a trajectory that `add_content` has differentiated."""
        opened = self._group(group)
        opened.check_new(trajectory)
        name = opened.name(trajectory)
        if trajectory not in opened.waiting:
            raise ValueError(f"{name} has no gradient that waits for a reward: add_content comes first")
        phi = opened.phi(check_reward(reward, name), name)
        self._fold(opened, phi, opened.waiting.pop(trajectory))
        opened.bind(trajectory, reward)
        opened.folds.append((trajectory, None))

    def close_trajectory(self, group: Hashable, trajectory: int, reward: float | None = None) -> int:
        """Ends a trajectory that grew by turns. Returns the number of tokens that were forwarded again.

        After `add_turn` it replays the adjoints that the turns owe to earlier ones; after `forward_turn` it runs the
        one backward pass. `reward` where the objective needs one.
        """
        opened = self._group(group)
        opened.check_new(trajectory)
        if trajectory in opened.graphs:
            return self._close_graph(opened, trajectory, reward)
        if self.objective.source != "turn":
            raise ValueError(f"{self.objective.name} weights whole trajectories: they close with add_trajectory")
        replayed = 0
        chain = opened.chains.pop(trajectory, None)
        if chain is not None:
            prompt = opened.context(self.model)
            for gradients, tokens in chain.replay(
                self.model, self._parameters, prompt, self.run_tokens, self._new_sums
            ):
                self._fixed.check()
                require_finite(gradients.tensors, f"{opened.name(trajectory)}, deferred adjoints")
                self._fold(opened, (1.0,), Held(gradients, prompt))
                replayed += tokens
        opened.bind(trajectory, None)
        return replayed

    def graph_was_dropped(self, group: Hashable, trajectory: int) -> bool:
        """Whether a trajectory that came by `forward_turn` will be run again, for want of memory."""
        graph = self._group(group).graphs.get(trajectory)
        return graph is not None and not graph.kept

    def _close_graph(self, opened: OpenGroup, trajectory: int, reward: float | None) -> int:
        name = opened.name(trajectory)
        if self.objective.needs_reward:
            reward = check_reward(reward, name)
        phi = opened.phi(reward, name)
        graph = opened.graphs.pop(trajectory)
        again = 0
        if graph.kept:
            self._fixed.check()
            prompt = opened.context(self.model)
            gradients, statistics = graph.backward(self._parameters, self.objective, prompt)
            if gradients is not None:
                require_finite(gradients.tensors, name)
            self._fold(opened, phi, Held(gradients, prompt))
            self.statistics += statistics
        else:
            again = graph.tokens
            self._learn(opened, name, [graph.whole()], [1.0], phi, [])
        opened.bind(trajectory, reward)
        opened.folds.append((trajectory, None))
        return again

    def close_group(self, group: Hashable) -> GroupClosure:
        """Combines the group's sums (Equation 7) and runs one backward pass through the shared prompt.

        With scope "batch" the sums stay open for the other groups, and each basis takes a backward pass of its own.
        """
        closure = self._group(group).close()
        self._closed.add(group)
        del self._groups[group]
        self._measure()
        return closure

    def add_group(
        self,
        group: Hashable,
        prompt_ids: Any,
        continuations: Sequence[Continuation],
        batch_rewards: Sequence[float] | None = None,
    ) -> tuple[SourceStatistics, GroupClosure]:
        """A complete group at once (reduction `direct`): its weights are known, so they multiply the scores directly.

        `continuations` are the group's trajectories 0, 1, ...; they share forward passes of at most `run_tokens` padded
        tokens. One running gradient, no sums per basis; the prompt is differentiated once. An objective of scope
        "batch" also needs `batch_rewards`, those of all trajectories of the batch, over all ranks. Raises as
        `add_trajectory`, and ValueError without them.
        """
        by_batch = self.objective.scope == "batch"
        if by_batch and batch_rewards is None:
            raise ValueError(f"group {group}: {self.objective.name} weights it by the whole batch: give batch_rewards")
        self.open_group(group, size=len(continuations), prompt_ids=prompt_ids)
        opened = self._groups[group]
        rewards = [c.reward for c in continuations]
        if self.objective.needs_reward:
            rewards = [check_reward(r, opened.name(i)) for i, r in enumerate(rewards)]
        opened.objective = Settled(self.objective, batch_rewards if by_batch else rewards)
        opened.scope = OpenScope(shift=opened.objective.shift)
        last = int(opened.prompt_ids_P[-1])
        segments = [self._segment(opened.name(i), last, continuation) for i, continuation in enumerate(continuations)]
        total = SourceStatistics()
        for pack in packs([len(segment.targets_T) for segment in segments], self.run_tokens):
            weights = [opened.objective.weight(rewards[i]) for i in pack]
            name = f"group {group}, trajectories {pack}"
            statistics, _ = self._learn(opened, name, [segments[i] for i in pack], weights, (1.0,), [])
            total += statistics
        for i, reward in enumerate(rewards):
            opened.bind(i, reward)
            opened.folds.append((i, None))
        return total, self.close_group(group)

    def close(self) -> dict[str, Tensor]:
        """The ascent direction g_k of the batch: name -> tensor in host memory, divided by N.

        Raises RuntimeError while a group is open or when the parameters changed, ValueError when the objective has no
        update for the batch; the batch then stays open.
        """
        sums, scored_tokens = self._drain(self.objective.divisor)
        divisor = self.objective.divisor(scored_tokens)  # Equation 9: unnormalised until here, divided once
        return {name: tensor.div_(divisor) for name, tensor in sums.items()}

    def close_sums(
        self, add_up: Callable[[Tensor], None] | None = None, batch_rewards: Sequence[float] | None = None
    ) -> tuple[dict[str, Tensor], int]:
        """As `close`, but undivided and with this rank's scored tokens: ranks add both up, then divide once.

        `add_up` adds up a flat buffer over ranks, in place. What it raises leaves the batch open. An objective of scope
        "batch" also needs the `batch_rewards` of all ranks together.
        """
        return self._drain(lambda scored_tokens: 1.0, add_up, batch_rewards)

    @property
    def batch_rewards(self) -> tuple[float, ...]:
        """What has been bound to the open batch on this rank, where the objective's scope is the batch."""
        return tuple(self._scope.rewards)

    def require_closable(self) -> None:
        """Raises RuntimeError when no batch is open, a group still is, or the parameters changed."""
        self._require_open()
        if self._groups:
            raise RuntimeError(f"groups are still open: {', '.join(map(str, self._groups))}; close_group() each first")
        self._fixed.check_values()

    def abort(self) -> None:
        """Lets go of an open batch without an update."""
        self._groups.clear()
        self._closed.clear()
        self._sums = self._fixed = None
        self._scope = OpenScope()
        self._measure()

    def _new_sums(self, like: Sequence[Tensor], bases: int) -> RunningSums | ExactSums:
        return RunningSums(like, bases, self.dtype) if self.grid is None else ExactSums(like, bases, self.grid)

    def _require_open(self) -> None:
        if not self.is_open:
            raise RuntimeError("no batch is open: call open() first")

    def _group(self, group: Hashable) -> OpenGroup:
        self._require_open()
        if group in self._closed:
            raise ValueError(f"group {group} is closed: nothing can be added to it")
        if group not in self._groups:
            raise ValueError(f"group {group} was never opened in this batch")
        return self._groups[group]

    def _segment(self, name: str, previous: int, source: Continuation) -> Segment:
        teacher = source.teacher_logprobs
        if self.objective.needs_teacher and teacher is None:
            raise ValueError(f"{name}: {self.objective.name} needs teacher_logprobs of its scored tokens")
        device = self._parameters[0].device
        return make_segment(name, previous, source.ids, source.scored, teacher, source.rollout_logprobs, device=device)

    def _learn(
        self,
        opened: OpenGroup,
        name: str,
        segments: Sequence[Segment],
        weights: Sequence[float],
        phi: Sequence[float],
        turns: Sequence[Piece],
        keep_states: bool = False,
    ) -> tuple[SourceStatistics, tuple[Tensor, ...]]:
        """One source, or several that share phi: forward, backward, fold. Folds all of it or nothing."""
        held, statistics, states = self._differentiate(opened, name, segments, weights, turns, keep_states)
        self._fold(opened, phi, held)
        return statistics, states

    def _differentiate(
        self,
        opened: OpenGroup,
        name: str,
        segments: Sequence[Segment],
        weights: Sequence[float],
        turns: Sequence[Piece],
        keep_states: bool = False,
    ) -> tuple[Held, SourceStatistics, tuple[Tensor, ...]]:
        """H of one source, or the weighted sum of several, checked and not folded yet."""
        self._fixed.check()
        if not keep_states and not any(segment.scored_tokens for segment in segments):
            return Held(None, ()), SourceStatistics(), ()
        context = [*opened.context(self.model), *turns]
        gradients, states, statistics = differentiate(
            self.model, self._parameters, self.objective, segments, weights, context, keep_states
        )
        if gradients is not None:
            require_finite(gradients.tensors, name)
        self.statistics += statistics
        return Held(gradients, context), statistics, states

    def _fold(self, opened: OpenGroup, phi: Sequence[float], held: Held) -> None:
        if held.gradients is not None:
            opened.fold(phi, held.gradients, held.context)
        self._measure()

    def _measure(self) -> None:
        """Notes what is alive now: sums once each, whoever shares them, and gradients that wait for a reward."""
        opened = self._groups.values()
        scopes = [self._scope, *(group.scope for group in opened)]
        own = {id(scope.sums): scope.sums.nbytes for scope in scopes if scope.sums not in (None, self._sums)}
        batch = 0 if self._sums is None else self._sums.nbytes
        self.memory.record(
            sums=batch + sum(own.values()) + sum(group.waiting_bytes for group in opened),
            adjoints=sum(group.adjoint_bytes for group in opened),
            groups=len(own),
        )

    def _drain(
        self,
        check: Callable[[int], float],
        add_up: Callable[[Tensor], None] | None = None,
        batch_rewards: Sequence[float] | None = None,
    ) -> tuple[dict[str, Tensor], int]:
        """The batch's sums, after every guard; the stream holds nothing afterwards."""
        self.require_closable()
        scored_tokens = self.statistics.scored_tokens
        check(scored_tokens)
        scope = self._scope
        if scope.sums is not None:
            beta = self.objective.beta(scope.rewards if batch_rewards is None else batch_rewards, scope.shift)
            if any(beta):
                self._sums.fold((1.0,), scope.sums.combine(beta))
        if add_up is not None:
            self._sums.reduce(add_up)
        sums = {n: s.to(self.dtype) for n, s in zip(self._names, self._sums.combine((1.0,)), strict=True)}
        self.abort()
        return sums, scored_tokens

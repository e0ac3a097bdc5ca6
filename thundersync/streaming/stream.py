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

from collections.abc import Hashable, Sequence
from typing import Any

from torch import Tensor

from thundersync.objectives.objective import Settled, check_reward
from thundersync.streaming.boundaries import Piece
from thundersync.streaming.continuation import Continuation
from thundersync.streaming.differentiate import differentiate, packs
from thundersync.streaming.guards import require_close, require_finite
from thundersync.streaming.open_batch import OpenBatch
from thundersync.streaming.open_group import GroupClosure, Held, OpenGroup
from thundersync.streaming.open_scope import OpenScope
from thundersync.streaming.scores import Segment, SourceStatistics, make_segment
from thundersync.streaming.turn_chain import TurnChain
from thundersync.streaming.turn_graph import PASS_TOKENS, TurnGraph


class GradientStream(OpenBatch):
    """One rank's share of a logical batch, for any causal LM of transformers that `cuttable` admits.

    Raises CannotCut, when it is built, for a model whose state cannot be cut.

    model      in eval mode, or without dropout; only parameters with requires_grad are differentiated
    objective  GRPO, OPD, or any `Objective`
    dtype      of the running sums and of the direction; they live in host memory
    grid       makes the sums exact: the same bits in any order of arrival, at 8 bytes a parameter and sum
    graph_bytes most memory of the graphs that release `turn_forward` keeps; None is unbounded
    logprob_tolerance how far, in nats, the rollout engine's log-probability of a token may be from the learner's; None
               is unbounded
    run_tokens most tokens of one forward pass where several sources or turns may share one (`add_group`, replays)
    """

    def add_trajectory(self, group: Hashable, trajectory: int, source: Continuation) -> SourceStatistics:
        """Forward and backward of a whole trajectory (release `trajectory`), folded into the group's running sums.

        Raises ValueError for input that does not fit and FloatingPointError for a gradient that is not finite, both
        naming the source; nothing is folded then. So for rollout log-probabilities beyond `logprob_tolerance`.
        """
        opened = self._group(group)
        opened.check_whole(trajectory)
        name, reward = opened.name(trajectory), source.reward
        if self.objective.needs_reward:
            reward = check_reward(reward, name)
        segment = self._segment(name, int(opened.prompt_ids_P[-1]), source)
        phi = self._phi(opened, reward, name)
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

        For every objective. Short turns wait for more (`PASS_TOKENS`). Where the graph would exceed `graph_bytes`, the
        trajectory is run again when it closes.
        """
        opened = self._group(group)
        opened.check_new(trajectory)
        graph = opened.graphs.get(trajectory) or TurnGraph(int(opened.prompt_ids_P[-1]), self._parameters)
        name = opened.name(trajectory, len(graph))
        if turn is not None and turn != len(graph):
            raise ValueError(f"{name} is the next one, but turn {turn} came: each turn enters once, in order")
        segment = self._segment(name, graph.last_token, source)
        self._fixed.check()
        opened.graphs[trajectory] = graph
        graph.add(segment)
        if graph.due >= PASS_TOKENS:
            alive = {(key, i): graph for key, one in self._groups.items() for i, graph in one.graphs.items()}
            if self.graphs.make_room((group, trajectory), alive):
                graph.forward(self.model, opened.context(self.model), measured=self.graphs.budget is not None)
                self.graphs.note((group, trajectory), alive)

    def add_content(self, group: Hashable, trajectory: int, source: Continuation) -> SourceStatistics:
        """Forward and backward of a whole trajectory before its reward is known (release `content`).

        H does not depend on the reward; it is kept apart until `bind_reward` brings it.
        """
        opened = self._group(group)
        opened.check_whole(trajectory)
        name = opened.name(trajectory)
        if not self.objective.needs_reward:
            raise ValueError(f"{self.objective.name} has no reward to wait for: use add_trajectory")
        segment = self._segment(name, int(opened.prompt_ids_P[-1]), source)
        held, statistics, _ = self._differentiate(opened, name, [segment], [1.0], [])
        opened.waiting[trajectory] = held
        self._measure()
        return statistics

    def bind_reward(self, group: Hashable, trajectory: int, reward: float) -> None:
        """Folds a trajectory that `add_content` has differentiated."""
        opened = self._group(group)
        opened.check_known(trajectory)
        name = opened.name(trajectory)
        if trajectory not in opened.waiting:
            raise ValueError(f"{name} has no gradient that waits for a reward: add_content comes first")
        phi = self._phi(opened, check_reward(reward, name), name)
        self._fold(opened, phi, opened.waiting.pop(trajectory))
        opened.bind(trajectory, reward)
        opened.folds.append((trajectory, None))

    def close_trajectory(self, group: Hashable, trajectory: int, reward: float | None = None) -> int:
        """Ends a trajectory that grew by turns. Returns the number of tokens that were forwarded again.

        After `add_turn` it replays the adjoints that the turns owe to earlier ones; after `forward_turn` it runs the
        one backward pass. `reward` where the objective needs one. What fails half-way cannot be repeated: only `abort`
        is possible then.
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
            passes = chain.replay(self.model, self._parameters, prompt, self.run_tokens, self._new_sums)
            with self._all_or_nothing(f"closing {opened.name(trajectory)}"):
                for gradients, tokens in passes:
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
        phi = self._phi(opened, reward, name)
        graph = opened.graphs.pop(trajectory)
        again = 0 if graph.kept else graph.tokens
        with self._all_or_nothing(f"closing {name}"):
            self._fixed.check()
            prompt = opened.context(self.model)
            gradients, statistics = graph.backward(self.model, self.objective, prompt)
            if gradients is not None:
                require_finite(gradients.tensors, name)
            require_close(statistics, self.logprob_tolerance, name)
            self._fold(opened, phi, Held(gradients, prompt))
        self.statistics += statistics
        opened.bind(trajectory, reward)
        opened.folds.append((trajectory, None))
        return again

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
        require_close(statistics, self.logprob_tolerance, name)
        self.statistics += statistics
        return Held(gradients, context), statistics, states

    def _phi(self, opened: OpenGroup, reward: float | None, name: str) -> Sequence[float]:
        with self._all_or_nothing(name, OverflowError):  # which leaves some sums on a new denominator, others not
            return opened.phi(reward, name)

    def _fold(self, opened: OpenGroup, phi: Sequence[float], held: Held) -> None:
        if held.gradients is not None:
            with self._all_or_nothing(f"a source of group {opened.key}"):
                opened.fold(phi, held.gradients, held.context)
        self._measure()

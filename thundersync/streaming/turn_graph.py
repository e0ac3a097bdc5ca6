"""Release `turn_forward`: a trajectory whose turns run forward while it grows, and backward once, when it closes.

Each turn's forward pass reads the states of the turns before it while they are still attached, so the graphs of the
turns grow together into that of the whole trajectory; nothing is computed twice and no adjoint is deferred.

    ready     turn 0  fwd          turn 1  fwd          turn 2  fwd
    close                                                        bwd of all of it, down to the prompt's piece

Turns of few tokens wait for the next ones, up to PASS_TOKENS: a pass costs almost as much for fewer.
The price is memory: the graph is kept until the trajectory closes. `GraphMemory` says which graphs may be kept; the
others are dropped, and their turns run forward again when the trajectory closes. They do so in the same passes as the
first time: whether a graph was kept does not change a bit of the gradient.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from thundersync.objectives.objective import Objective
from thundersync.streaming.boundaries import Piece
from thundersync.streaming.differentiate import Gradients, backward, forward_segment
from thundersync.streaming.scores import Segment, SourceStatistics, statistics_of

PASS_TOKENS = 128
"""Least tokens of a forward pass while the trajectory grows."""


class TurnGraph:
    """The turns of one growing trajectory and, unless it was dropped, their common graph."""

    def __init__(self, last_token: int, parameters: Sequence[Tensor]) -> None:
        self.last_token = last_token
        """The token that the next turn's first log-probability is conditioned on."""
        self.segments: list[Segment] = []
        self.bytes = 0
        """Live memory of the graph, where it is measured: what autograd saved, parameters apart."""
        self.kept = True
        self._parameters = parameters
        self._ran = 0
        """Turns that the graph holds."""
        self._pieces: list[Piece] = []
        self._logprobs: list[Tensor] = []
        self._entropies: list[Tensor] = []

    def __len__(self) -> int:
        return len(self.segments)

    @property
    def tokens(self) -> int:
        return _tokens(self.segments)

    @property
    def due(self) -> int:
        """Tokens that wait for their forward pass."""
        return _tokens(self.segments[self._ran :])

    def add(self, segment: Segment) -> None:
        """Notes the next turn; `forward` runs it."""
        self.segments.append(segment)
        if len(segment.targets_T):
            self.last_token = int(segment.targets_T[-1])

    def forward(self, model: nn.Module, prompt: Sequence[Piece], measured: bool = False) -> None:
        """Runs what is due, at least one token, forward onto the graph in one pass; adds to `bytes` if `measured`."""
        saved = _SavedBytes(model)
        hooks = torch.autograd.graph.saved_tensors_hooks(saved.pack, lambda tensor: tensor)
        with hooks if measured else nullcontext():
            self._run(model, self.segments[self._ran :], prompt)
        self.bytes += saved.bytes

    def drop(self) -> None:
        """Lets go of the graph; the tokens stay."""
        self._pieces, self._logprobs, self._entropies = [], [], []
        self._ran, self.bytes, self.kept = 0, 0, False

    def backward(
        self, model: nn.Module, objective: Objective, prompt: Sequence[Piece]
    ) -> tuple[Gradients | None, SourceStatistics]:
        """H of the trajectory, with what it owes to the prompt (None when nothing is scored). Frees the graph.

        Runs forward first what is due: the last turns, or all of them where the graph was dropped.
        """
        whole = joined(self.segments)
        if not whole.scored_tokens:
            self.drop()
            return None, SourceStatistics()
        for turns in passes(self.segments[self._ran :]):
            self._run(model, turns, prompt)
        logprobs_A = torch.cat(self._logprobs)
        statistics = statistics_of([whole], logprobs_A.detach(), torch.cat(self._entropies))
        w = objective.token_weights(logprobs_A.detach(), whole.teacher_A)
        gradients = backward([(w * logprobs_A).sum()], None, self._parameters, prompt)
        self.drop()
        return gradients, statistics

    def _run(self, model: nn.Module, turns: Sequence[Segment], prompt: Sequence[Piece]) -> None:
        logprobs_A, entropy_A, states = forward_segment(model, joined(turns), [*prompt, *self._pieces])
        self._pieces.append(Piece(leaves=states))
        self._logprobs.append(logprobs_A)
        self._entropies.append(entropy_A)
        self._ran += len(turns)


def passes(turns: Sequence[Segment]) -> Iterator[list[Segment]]:
    """The turns that share a forward pass: as many as make PASS_TOKENS; the last pass may have fewer tokens."""
    together: list[Segment] = []
    for turn in turns:
        together.append(turn)
        if _tokens(together) >= PASS_TOKENS:
            yield together
            together = []
    if _tokens(together):
        yield together


def joined(turns: Sequence[Segment]) -> Segment:
    """Consecutive turns as one segment."""
    starts = [_tokens(turns[:i]) for i in range(len(turns))]
    return Segment(
        inputs_T=torch.cat([turn.inputs_T for turn in turns]),
        targets_T=torch.cat([turn.targets_T for turn in turns]),
        positions_A=torch.cat([turn.positions_A + start for turn, start in zip(turns, starts, strict=True)]),
        teacher_A=_joined([turn.teacher_A for turn in turns]),
        rollout_A=_joined([turn.rollout_A for turn in turns]),
    )


def _tokens(turns: Sequence[Segment]) -> int:
    return sum(len(turn.targets_T) for turn in turns)


def _joined(parts: Sequence[Tensor | None]) -> Tensor | None:
    return None if any(part is None for part in parts) else torch.cat(list(parts))


class _SavedBytes:
    """Counts what autograd saves for the backward pass, each storage once, parameters (frozen ones too) not at all."""

    def __init__(self, model: nn.Module) -> None:
        self._seen = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
        self.bytes = 0

    def pack(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._seen:
            self._seen.add(storage.data_ptr())
            self.bytes += storage.nbytes()
        return tensor


@dataclass(slots=True)
class GraphMemory:
    """Which graphs are kept: as many bytes as stated, for the trajectories with the longest service left without one.

    A trajectory without its graph runs all its tokens forward again when it closes, in the learner's tail; so graphs go
    to the trajectories with the most tokens first, and each that no longer fits gives way (`kept_longest_first`).
    """

    budget: int | None = None
    """Bytes that the graphs of growing trajectories may hold; None is unbounded, and nothing is measured.

    It covers what waits, not what works: a pass under way needs what it needs, and so does the one trajectory that
    closes, whose whole graph must be there for its backward pass, as under release `trajectory`.
    """
    dropped: list[str] = field(default_factory=list)
    """Trajectories whose graph gave way, with the reason, in order."""
    peak: int = 0
    """Most bytes held at once, where there is a budget."""
    _per_token: float = 0.0

    def make_room(self, key: Hashable, graphs: Mapping[Hashable, TurnGraph]) -> bool:
        """Whether what is due in graph `key` may run forward now; lets graphs give way for it where that helps.

        `key` and those of `graphs` are (group, trajectory).
        """
        graph = graphs[key]
        if self.budget is None or not graph.kept:
            return graph.kept
        alive = [other for other, one in graphs.items() if one.kept]
        needs = [graphs[other].bytes + (self._per_token * graph.due if other == key else 0) for other in alive]
        kept = kept_longest_first(needs, [graphs[other].tokens for other in alive], self.budget)
        for i, (group, trajectory) in enumerate(alive):
            if i not in kept:
                name = f"group {group}, trajectory {trajectory}"
                self.dropped.append(f"{name}: its graph would exceed the {self.budget} bytes of graph_bytes")
                graphs[alive[i]].drop()
        return graph.kept

    def note(self, key: Hashable, graphs: Mapping[Hashable, TurnGraph]) -> None:
        """Learns from graph `key`, whose turns have all run forward, what a token costs; lets go of what is too much.

        Only the first pass of all, whose cost nobody knew, and a token that costs more than any before can be.
        """
        if self.budget is None:
            return
        graph = graphs[key]
        self._per_token = max(self._per_token, graph.bytes / max(1, graph.tokens))
        self.make_room(key, graphs)
        self.peak = max(self.peak, sum(other.bytes for other in graphs.values()))

    def reset(self) -> None:
        """For a new batch; what a token costs stays known."""
        self.dropped, self.peak = [], 0


def kept_longest_first(needs: Sequence[float], services: Sequence[float], budget: float) -> set[int]:
    """Places of the graphs that are kept: by service, longest first, each that still fits beside those before it.

    Of all choices that fit, it leaves the shortest longest service to redo, then the shortest second longest, ...: the
    tail is at most as long as the longest of them.
    """
    kept, left = set(), budget
    for i in sorted(range(len(needs)), key=lambda i: -services[i]):
        if needs[i] <= left:
            kept.add(i)
            left -= needs[i]
    return kept

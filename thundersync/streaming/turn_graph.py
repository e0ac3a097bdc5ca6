"""Release `turn_forward`: a trajectory whose turns run forward while it grows, and backward once, when it closes.

Each turn's forward pass reads the states of the turns before it while they are still attached, so the graphs of the
turns grow together into that of the whole trajectory; nothing is computed twice and no adjoint is deferred.

    ready     turn 0  fwd          turn 1  fwd          turn 2  fwd
    close                                                        bwd of all of it, down to the prompt's piece

The price is memory: the graph is kept until the trajectory closes. `GraphMemory` says which graphs may be kept;
the others are dropped, and their trajectories run forward again when they close (release `trajectory`).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from thundersync.objectives.objective import Objective
from thundersync.streaming.boundaries import Piece
from thundersync.streaming.differentiate import Gradients, backward, forward_segment
from thundersync.streaming.scores import Segment, SourceStatistics, statistics_of


class TurnGraph:
    """The turns of one growing trajectory and, unless it was dropped, their common graph."""

    def __init__(self, last_token: int) -> None:
        self.last_token = last_token
        """The token that the next turn's first log-probability is conditioned on."""
        self.segments: list[Segment] = []
        self.bytes = 0
        """Live memory of the graph: what autograd saved, parameters apart."""
        self.kept = True
        self._pieces: list[Piece] = []
        self._logprobs: list[Tensor] = []
        self._entropies: list[Tensor] = []

    def __len__(self) -> int:
        return len(self.segments)

    @property
    def tokens(self) -> int:
        return sum(len(segment.targets_T) for segment in self.segments)

    def forward(self, model: nn.Module, segment: Segment, prompt: Sequence[Piece]) -> None:
        """Runs the next turn, of at least one token, forward onto the graph."""
        saved = _SavedBytes(model)
        with torch.autograd.graph.saved_tensors_hooks(saved.pack, lambda tensor: tensor):
            logprobs_A, entropy_A, states = forward_segment(model, segment, [*prompt, *self._pieces])
        self.bytes += saved.bytes
        self._pieces.append(Piece(leaves=states))
        self._logprobs.append(logprobs_A)
        self._entropies.append(entropy_A)
        self.add(segment)

    def add(self, segment: Segment) -> None:
        """Notes a turn without running it: the graph was dropped."""
        self.segments.append(segment)
        if len(segment.targets_T):
            self.last_token = int(segment.targets_T[-1])

    def drop(self) -> None:
        """Lets go of the graph; the tokens stay."""
        self._pieces, self._logprobs, self._entropies, self.bytes, self.kept = [], [], [], 0, False

    def backward(
        self, parameters: Sequence[Tensor], objective: Objective, prompt: Sequence[Piece]
    ) -> tuple[Gradients | None, SourceStatistics]:
        """H of the trajectory, with what it owes to the prompt (None when nothing is scored). Frees the graph."""
        whole = self.whole()
        if not whole.scored_tokens:
            self.drop()
            return None, SourceStatistics()
        logprobs_A = torch.cat(self._logprobs)
        statistics = statistics_of([whole], logprobs_A.detach(), torch.cat(self._entropies))
        w = objective.token_weights(logprobs_A.detach(), whole.teacher_A)
        gradients = backward([(w * logprobs_A).sum()], None, parameters, prompt)
        self.drop()
        return gradients, statistics

    def whole(self) -> Segment:
        """All turns as one segment, for a trajectory whose graph was dropped."""
        lengths = [len(segment.targets_T) for segment in self.segments]
        starts = [sum(lengths[:i]) for i in range(len(lengths))]
        return Segment(
            inputs_T=torch.cat([segment.inputs_T for segment in self.segments]),
            targets_T=torch.cat([segment.targets_T for segment in self.segments]),
            positions_A=torch.cat([s.positions_A + start for s, start in zip(self.segments, starts, strict=True)]),
            teacher_A=_joined([segment.teacher_A for segment in self.segments]),
            rollout_A=_joined([segment.rollout_A for segment in self.segments]),
        )


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
    """Which graphs are kept: as many bytes as stated, in favour of the trajectories that would cost most to redo."""

    budget: int | None = None
    """Bytes; None is unbounded."""
    dropped: list[str] = field(default_factory=list)
    """Trajectories whose graph gave way, with the reason, in order."""
    peak: int = 0
    """Most bytes held at once."""
    _per_token: float = 0.0

    def make_room(self, name: str, key: Hashable, graphs: dict[Hashable, TurnGraph], tokens: int) -> bool:
        """Whether the next turn of graph `key` may run forward now; drops smaller graphs for it where that helps."""
        graph = graphs[key]
        if self.budget is None or not graph.kept:
            return graph.kept
        needed = self._per_token * tokens
        while needed + sum(other.bytes for other in graphs.values()) > self.budget:
            smallest = min((g for g in graphs.values() if g.kept and g.bytes), key=lambda g: g.tokens, default=graph)
            if smallest.tokens >= graph.tokens + tokens or smallest is graph:
                self._give_way(name, graph)
                return False
            self._give_way(f"a trajectory of {smallest.tokens} tokens", smallest)
        return True

    def note(self, graph: TurnGraph, graphs: dict[Hashable, TurnGraph]) -> None:
        """Learns from a turn that has run forward what a token costs."""
        self._per_token = max(self._per_token, graph.bytes / max(1, graph.tokens))
        self.peak = max(self.peak, sum(other.bytes for other in graphs.values()))

    def _give_way(self, name: str, graph: TurnGraph) -> None:
        self.dropped.append(f"{name}: its graph would exceed the {self.budget} bytes of graph_bytes")
        graph.drop()

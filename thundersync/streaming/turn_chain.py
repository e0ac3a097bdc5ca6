"""Release `turn_eager`: a trajectory that is learnt turn by turn while it is still growing.

Each turn runs forward and backward at once, against the cut pieces of the prompt and of the turns before it. What its
backward pass leaves on their leaves is a partial derivative: the keys and values of earlier turns depend on the
parameters too. When the trajectory closes, the turns are forwarded again from last to first, with these adjoints as
seeds, which yields the missing parameter gradients and passes adjoints further back, at last to the shared prompt.

    ready     turn 0  fwd bwd      turn 1  fwd bwd      turn 2  fwd bwd
                      ^ piece 0 <- adjoint | ^ piece 1 <- adjoint |
    close                                  turn 1  fwd, bwd(piece 1)  ->  turn 0  fwd, bwd(piece 0)  ->  prompt
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from thundersync.streaming.boundaries import Piece, cut, join, run_segment
from thundersync.streaming.cuttable import appends_only
from thundersync.streaming.differentiate import Gradients, backward
from thundersync.streaming.running_sums import NewSums
from thundersync.streaming.scores import Segment


class TurnChain:
    """The turns of one growing trajectory: their inputs, their pieces, and the adjoints they owe."""

    def __init__(self, last_token: int) -> None:
        self.last_token = last_token
        """The token that the next turn's first log-probability is conditioned on."""
        self._inputs: list[Tensor] = []
        self._pieces: list[Piece] = []

    def __len__(self) -> int:
        return len(self._pieces)

    @property
    def pieces(self) -> list[Piece]:
        return list(self._pieces)

    def append(self, segment: Segment, states: Sequence[Tensor]) -> None:
        """Adds a turn that has been learnt, with the states that its forward pass left."""
        if len(segment.targets_T):
            self._inputs.append(segment.inputs_T)
            self._pieces.append(cut(states))
            self.last_token = int(segment.targets_T[-1])

    def replay(
        self, model: nn.Module, parameters: Sequence[Tensor], prompt: Sequence[Piece], tokens: int, new_sums: NewSums
    ) -> Iterator[tuple[Gradients, int]]:
        """Yields deferred gradients and tokens forwarded, last turns first; the caller folds the adjoints of `prompt`.

        Runs of consecutive turns are forwarded together up to `tokens` tokens: the derivative is the same, since within
        a run the chain rule is autograd's. Not so where a layer replaces its state: the one between two turns of a run
        would not come out of the pass, and the adjoint that it is owed would have nowhere to go.
        """
        if not appends_only(model):
            tokens = 0
        end = len(self._pieces)
        while end and self._pieces[end - 1].adjoints is None:
            end -= 1  # nothing has read the last turns
        while end:
            start = self._start_of_run(end, tokens)
            inputs_T = torch.cat(self._inputs[start:end])
            context = [*prompt, *self._pieces[:start]]
            _, states = run_segment(model, inputs_T[None], context, inputs_T.new_empty(0))
            owed = join([piece.adjoints.combine((1.0,)) for piece in self._pieces[start:end]])
            seeds = [adjoint.to(state) for adjoint, state in zip(owed, states, strict=True)]
            gradients = backward(states, seeds, parameters, context)
            for piece, adjoints in zip(self._pieces[:start], gradients.adjoints[len(prompt) :], strict=True):
                piece.fold((1.0,), adjoints, new_sums)
            yield Gradients(gradients.parameters, gradients.adjoints[: len(prompt)]), len(inputs_T)
            end = start

    def _start_of_run(self, end: int, tokens: int) -> int:
        start = end - 1
        length = len(self._inputs[start])
        while start and length + len(self._inputs[start - 1]) <= tokens:
            start -= 1
            length += len(self._inputs[start])
        return start

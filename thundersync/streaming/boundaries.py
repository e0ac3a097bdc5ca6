"""Cutting the causal state of a language model between segments of tokens.

What a segment leaves behind for later tokens is a *piece*: a list of tensors, for dense attention the keys and values
of the segment's own tokens in each layer. Later segments read the pieces of all earlier ones. Cut = detach each tensor
of a piece into a leaf; the leaf's gradients are the adjoints that the segment still owes.

    prompt piece --+--> trajectory 0                   GRPO: one segment per trajectory
                   +--> turn 0 piece --> turn 1 ...    OPD:  one segment per turn

The cut falls one token early: a segment's inputs are the last token before it and all but the last of its own, so every
log-probability of a segment comes from its own forward pass, and the prompt needs none.

A layer whose state is replaced rather than appended to (linear attention) fits the same scheme: its piece is the state
after the segment, and a later segment reads only the newest. It needs a class beside `SegmentLayer` and an entry in
LAYERS.

Shapes: B sequences, T tokens of the segment, K positions that need logits, V vocabulary; a state is [1 or B, heads, T,
width].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

from thundersync.streaming.exact_sums import ExactSums
from thundersync.streaming.running_sums import NewSums, RunningSums


@dataclass(slots=True)
class Piece:
    """The cut state of one segment, and the adjoints that later segments have sent back to it."""

    leaves: tuple[Tensor, ...]
    adjoints: RunningSums | ExactSums | None = None
    """One sum per basis; None until something has read the piece and been differentiated."""

    def fold(self, phi: Sequence[float], adjoints: Sequence[Tensor | None], new_sums: NewSums) -> None:
        """Adds what one source owes to this piece, weighted as the source itself is."""
        if self.adjoints is None:
            self.adjoints = new_sums(self.leaves, len(phi))
        self.adjoints.fold(phi, adjoints)


def cut(states: Sequence[Tensor]) -> Piece:
    """Detaches each state tensor into a leaf."""
    return Piece(leaves=tuple(state.detach().requires_grad_(True) for state in states))


class SegmentLayer(DynamicLayer):
    """Attention over the keys and values of earlier pieces and of the segment itself, which are kept apart.

    Earlier pieces hold one sequence and are shared by all B sequences of a batch.
    """

    def __init__(self, earlier: Sequence[tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        self._earlier_keys = [keys for keys, _ in earlier]
        self._earlier_values = [values for _, values in earlier]
        self._earlier_length = sum(keys.shape[-2] for keys in self._earlier_keys)
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        self.keys, self.values = key_states, value_states
        return _append(self._earlier_keys, key_states), _append(self._earlier_values, value_states)

    def get_seq_length(self) -> int:
        return self._earlier_length + (0 if self.keys is None else self.keys.shape[-2])

    @property
    def states(self) -> tuple[Tensor, Tensor]:
        """Keys and values of the segment's own tokens, still attached to the graph."""
        return self.keys, self.values


LAYERS: dict[type, type[SegmentLayer]] = {DynamicLayer: SegmentLayer}
"""The kinds of cache layer that can be cut, by the class that transformers uses for them."""

STATES_PER_LAYER = 2


def run_segment(
    model: nn.Module, inputs_BT: Tensor, context: Sequence[Piece], keep_K: Tensor
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Forward pass of a segment after `context`, oldest piece first.

    Returns logits [B, K, V] at the positions `keep_K` (int64, may be empty), and the segment's states, attached.
    Raises ValueError for an architecture whose state cannot be cut yet.
    """
    layers = []
    for i, stock in enumerate(DynamicCache(config=model.config).layers):
        if type(stock) not in LAYERS:
            known = ", ".join(kind.__name__ for kind in LAYERS)
            raise ValueError(f"layer {i} keeps its state in a {type(stock).__name__}; boundaries can cut: {known}")
        earlier = [piece.leaves[STATES_PER_LAYER * i : STATES_PER_LAYER * (i + 1)] for piece in context]
        layers.append(LAYERS[type(stock)](earlier))
    output = model(input_ids=inputs_BT, past_key_values=Cache(layers=layers), use_cache=True, logits_to_keep=keep_K)
    return output.logits, tuple(state for layer in layers for state in layer.states)


def join(adjoints: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """Adjoints of consecutive pieces as those of the one piece that a forward pass over all their tokens leaves."""
    return [torch.cat(parts, dim=-2) for parts in zip(*adjoints, strict=True)]


def _append(earlier: Sequence[Tensor], new: Tensor) -> Tensor:
    if not earlier:
        return new
    return torch.cat([*(state.expand(new.shape[0], -1, -1, -1) for state in earlier), new], dim=-2)

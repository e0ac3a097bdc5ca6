"""Cutting the causal state of a language model between segments of tokens.

What a segment leaves behind for later tokens is a *piece*: two tensors for each layer, for attention the keys and
values of the segment's own tokens, for a gated delta net its state after the segment (`segment_layers.py`). Cut =
detach each tensor of a piece into a leaf; the leaf's gradients are the adjoints that the segment still owes.

    prompt piece --+--> trajectory 0                   GRPO: one segment per trajectory
                   +--> turn 0 piece --> turn 1 ...    OPD:  one segment per turn

The cut falls one token early: a segment's inputs are the last token before it and all but the last of its own, so every
log-probability of a segment comes from its own forward pass, and the prompt needs none.

Every segment reads all earlier pieces; of a state that is replaced rather than appended to, only the newest.

Shapes: B sequences, T tokens of the segment, K positions that need logits, V vocabulary; a state is [1 or B, ...].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from thundersync.streaming.cuttable import segment_kinds
from thundersync.streaming.exact_sums import ExactSums
from thundersync.streaming.running_sums import NewSums, RunningSums
from thundersync.streaming.segment_layers import STATES_PER_LAYER


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


def run_segment(
    model: nn.Module, inputs_BT: Tensor, context: Sequence[Piece], keep_K: Tensor
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Forward pass of a segment after `context`, oldest piece first.

    Returns logits [B, K, V] at the positions `keep_K` (int64, may be empty), and the segment's states, attached.
    """
    layers = []
    for i, kind in enumerate(segment_kinds(model)):
        layers.append(kind([piece.leaves[STATES_PER_LAYER * i : STATES_PER_LAYER * (i + 1)] for piece in context]))
    output = model(input_ids=inputs_BT, past_key_values=Cache(layers=layers), use_cache=True, logits_to_keep=keep_K)
    return output.logits, tuple(state for layer in layers for state in layer.states)


def join(adjoints: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """Adjoints of consecutive pieces as those of the one piece that a forward pass over all their tokens leaves.

    Several pieces only where all layers append (`cuttable.appends_only`).
    """
    return [torch.cat(parts, dim=-2) for parts in zip(*adjoints, strict=True)]

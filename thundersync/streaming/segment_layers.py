"""The state of one layer while one segment runs: it starts from the cut pieces of earlier segments, attached or not.

A class per way of keeping state, by the class that transformers' `DynamicCache` uses for it (`LAYERS`). Each takes the
layer's two states of the earlier pieces, oldest first, and has the segment's own two as `states` afterwards.

Shapes: B sequences, T tokens of the segment, C channels and W taps of a convolution; earlier pieces hold one sequence,
which all B share.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers.cache_utils import DynamicLayer, LinearAttentionLayer

STATES_PER_LAYER = 2


class AttentionSegment(DynamicLayer):
    """Attention: a piece holds the keys and values of its own tokens, [1 or B, heads, T, width]; all pieces are read.

    Multi-head latent attention (MLA) keeps its compressed latent and the shared rotary key in these two places.
    """

    appends = True

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


class DeltaNetSegment(LinearAttentionLayer):
    """Gated delta net: a piece holds what is left after its last token, so only the newest piece is read.

    That is the last W - 1 inputs of the convolution, [1 or B, C, W - 1] (zeros before the first token), and the
    recurrent matrix, [1 or B, heads, key width, value width]. transformers' own layer copies both into buffers in
    place, which cuts the graph; here they are assigned.
    """

    appends = False

    def __init__(self, earlier: Sequence[tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        # Keeps transformers off its path for single tokens, which overwrites the tail of the convolution in place.
        self.record_past = True
        if earlier:
            self.conv_states[0], self.recurrent_states[0] = earlier[-1]
            self.has_previous_state[0] = True

    def update_conv_state(
        self, conv_states: Tensor, state_idx: int = 0, conv_kernel_size: int | None = None, **kwargs
    ) -> Tensor:
        """Takes the segment's inputs [B, C, T]; returns them behind the tail [B, C, W - 1 + T]."""
        tail = self.conv_states[0]
        if tail is None:
            tail = conv_states.new_zeros(1, conv_states.shape[1], conv_kernel_size - 1)
        full = torch.cat([tail.expand(conv_states.shape[0], -1, -1), conv_states], dim=-1)
        self.conv_states[0] = full[..., full.shape[-1] - tail.shape[-1] :].contiguous()
        return full

    def update_recurrent_state(self, recurrent_states: Tensor, state_idx: int = 0, **kwargs) -> Tensor:
        self.recurrent_states[0] = recurrent_states
        return recurrent_states

    @property
    def states(self) -> tuple[Tensor, Tensor]:
        """Tail of the convolution and recurrent matrix after the segment, still attached to the graph."""
        return self.conv_states[0], self.recurrent_states[0]


SegmentLayer = AttentionSegment | DeltaNetSegment

LAYERS: dict[type, type[SegmentLayer]] = {DynamicLayer: AttentionSegment, LinearAttentionLayer: DeltaNetSegment}
"""By the exact class that transformers uses."""


def _append(earlier: Sequence[Tensor], new: Tensor) -> Tensor:
    if not earlier:
        return new
    return torch.cat([*(state.expand(new.shape[0], -1, -1, -1) for state in earlier), new], dim=-2)

"""Attention and key-value storage for batches made of rows: one row is one token of one sequence.

Every model call has the shape [rows, 1]. A decode row and a prefill row go through the same kernels with the same
inner shapes, so what is computed for a token depends on its history only: not on its neighbours in the batch, not on
how its prefix was cut into calls, and not on whether the prefix came from the cache.

Shape legend: N = rows, S = slots, K = key-value heads, G = query heads of a key-value head, T = positions,
D = head size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from transformers import AttentionInterface
from transformers.cache_utils import Cache, CacheLayerMixin

ROW_ATTENTION = "thundersync_rows"
WIDTH_STEP = 64
"""Attended positions are padded to a multiple of it; the padding is masked and adds exact zeros."""
ROWS_STEP = 16
"""Rows of a call are padded to a multiple of it: matrix products of fewer than four rows, and elementwise functions on
lengths that are no multiple of the vector width, round differently."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Consecutive rows of one call: either the decode rows (row i belongs to slot i) or a stretch of one sequence."""

    first_row: int
    rows: int
    slot: int | None
    """None for the decode rows, which belong to slots 0 .. rows - 1."""
    mask_N1GT: torch.Tensor
    """Additive; 0 at the positions that a row attends to (its own and earlier ones), -inf elsewhere."""


def segment(*, first_row: int, positions_N: list[int], slot: int | None, groups: int, dtype: torch.dtype) -> Segment:
    """A segment whose rows stand at these positions. Shapes: mask [N, 1, G, T] with T a multiple of WIDTH_STEP."""
    rows = len(positions_N)
    width = (max(positions_N) // WIDTH_STEP + 1) * WIDTH_STEP
    hidden = torch.arange(width) > torch.tensor(positions_N)[:, None]
    mask = torch.zeros(rows, width, dtype=dtype).masked_fill_(hidden, float("-inf"))
    return Segment(
        first_row=first_row, rows=rows, slot=slot, mask_N1GT=mask[:, None, None, :].expand(rows, 1, groups, width)
    )


class SlotStates:
    """Keys and values of all slots and layers in one preallocated tensor [layers, 2, S, K, T, D]."""

    def __init__(self, config, *, slots: int, positions: int, dtype: torch.dtype) -> None:
        layer_types = set(getattr(config, "layer_types", None) or ["full_attention"])
        if layer_types != {"full_attention"}:
            raise ValueError(
                f"the transformers engine serves full attention only, this model has {sorted(layer_types)}"
            )
        self.groups = config.num_attention_heads // config.num_key_value_heads
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        # One position more than asked for: idle rows write there, and no row attends to it.
        padded = (positions // WIDTH_STEP + 1) * WIDTH_STEP
        shape = (config.num_hidden_layers, 2, slots, config.num_key_value_heads, padded, head_dim)
        self.tensor = torch.zeros(shape, dtype=dtype)
        self.scratch = padded - 1
        self.layers = [_SlotLayer(self, index) for index in range(config.num_hidden_layers)]
        self.cache = Cache(layers=self.layers)
        self.slots_N = torch.zeros(0, dtype=torch.long)
        self.positions_N = torch.zeros(0, dtype=torch.long)

    def address(self, slots_N: torch.Tensor, positions_N: torch.Tensor) -> None:
        """Where the rows of the next call write their keys and values."""
        self.slots_N, self.positions_N = slots_N, positions_N

    def copy_in(self, slot: int, states: torch.Tensor, length: int) -> None:
        """Fills the first `length` positions of a slot from a prefix cache entry."""
        self.tensor[:, :, slot, :, :length] = states[..., :length, :]

    def copy_out(self, slot: int, length: int) -> torch.Tensor:
        """A copy of the first `length` positions: [layers, 2, K, length, D]."""
        return self.tensor[:, :, slot, :, :length].clone()


class _SlotLayer(CacheLayerMixin):
    """One layer's part of SlotStates, in the shape that transformers' attention modules call."""

    is_sliding = False

    def __init__(self, states: SlotStates, index: int) -> None:
        super().__init__()
        self.states = states
        self.keys, self.values = states.tensor[index]
        self.is_initialized = True

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args, **kwargs):
        """Writes the rows' keys and values [N, K, 1, D]; returns all slots, from which row_attention takes its part."""
        self.keys[self.states.slots_N, :, self.states.positions_N] = key_states[:, :, 0]
        self.values[self.states.slots_N, :, self.states.positions_N] = value_states[:, :, 0]
        return self.keys, self.values

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing to do: the storage is preallocated."""

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.keys.shape[-2], 0

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return self.keys.shape[-2]

    get_max_cache_shape = get_max_length


def row_attention(module, query, key, value, attention_mask, scaling=None, segments=(), **_):
    """Scaled dot-product attention of rows [N, K*G, 1, D] over slots [S, K, T, D], segment by segment.

    The G query heads of a key-value head take the place of query positions, so keys and values are never repeated.
    Rows behind the last segment are padding and come back as they are.
    """
    rows, heads, _, head_dim = query.shape
    q_NKGD = query.reshape(rows, key.shape[1], heads // key.shape[1], head_dim)
    parts = []
    for part in segments:
        width = part.mask_N1GT.shape[-1]
        if part.slot is None:
            k, v = key[: part.rows, :, :width], value[: part.rows, :, :width]
        else:
            k = key[part.slot : part.slot + 1, :, :width].expand(part.rows, -1, -1, -1)
            v = value[part.slot : part.slot + 1, :, :width].expand(part.rows, -1, -1, -1)
        q = q_NKGD[part.first_row : part.first_row + part.rows]
        parts.append(F.scaled_dot_product_attention(q, k, v, attn_mask=part.mask_N1GT, scale=scaling))
    used = segments[-1].first_row + segments[-1].rows
    if used < rows:
        parts.append(q_NKGD[used:])
    out = parts[0] if len(parts) == 1 else torch.cat(parts)
    return out.reshape(rows, 1, heads, head_dim), None


AttentionInterface.register(ROW_ATTENTION, row_attention)

"""Where the embedded models start from: attention heads that copy what followed an earlier occurrence of a token.

Models of this size find these two heads late (an induction circuit), and a demonstration is mostly copying: names go
from an observation into a command. The start is planted, everything is trained:

- layer 0, first key-value head: its query heads look one and two tokens back, by position alone (biases under the
  rotary embedding), and write a projection of what stood there;
- layer 1, first key-value head: its first two query heads look for a token whose predecessor was the current token, and
  add that token itself to the prediction.

All other residual branches start at zero.
"""

from __future__ import annotations

import torch

FAST = 3
"""Rotary pairs, the fastest ones, by which a head counts one or two tokens back."""
SLOW = 6
"""First rotary pair that is slow enough to compare contents at a distance of hundreds of tokens."""
SHARPNESS = 5.0
COPY_GAIN = 8.0
"""Norm of what a copying head adds, in units of an embedding."""


@torch.no_grad()
def plant_copy_heads(model) -> None:
    """Overwrites the first key-value head and its first two query heads of layers 0 and 1 of a Qwen3 model.

    Raises ValueError for a model without attention biases, or with one query head for a key-value head.
    """
    config = model.config
    if not config.attention_bias or config.num_attention_heads < 2 * config.num_key_value_heads:
        raise ValueError("planting needs attention_bias and at least two query heads for a key-value head")
    hidden, size = config.hidden_size, config.head_dim
    pairs = size // 2
    seen, written_1, written_2, copied = (_orthonormal(hidden, size) for _ in range(4))
    norm = model.get_input_embeddings().weight.norm(dim=-1).mean()
    # A normalised token has norm sqrt(hidden), its projection sqrt(size).
    gain = norm / size**0.5
    back, match = model.model.layers[0].self_attn, model.model.layers[1].self_attn

    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
    fast = torch.arange(FAST)
    angles = model.model.rotary_emb.inv_freq[:FAST]
    back.k_proj.weight[:size] = 0
    back.k_proj.bias[:size] = 0
    back.k_proj.bias[fast] = 1
    for head, distance in ((0, 1), (1, 2)):
        back.q_proj.weight[head * size : (head + 1) * size] = 0
        back.q_proj.bias[head * size : (head + 1) * size] = 0
        back.q_proj.bias[head * size + fast] = torch.cos(distance * angles)
        back.q_proj.bias[head * size + pairs + fast] = -torch.sin(distance * angles)
    back.q_norm.weight[:] = SHARPNESS
    back.v_proj.weight[:size] = seen.T
    back.o_proj.weight[:, :size] = gain * written_1
    back.o_proj.weight[:, size : 2 * size] = gain * written_2

    slow = torch.cat([torch.arange(SLOW, pairs), torch.arange(pairs + SLOW, size)])
    match.k_proj.weight[:size] = 0
    match.k_proj.weight[slow] = written_1.T[slow]
    for head in (0, 1):
        match.q_proj.weight[head * size : (head + 1) * size] = 0
        match.q_proj.weight[head * size + slow] = seen.T[slow]
    match.q_norm.weight[:] = SHARPNESS
    match.v_proj.weight[:size] = copied.T
    match.o_proj.weight[:, :size] = COPY_GAIN * gain * copied
    match.o_proj.weight[:, size : 2 * size] = COPY_GAIN * gain * copied


def _orthonormal(rows: int, columns: int) -> torch.Tensor:
    return torch.linalg.qr(torch.randn(rows, columns))[0]

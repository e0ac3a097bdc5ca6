"""Where the embedded models start from: attention heads that copy what followed an earlier occurrence of a token.

Models of this size find such heads late and by chance (an induction circuit), and a demonstration is mostly copying:
names go from an observation into a command. The start is planted, everything is trained:

- layer 0, first key-value head: its query heads look one token back, by position alone (biases under the rotary
  embedding), and write a projection of what stood there into directions that the embeddings leave free;
- layer 1, first key-value head: its query heads look for a token whose predecessor was the current token, and add that
  token itself to the prediction.

All other residual branches start at zero.
"""

from __future__ import annotations

import torch

FAST = 3
"""Rotary pairs, the fastest ones, by which a head finds the token before."""
SLOW = 6
"""First rotary pair that is slow enough to compare contents at a distance of hundreds of tokens."""
COPY_GAIN = 10.0
"""Norm of what a copying head adds, in units of an embedding."""


@torch.no_grad()
def plant_copy_heads(model) -> None:
    """Overwrites the first key-value head of layers 0 and 1 of a Qwen3 model, with its query heads.

    Raises ValueError for a model without attention biases.
    """
    config = model.config
    if not config.attention_bias:
        raise ValueError("planting copy heads needs a model with attention_bias")
    size, pairs = config.head_dim, config.head_dim // 2
    queries = config.num_attention_heads // config.num_key_value_heads
    seen, written, copied = (torch.linalg.qr(torch.randn(config.hidden_size, size))[0] for _ in range(3))
    embedding = model.get_input_embeddings().weight
    embedding -= embedding @ written @ written.T
    # A normalised token has norm sqrt(hidden), its projection about sqrt(size).
    gain = embedding.norm(dim=-1).mean() / size**0.5
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()

    back, match = model.model.layers[0].self_attn, model.model.layers[1].self_attn
    fast = torch.arange(FAST)
    angles = model.model.rotary_emb.inv_freq[:FAST]
    for projection, heads in ((back.k_proj, 1), (back.q_proj, queries)):
        projection.weight[: heads * size] = 0
        projection.bias[: heads * size] = 0
    back.k_proj.bias[fast] = 1
    for first in range(0, queries * size, size):
        back.q_proj.bias[first + fast] = torch.cos(angles)
        back.q_proj.bias[first + pairs + fast] = -torch.sin(angles)
    back.v_proj.weight[:size] = seen.T
    back.o_proj.weight[:, :size] = gain * written

    slow = torch.cat([torch.arange(SLOW, pairs), torch.arange(pairs + SLOW, size)])
    match.k_proj.weight[:size] = 0
    match.k_proj.weight[slow] = written.T[slow]
    match.q_proj.weight[: queries * size] = 0
    for first in range(0, queries * size, size):
        match.q_proj.weight[first + slow] = seen.T[slow]
        match.o_proj.weight[:, first : first + size] = COPY_GAIN / queries * gain * copied
    match.v_proj.weight[:size] = copied.T

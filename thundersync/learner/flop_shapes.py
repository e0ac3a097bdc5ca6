"""What a policy is made of, as far as FLOPs go: the matrix products of each layer, read off its configuration.

    layer = mixer (attention or gated delta net: input projections, core, output projection) + MLP (dense, or experts)

Configurations are transformers' own, or anything with the same attributes; nothing here needs torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Linear:
    """A matrix product with a weight of d_out x d_in, for every token."""

    name: str
    """The module's name, without its layer: what a LoRA target list matches."""
    d_in: int
    d_out: int
    per_token: int = 1
    """Rows per token: the experts that a token is sent to, for a routed expert."""
    follows: str = ""
    """The projection that its input comes from; empty where that is the residual stream or the mixer's core."""
    reads_context: bool = False
    """Whether it runs over earlier segments' tokens again: MLA keeps the latents and expands them at each use."""


@dataclass(frozen=True, slots=True)
class Attention:
    inputs: tuple[Linear, ...]
    output: Linear
    state: frozenset[str]
    """The projections that the cached state comes from."""
    heads: int
    d_qk: int
    d_v: int

    def core(self, rows: int, tokens: int, context: int, causal: bool = True) -> int:
        """Query-key and attention-value products of `rows` sequences: 2 (d_qk + d_v) for each pair and head.

        Causal attention counts once: T queries after C earlier tokens see T (C + T / 2) pairs, not T (C + T).
        """
        twice_pairs = tokens * (2 * context + tokens) if causal else 2 * tokens * (context + tokens)
        return rows * self.heads * (self.d_qk + self.d_v) * twice_pairs


CHUNK = 64
"""Tokens of a chunk of the delta rule (transformers); the last chunk is padded to it, and the padding is executed."""


@dataclass(frozen=True, slots=True)
class DeltaNet:
    """A gated delta net: depthwise convolution over queries, keys and values, then the chunked delta rule."""

    inputs: tuple[Linear, ...]
    output: Linear
    state: frozenset[str]
    heads: int
    """Value heads; key heads are repeated to as many."""
    d_k: int
    d_v: int
    channels: int
    kernel: int

    def convolution(self, rows: int, tokens: int) -> int:
        """As executed: behind the last kernel - 1 inputs of an earlier segment, or as many zeros, and padded by as many
        on both sides, of whose outputs the first ones are thrown away."""
        length = tokens + 2 * (self.kernel - 1)
        return 2 * rows * length * self.channels * self.kernel

    def rule(self, rows: int, tokens: int) -> int:
        """The batched matrix products of the chunked rule, forward."""
        d_k, d_v, s = self.d_k, self.d_v, CHUNK
        within = 2 * s * s * d_k * 2  # beta k k^T and q k^T
        scan = (
            2 * s * d_k * d_v * 3 + 2 * s * s * d_v
        )  # old state to values and to outputs, new state; chunk to outputs
        return rows * self.heads * self.chunks(tokens) * (within + scan)

    def rule_backward(self, rows: int, tokens: int, context: int, state_owes: bool) -> int:
        """Two products for each of the forward ones and one for each triangular solve, less what nothing needs:

        the gradient of a first state that is zero, and the last chunk's new state where nobody asks for it.
        """
        d_k, d_v, s = self.d_k, self.d_v, CHUNK
        solves = 2 * s * s * (d_k + d_v) * self.chunks(tokens)
        unneeded = 2 * s * d_k * d_v * ((0 if context else 2) + (0 if state_owes else 2))
        return 2 * self.rule(rows, tokens) + rows * self.heads * (solves - unneeded)

    def solves(self, rows: int, tokens: int) -> int:
        """Two unit triangular solves of each chunk, s^2 a column. No tool counts them; once more backward."""
        return rows * self.heads * self.chunks(tokens) * CHUNK * CHUNK * (self.d_k + self.d_v)

    @staticmethod
    def chunks(tokens: int) -> int:
        return -(-tokens // CHUNK)


@dataclass(frozen=True, slots=True)
class Layer:
    mixer: Attention | DeltaNet
    mlp: tuple[Linear, ...]


@dataclass(frozen=True, slots=True)
class Shape:
    """A causal language model."""

    layers: tuple[Layer, ...]
    vocabulary: Linear


def shape_of(config: Any) -> Shape:
    """The shape of a policy. Raises ValueError naming an architecture, or a layer, that is not known here."""
    kinds = {"qwen3": _dense, "llama": _dense, "qwen3_5_text": _hybrid, "glm4_moe_lite": _mla_moe}
    if config.model_type not in kinds:
        raise ValueError(
            f"the FLOP ledger does not know the architecture {config.model_type}; it knows {sorted(kinds)}"
        )
    layers = kinds[config.model_type](config)
    return Shape(tuple(layers), Linear("lm_head", config.hidden_size, config.vocab_size))


def _dense(config: Any) -> list[Layer]:
    layer = Layer(_attention(config, gated=False), _mlp(config.hidden_size, config.intermediate_size))
    for i, kind in enumerate(getattr(config, "layer_types", None) or []):
        if kind != "full_attention":
            raise ValueError(f"layer {i} is {kind}; the FLOP ledger knows full_attention for {config.model_type}")
    return [layer] * config.num_hidden_layers


def _hybrid(config: Any) -> list[Layer]:
    mlp = _mlp(config.hidden_size, config.intermediate_size)
    mixers = {"full_attention": _attention(config, gated=True), "linear_attention": _delta_net(config)}
    return [Layer(mixers[kind], mlp) for kind in config.layer_types]


def _mla_moe(config: Any) -> list[Layer]:
    hidden, width = config.hidden_size, config.moe_intermediate_size
    experts = (
        Linear("gate", hidden, config.n_routed_experts),
        Linear("experts.gate_up_proj", hidden, 2 * width, per_token=config.num_experts_per_tok),
        Linear(
            "experts.down_proj", width, hidden, per_token=config.num_experts_per_tok, follows="experts.gate_up_proj"
        ),
        *_mlp(hidden, width * config.n_shared_experts),
    )
    mlps = {"dense": _mlp(hidden, config.intermediate_size), "sparse": experts}
    return [Layer(_mla(config), mlps[kind]) for kind in config.mlp_layer_types]


def _head_dim(config: Any) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def _attention(config: Any, *, gated: bool) -> Attention:
    hidden, d, heads = config.hidden_size, _head_dim(config), config.num_attention_heads
    keys = config.num_key_value_heads * d
    return Attention(
        inputs=(
            Linear("q_proj", hidden, heads * d * (2 if gated else 1)),
            Linear("k_proj", hidden, keys),
            Linear("v_proj", hidden, keys),
        ),
        output=Linear("o_proj", heads * d, hidden),
        state=frozenset({"k_proj", "v_proj"}),
        heads=heads,
        d_qk=d,
        d_v=d,
    )


def _mla(config: Any) -> Attention:
    hidden, heads, rank = config.hidden_size, config.num_attention_heads, config.kv_lora_rank
    d_qk, d_v = config.qk_nope_head_dim + config.qk_rope_head_dim, config.v_head_dim
    if config.q_lora_rank is None:
        queries = (Linear("q_proj", hidden, heads * d_qk),)
    else:
        queries = (
            Linear("q_a_proj", hidden, config.q_lora_rank),
            Linear("q_b_proj", config.q_lora_rank, heads * d_qk, follows="q_a_proj"),
        )
    latent = Linear("kv_a_proj_with_mqa", hidden, rank + config.qk_rope_head_dim)
    expand = Linear("kv_b_proj", rank, heads * (config.qk_nope_head_dim + d_v), follows=latent.name, reads_context=True)
    return Attention(
        inputs=(*queries, latent, expand),
        output=Linear("o_proj", heads * d_v, hidden),
        state=frozenset({latent.name}),
        heads=heads,
        d_qk=d_qk,
        d_v=d_v,
    )


def _delta_net(config: Any) -> DeltaNet:
    hidden, heads = config.hidden_size, config.linear_num_value_heads
    keys, values = config.linear_num_key_heads * config.linear_key_head_dim, heads * config.linear_value_head_dim
    return DeltaNet(
        inputs=(
            Linear("in_proj_qkv", hidden, 2 * keys + values),
            Linear("in_proj_z", hidden, values),
            Linear("in_proj_b", hidden, heads),
            Linear("in_proj_a", hidden, heads),
        ),
        output=Linear("out_proj", values, hidden),
        state=frozenset({"in_proj_qkv", "in_proj_b", "in_proj_a"}),
        heads=heads,
        d_k=config.linear_key_head_dim,
        d_v=config.linear_value_head_dim,
        channels=2 * keys + values,
        kernel=config.linear_conv_kernel_dim,
    )


def _mlp(hidden: int, width: int) -> tuple[Linear, ...]:
    return (
        Linear("gate_proj", hidden, width),
        Linear("up_proj", hidden, width),
        Linear("down_proj", width, hidden, follows="gate_proj"),
    )

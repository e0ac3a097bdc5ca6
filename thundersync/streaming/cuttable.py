"""Which models can be cut between segments, decided from the class and the configuration before any work.

What is asked is whether all that a prefix leaves behind goes through the cache, in layers of `segment_layers.LAYERS`,
and whether the model goes on from there with any number of tokens. Linear attention is admitted by name: many models of
that kind take a carried state for one token at a time only, and would start a longer segment from zero.
"""

from __future__ import annotations

import inspect

from torch import nn
from transformers.cache_utils import DynamicCache, LinearAttentionLayer

from thundersync.streaming.segment_layers import LAYERS, SegmentLayer

DELTA_NETS = ("qwen3_5_text", "qwen3_5_moe_text", "qwen3_next")
"""`config.model_type` of the hybrids whose gated delta nets continue from a carried state."""
SUPPORTED = (
    "causal language models of transformers whose layers are full attention (Qwen3, Llama, ...), multi-head latent "
    f"attention (glm4_moe_lite, ...) or gated delta nets beside attention ({', '.join(DELTA_NETS)})"
)


class CannotCut(ValueError):
    """The model's state cannot be cut; the message names the model, the reason and what is supported."""

    def __init__(self, model: nn.Module, reason: str) -> None:
        super().__init__(f"{type(model).__name__} cannot be cut between turns: {reason}. Supported: {SUPPORTED}")


def segment_kinds(model: nn.Module) -> list[type[SegmentLayer]]:
    """The class of each layer's state while a segment runs. Raises CannotCut for a layer that has none."""
    kinds = []
    for i, stock in enumerate(DynamicCache(config=model.config).layers):
        if type(stock) not in LAYERS:
            raise CannotCut(unwrapped(model), f"layer {i} keeps its state in a {type(stock).__name__}")
        kinds.append(LAYERS[type(stock)])
    return kinds


def appends_only(model: nn.Module) -> bool:
    """Whether every layer keeps something per token; a replaced state is lost when the next segment runs with it."""
    return all(kind.appends for kind in segment_kinds(model))


def unwrapped(model: nn.Module) -> nn.Module:
    """The transformers model inside a PeftModel; any other model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def require_cuttable(model: nn.Module) -> None:
    """Raises CannotCut, without running the model."""
    model = unwrapped(model)
    config = getattr(model, "config", None)
    if config is None or not hasattr(config, "get_text_config"):
        raise CannotCut(model, "it is no transformers model")
    if getattr(config, "is_encoder_decoder", False):
        raise CannotCut(model, "it is an encoder-decoder")
    if config.get_text_config(decoder=True) is not config:
        raise CannotCut(model, f"{config.model_type} wraps a language model among others; take that one alone")
    arguments = inspect.signature(model.forward).parameters
    lacking = [name for name in ("input_ids", "past_key_values", "logits_to_keep") if name not in arguments]
    if lacking:
        raise CannotCut(model, f"its forward pass does not take {', '.join(lacking)}")
    kinds = segment_kinds(model)
    linear = any(issubclass(kind, LinearAttentionLayer) for kind in kinds)
    if (linear or getattr(model, "_is_stateful", False)) and config.model_type not in DELTA_NETS:
        raise CannotCut(model, f"the recurrent state of {config.model_type} is not known to continue from a cut")
    if not any(kind.appends for kind in kinds):
        raise CannotCut(model, "it has no attention layer, from which transformers counts the tokens before a segment")

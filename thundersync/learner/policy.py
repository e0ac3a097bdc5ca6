"""The policy as the learner holds it: loading it, and the tensors that replicas have to serve."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from thundersync.learner.lora import add_lora, plain_tensors
from thundersync.learner.settings import LoRASettings


def load_policy(
    source: str | Path | PreTrainedConfig, *, dtype: torch.dtype = torch.float32, lora: LoRASettings | None = None
) -> PreTrainedModel:
    """A causal LM from a directory (or hub name), or with fresh weights from a configuration; in eval mode.

    With `lora` its weights are frozen and adapters learn; otherwise all weights do.

    Attention is PyTorch's own (`sdpa`): differentiable through a cache on every device and in every dtype.
    """
    if isinstance(source, PreTrainedConfig):
        model = AutoModelForCausalLM.from_config(source, attn_implementation="sdpa", dtype=dtype)
    else:
        model = AutoModelForCausalLM.from_pretrained(str(source), attn_implementation="sdpa", dtype=dtype)
    return add_lora(model, lora) if lora is not None else model.eval()


def served_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Name -> tensor of everything that a replica has to load, tied tensors once, under their first name.

    Adapters are merged into the weights that they adapt, which are then new tensors; all others are the model's own
    memory, not copies. Their hash (`thundersync.policy_hash`) names the policy.
    """
    tensors: dict[str, Tensor] = {}
    seen: set[int] = set()
    alive = list(plain_tensors(model))  # or the identity of a merged tensor could be given to the next one
    for name, tensor in alive:
        if id(tensor) not in seen:
            seen.add(id(tensor))
            tensors[name] = tensor.detach()
    return tensors

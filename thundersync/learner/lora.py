"""LoRA through peft: y = W x + (alpha / rank) B A x, with W frozen and A, B in FP32.

Appendix D.1 gives the targets for Qwen, Appendix D.3 those for GLM-4.7-Flash; experts, embeddings and the output head
stay frozen there. The model keeps its class: only the targeted modules are replaced, so the gradient stream sees a
model in which few parameters learn. Its running sums, masters and moments exist for these alone.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import Linear as LoRALinear
from torch import Tensor, nn

from thundersync.learner.settings import PAPER_TARGETS, LoRASettings

_ADAPTER = "default"


def add_lora(model: nn.Module, settings: LoRASettings) -> nn.Module:
    """Freezes the model and puts adapters onto its targets, in place; it computes what it did before (B = 0).

    Adapters are FP32 whatever the base's dtype; on an FP64 model, a reference, they keep its digits. Raises ValueError
    for targets that the model does not have, and for an architecture without a list where none are given.
    """
    model.requires_grad_(False)
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=0.0,
        target_modules=sorted(_targets(model, settings)),
    )
    on_meta = next(model.parameters()).is_meta
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        inject_adapter_in_model(config, model, adapter_name=_ADAPTER, low_cpu_mem_usage=on_meta)
    for parameter in adapter_parameters(model):
        parameter.data = parameter.data.to(torch.promote_types(parameter.dtype, torch.float32))
    return model.eval()


def adapter_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The trainable parameters of a model that `add_lora` has prepared."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def plain_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The state of the model without adapters, under its own names: W + (alpha / rank) B A where there is one.

    Merged in FP32 and rounded once to the base's dtype; all other tensors are the model's own memory.
    """
    layers = {name: module for name, module in model.named_modules() if isinstance(module, LoRALinear)}
    for name, tensor in model.state_dict(keep_vars=True).items():
        owner, _, rest = name.partition(".base_layer.")
        if rest and owner in layers:
            merged = _merged(layers[owner], tensor) if rest == "weight" else tensor
            yield f"{owner}.{rest}", merged
        elif name.partition(".lora_")[0] not in layers:
            yield name, tensor


@torch.no_grad()
def _merged(layer: LoRALinear, weight: Tensor) -> Tensor:
    delta = layer.get_delta_weight(_ADAPTER)
    return (weight.to(delta.dtype) + delta).to(weight.dtype)


def _targets(model: nn.Module, settings: LoRASettings) -> set[str]:
    present = {name.rpartition(".")[2] for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    if settings.targets is None:
        kind = model.config.model_type
        if kind not in PAPER_TARGETS:
            raise ValueError(
                f"model.lora.targets is null, but the paper lists targets for {', '.join(PAPER_TARGETS)}, not for "
                f"{kind}: name some of {', '.join(sorted(present))}"
            )
        return present & set(PAPER_TARGETS[kind])
    unknown = sorted(set(settings.targets) - present)
    if unknown:
        raise ValueError(
            f"model.lora.targets: the model has no linear module named {', '.join(unknown)}; "
            f"it has {', '.join(sorted(present))}"
        )
    return set(settings.targets)

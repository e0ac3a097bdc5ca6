"""A policy with wider MLPs that computes the same function: what a gradient costs becomes a setting."""

from __future__ import annotations

import copy


def widened(model, intermediate: int, *, seed: int):
    """The model with `intermediate` units in every MLP. Units added read as units do at the start of training and
    write nothing yet, so the function is the same, up to rounding, until an optimizer step uses them.

    Raises ValueError for fewer units than there are.
    """
    import torch

    config = copy.deepcopy(model.config)
    before = config.intermediate_size
    if intermediate < before:
        raise ValueError(f"model.intermediate is {intermediate}: the warm-started policy has {before} units already")
    config.intermediate_size = intermediate
    wide = type(model)(config)
    generator = torch.Generator().manual_seed(seed)
    old = dict(model.named_parameters())
    with torch.no_grad():
        for name, parameter in wide.named_parameters():
            if name.endswith(("mlp.gate_proj.weight", "mlp.up_proj.weight")):
                torch.nn.init.normal_(parameter, std=config.initializer_range / 4, generator=generator)
                parameter[:before] = old[name]
            elif name.endswith("mlp.down_proj.weight"):
                parameter.zero_()
                parameter[:, :before] = old[name]
            else:
                parameter.copy_(old[name])
    return wide.eval()

"""One hash for "which policy is this": the learner states it, every rollout replica must return it (Algorithm 1).

Neutral ground: learner and rollout do not know each other, but must agree on this number.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def policy_hash(tensors: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 (hex) over the tensors sorted by name: name, dtype, shape, bytes.

    Tensors that share their memory (tied embeddings) count once, under the name that comes first in the mapping, so
    that `state_dict()` and `dict(named_parameters())` of a model without buffers give the same hash.
    """
    import torch

    unique: dict[str, torch.Tensor] = {}
    seen: set[tuple[int, tuple[int, ...], torch.dtype]] = set()
    for name, tensor in tensors.items():
        identity = (tensor.data_ptr(), tuple(tensor.shape), tensor.dtype)
        if identity not in seen or tensor.numel() == 0:
            seen.add(identity)
            unique[name] = tensor
    digest = hashlib.sha256()
    for name in sorted(unique):
        tensor = unique[name].detach().cpu().contiguous()
        digest.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        # Viewed as bytes, because numpy has no bfloat16; reshape first, because a scalar cannot be viewed.
        digest.update(memoryview(tensor.reshape(-1).view(torch.uint8).numpy()))
    return digest.hexdigest()

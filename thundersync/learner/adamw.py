"""AdamW element by element, with moments in FP32 or, as in Table 5, in BF16.

    m = b1 m + (1 - b1) g        v = b2 v + (1 - b2) g^2
    theta = theta - lr (m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps) + weight_decay theta)

BF16 has 8 significant bits: a second moment that should shrink by a factor of 0.999 rounds to what it was, for ever. So
BF16 moments are rounded up or down at random, with probabilities that make the expectation exact. The random bits are a
function of (update, element) only: however the elements are sharded over ranks, each rounds the same way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

BLOCK = 1 << 18
"""Elements updated at a time: bounds the FP32 copies of BF16 moments."""
NOISE_PER_COUNT = 8
"""One count of Philox yields 256 bits; an element takes 16 for each of its two moments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamWSettings:
    """Table 5; constant learning rate, no warm-up."""

    learning_rate: float = 1e-6
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    max_norm: float = 1.0
    """Global gradient norm above which the direction is scaled down."""
    moments: torch.dtype = torch.float32
    """Storage of both moments; bfloat16 rounds stochastically."""

    def __post_init__(self) -> None:
        if self.moments not in (torch.float32, torch.bfloat16):
            raise ValueError(f"AdamWSettings: moments must be torch.float32 or torch.bfloat16, got {self.moments}")


def adamw_(
    theta: Tensor, moments: tuple[Tensor, Tensor], gradient: Tensor, settings: AdamWSettings, update: int, offset: int
) -> None:
    """One descent step, in place, on elements offset, offset + 1, ... of the flat masters.

    theta     FP32 [elements];  moments, two of dtype settings.moments [elements];  gradient, FP32 [elements]
    update    t, from 1
    """
    for start in range(0, len(theta), BLOCK):
        block = slice(start, start + BLOCK)
        m, v = (moment[block].to(theta.dtype) for moment in moments)  # views, but for BF16
        _step(theta[block], m, v, gradient[block], settings, update)
        if moments[0].dtype == torch.bfloat16:
            noise = rounding_noise(update, offset + start, len(m))
            for moment, exact, bits in zip(moments, (m, v), noise, strict=True):
                moment[block] = round_to_bf16(exact, bits.to(exact.device))


def _step(theta: Tensor, m: Tensor, v: Tensor, g: Tensor, s: AdamWSettings, update: int) -> None:
    b1, b2 = s.betas
    theta.mul_(1 - s.learning_rate * s.weight_decay)
    m.lerp_(g, 1 - b1)
    v.mul_(b2).addcmul_(g, g, value=1 - b2)
    denominator = v.sqrt().div_(math.sqrt(1 - b2**update)).add_(s.eps)
    theta.addcdiv_(m, denominator, value=-s.learning_rate / (1 - b1**update))


def round_to_bf16(exact: Tensor, noise: Tensor) -> Tensor:
    """FP32 to one of its two BF16 neighbours: the mean over noise 0 ... 65535 (int32) is the FP32 value itself.

    BF16 is the upper half of FP32's bits. Adding noise to the lower half carries into the upper one for just the share
    of noise values that the lower half has of 65536; this grows the magnitude, whatever the sign.
    """
    return (exact.view(torch.int32) + noise).bitwise_and_(-65536).view(torch.float32).to(torch.bfloat16)


def rounding_noise(update: int, offset: int, count: int) -> tuple[Tensor, Tensor]:
    """For each moment, int32 [count] uniform on 0 ... 65535, for elements offset, offset + 1, ... at this update.

    Philox counts, so any element's bits are found without drawing those before it.
    """
    skipped = offset % NOISE_PER_COUNT
    philox = np.random.Philox(key=update, counter=offset // NOISE_PER_COUNT)
    bits = philox.random_raw((skipped + count + 1) // 2).view(np.uint32)[skipped : skipped + count]
    return torch.from_numpy((bits & 0xFFFF).astype(np.int32)), torch.from_numpy((bits >> 16).astype(np.int32))

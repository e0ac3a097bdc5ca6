"""Running sums: one per basis, in host memory, over a fixed list of tensors.

G_b = sum_i phi_b(i) H_i          `fold`, one source at a time
g   = sum_b beta_b G_b            `combine`, when the scope closes; for GRPO this is Equation 7
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from thundersync.streaming.exact_sums import ExactSums


class RunningSums:
    """`bases` sums over tensors shaped like `like`; each sum is one flat buffer, FP32 unless told otherwise.

    The buffers live in host memory (pinned when the gradients come from a GPU), whatever the model's dtype and device.
    """

    def __init__(self, like: Sequence[Tensor], bases: int, dtype: torch.dtype = torch.float32) -> None:
        self._shapes = [tensor.shape for tensor in like]
        size = sum(shape.numel() for shape in self._shapes)
        pinned = any(tensor.is_cuda for tensor in like)
        self._flat_b = [torch.zeros(size, dtype=dtype, pin_memory=pinned) for _ in range(bases)]
        self._views_b = [self.split(flat) for flat in self._flat_b]

    @property
    def nbytes(self) -> int:
        return sum(flat.nbytes for flat in self._flat_b)

    def split(self, flat: Tensor) -> list[Tensor]:
        """Views of a flat buffer, one per tensor, in their order and shapes."""
        parts = flat.split([shape.numel() for shape in self._shapes])
        return [part.view(shape) for part, shape in zip(parts, self._shapes, strict=True)]

    def fold(self, phi: Sequence[float], gradients: Sequence[Tensor | None]) -> None:
        """G_b += phi_b * gradients. None stands for a zero gradient; a zero phi_b adds nothing and costs nothing."""
        present = [i for i, gradient in enumerate(gradients) if gradient is not None]
        flat = self._flat_b[0]
        host = [gradients[i].to(device=flat.device, dtype=flat.dtype) for i in present]
        for phi_b, views in zip(phi, self._views_b, strict=True):
            if host and phi_b != 0.0:
                torch._foreach_add_([views[i] for i in present], host, alpha=phi_b)

    def reduce(self, add_up: Callable[[Tensor], None]) -> None:
        """Hands each flat buffer to `add_up`, which adds it up over ranks in place."""
        for flat in self._flat_b:
            add_up(flat)

    def combine(self, beta: Sequence[float]) -> list[Tensor]:
        """sum_b beta_b G_b in the shapes of `like`. In place, so that closing needs no further buffer: the sums end."""
        g = self._flat_b[0].mul_(beta[0])
        for beta_b, G_b in zip(beta[1:], self._flat_b[1:], strict=True):
            g.add_(G_b, alpha=beta_b)
        return self.split(g)


NewSums = Callable[[Sequence[Tensor], int], RunningSums | ExactSums]
"""(like, bases) -> sums that start at zero: the one place that decides between FP32 and exact arithmetic."""

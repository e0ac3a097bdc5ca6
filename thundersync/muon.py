"""Muon: momentum whose matrix updates are orthogonalised, with Adam for everything else. Used by the warm start only.

U = NewtonSchulz(momentum of G) has singular values near one, so every direction of a weight matrix moves at the same
rate; small models learn to copy in a fraction of Adam's steps. (Jordan et al., 2024.)
"""

from __future__ import annotations

import torch

MOMENTUM = 0.95
# Quintic whose iteration drives singular values in (0, 1] towards one.
A, B, C = 3.4445, -4.7750, 2.0315


def orthogonalised(gradient: torch.Tensor, iterations: int = 5) -> torch.Tensor:
    """[rows, columns] -> U V^T approximately, for gradient = U S V^T."""
    x = gradient / (gradient.norm() + 1e-7)
    tall = x.shape[0] > x.shape[1]
    if tall:
        x = x.T
    for _ in range(iterations):
        gram = x @ x.T
        x = A * x + (B * gram + C * gram @ gram) @ x
    return x.T if tall else x


class Muon:
    """Matrices outside the embeddings by Muon, the rest by Adam; `step` also clears the gradients."""

    def __init__(self, model: torch.nn.Module, *, matrix_rate: float, rate: float) -> None:
        named = list(model.named_parameters())
        self.matrix_rate, self.rate = matrix_rate, rate
        self.matrices = [p for name, p in named if p.ndim == 2 and "embed" not in name]
        self.momenta = [torch.zeros_like(p) for p in self.matrices]
        rest = [p for name, p in named if p.ndim != 2 or "embed" in name]
        self.adam = torch.optim.AdamW(rest, lr=rate, betas=(0.9, 0.98), weight_decay=0.0)

    @torch.no_grad()
    def step(self, scale: float) -> None:
        """One step at `scale` times the learning rates."""
        for matrix, momentum in zip(self.matrices, self.momenta, strict=True):
            momentum.lerp_(matrix.grad, 1 - MOMENTUM)
            update = orthogonalised(matrix.grad.lerp(momentum, MOMENTUM))
            aspect = max(1.0, matrix.shape[0] / matrix.shape[1]) ** 0.5
            matrix.add_(update, alpha=-self.matrix_rate * scale * aspect)
            matrix.grad = None
        for group in self.adam.param_groups:
            group["lr"] = self.rate * scale
        self.adam.step()
        self.adam.zero_grad()

"""The one optimizer step of a logical batch: theta_{k+1} = Opt(theta_k, clip(g_k)) (Equation 3, Table 5).

FP32 master weights: at a learning rate of 1e-6 a BF16 parameter of 0.02 would never move. The model's parameters are
casts of the masters, made after each step. All masters lie in one flat tensor: AdamW works element by element.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamWSettings:
    """Table 5; constant learning rate, no warm-up."""

    learning_rate: float = 1e-6
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    max_norm: float = 1.0
    """Global gradient norm above which the direction is scaled down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepNorms:
    gradient_norm: float
    """Global norm of the direction before clipping."""
    clip_coefficient: float
    """min(1, max_norm / norm)."""


class MasterAdamW:
    """AdamW on FP32 masters of a model's trainable parameters."""

    def __init__(self, model: nn.Module, settings: AdamWSettings) -> None:
        self.settings = settings
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self._names = [name for name, _ in named]
        self._parameters = [p for _, p in named]
        self._flat = torch.cat(
            [p.detach().to(torch.promote_types(p.dtype, torch.float32)).reshape(-1) for p in self._parameters]
        )
        self._adamw = torch.optim.AdamW(
            [self._flat],
            lr=settings.learning_rate,
            betas=settings.betas,
            eps=settings.eps,
            weight_decay=settings.weight_decay,
        )

    def step(self, direction: Mapping[str, Tensor]) -> StepNorms:
        """One step along the ascent direction, name -> tensor for exactly the trainable parameters.

        Raises ValueError when the names differ and FloatingPointError when the norm is not finite; nothing moves then.
        """
        if direction.keys() != set(self._names):
            odd = sorted(direction.keys() ^ set(self._names))
            raise ValueError(f"the direction does not match the trainable parameters, see: {', '.join(odd[:5])}")
        ascent = torch.cat([direction[name].reshape(-1) for name in self._names]).to(self._flat)
        norm = float(torch.linalg.vector_norm(ascent, dtype=torch.float64))
        if norm - norm != 0.0:
            raise FloatingPointError(f"the global gradient norm is {norm}; no step is taken")
        coefficient = min(1.0, self.settings.max_norm / norm) if norm else 1.0
        self._flat.grad = ascent.mul_(-coefficient)  # AdamW descends
        self._adamw.step()
        self._flat.grad = None
        self._publish_masters()
        return StepNorms(gradient_norm=norm, clip_coefficient=coefficient)

    def state(self) -> dict[str, Tensor]:
        """Masters, both moments and the step count, as tensors; the whole state."""
        state = self._adamw.state.get(self._flat, {})
        return {
            "master": self._flat,
            "exp_avg": state.get("exp_avg", torch.zeros_like(self._flat)),
            "exp_avg_sq": state.get("exp_avg_sq", torch.zeros_like(self._flat)),
            "step": torch.as_tensor(state.get("step", 0.0), dtype=torch.float32),
        }

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restores `state()` and casts the masters into the model. Raises ValueError for another number of weights."""
        if state["master"].shape != self._flat.shape:
            saved, own = state["master"].numel(), self._flat.numel()
            raise ValueError(f"the optimizer state has {saved} weights, the model {own} trainable ones")
        self._flat.copy_(state["master"])
        moments = {name: state[name].to(self._flat).clone() for name in ("exp_avg", "exp_avg_sq")}
        self._adamw.state[self._flat] = {"step": state["step"].clone(), **moments}
        self._publish_masters()

    @torch.no_grad()
    def _publish_masters(self) -> None:
        masters = self._flat.split([p.numel() for p in self._parameters])
        for parameter, master in zip(self._parameters, masters, strict=True):
            parameter.copy_(master.view_as(parameter))

"""The one optimizer step of a logical batch: theta_{k+1} = Opt(theta_k, clip(g_k)) (Equation 3, Table 5).

FP32 master weights: at a learning rate of 1e-6 a BF16 parameter of 0.02 would never move. The model's parameters are
casts of the masters, made after each step. All masters lie in one flat tensor: AdamW works element by element, so each
rank steps its contiguous shard of it and the stepped shards are gathered on all ranks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from thundersync.learner.adamw import AdamWSettings, adamw_
from thundersync.learner.ranks import ALONE, RankGroup, RanksRefused

NORM_TOLERANCE = 1e-9
"""Relative: ranks with another number of threads may add up the same squares in another order, in FP64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepNorms:
    gradient_norm: float
    """Global norm of the direction before clipping."""
    clip_coefficient: float
    """min(1, max_norm / norm)."""


class MasterAdamW:
    """AdamW on FP32 masters of a model's trainable parameters; this rank's shard of masters and moments.

    `step`, `state` are collectives: all ranks call them.
    """

    def __init__(self, model: nn.Module, settings: AdamWSettings, ranks: RankGroup = ALONE) -> None:
        self.settings, self._ranks = settings, ranks
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self._names = [name for name, _ in named]
        self._parameters = [p for _, p in named]
        self._weights = sum(p.numel() for p in self._parameters)
        self._shard = ranks.shard(self._weights)
        self._master = torch.cat([p.detach().to(_wide(p)).reshape(-1) for p in self._parameters])[self._shard].clone()
        self._moments = tuple(torch.zeros_like(self._master, dtype=self._moments_dtype) for _ in range(2))
        self._steps = 0

    @property
    def _moments_dtype(self) -> torch.dtype:
        """As the settings say; an FP64 model is a reference and keeps its digits."""
        return torch.float64 if self._master.dtype == torch.float64 else self.settings.moments

    @property
    def shard_bytes(self) -> dict[str, int]:
        """Bytes that this rank holds: masters, and both moments together."""
        return {"master": self._master.nbytes, "moments": sum(moment.nbytes for moment in self._moments)}

    def step(self, direction: Mapping[str, Tensor]) -> StepNorms:
        """One step along the ascent direction, name -> tensor for exactly the trainable parameters, equal on all ranks.

        Raises ValueError when the names differ, FloatingPointError when the norm is not finite and RanksRefused when
        the ranks have different norms; nothing moves then, on any rank.
        """
        if direction.keys() != set(self._names):
            odd = sorted(direction.keys() ^ set(self._names))
            raise ValueError(f"the direction does not match the trainable parameters, see: {', '.join(odd[:5])}")
        ascent = torch.cat([direction[name].reshape(-1) for name in self._names]).to(self._master.dtype)
        norm = self._agreed_norm(ascent)
        coefficient = min(1.0, self.settings.max_norm / norm) if norm else 1.0
        gradient = ascent[self._shard].to(self._master.device).mul_(-coefficient)  # AdamW descends
        self._steps += 1
        adamw_(self._master, self._moments, gradient, self.settings, self._steps, self._shard.start)
        self._cast_into_model(self._ranks.gather_shards(self._master, self._weights))
        return StepNorms(gradient_norm=norm, clip_coefficient=coefficient)

    def state(self) -> dict[str, Tensor]:
        """Masters, both moments and the step count, as tensors: the whole state, of all ranks, on every rank."""
        shards = {"master": self._master, "exp_avg": self._moments[0], "exp_avg_sq": self._moments[1]}
        state = {name: self._ranks.gather_shards(shard, self._weights) for name, shard in shards.items()}
        return {**state, "step": torch.tensor(float(self._steps))}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restores `state()`, saved by any number of ranks, and casts the masters into the model.

        Raises ValueError for another number of weights or another dtype of the moments.
        """
        if state["master"].numel() != self._weights:
            saved, own = state["master"].numel(), self._weights
            raise ValueError(f"the optimizer state has {saved} weights, the model {own} trainable ones")
        if state["exp_avg"].dtype != self._moments_dtype:
            saved, own = state["exp_avg"].dtype, self._moments_dtype
            raise ValueError(f"the optimizer state has moments in {saved}, the settings say {own}")
        self._master.copy_(state["master"][self._shard])
        for name, moment in zip(("exp_avg", "exp_avg_sq"), self._moments, strict=True):
            moment.copy_(state[name][self._shard])
        self._steps = int(state["step"])
        self._cast_into_model(state["master"])

    def _agreed_norm(self, ascent: Tensor) -> float:
        norms = self._ranks.gather(float(torch.linalg.vector_norm(ascent, dtype=torch.float64)))
        if not all(map(math.isfinite, norms)):
            where = "" if self._ranks.size == 1 else f" (ranks 0, 1, ...: {norms})"
            raise FloatingPointError(f"the global gradient norm is {sum(norms)}{where}; no step is taken")
        if max(norms) - min(norms) > NORM_TOLERANCE * max(norms):
            stated = ", ".join(f"rank {rank} has {norm}" for rank, norm in enumerate(norms))
            raise RanksRefused(f"refused on all ranks: they disagree on the global gradient norm: {stated}")
        return norms[0]

    @torch.no_grad()
    def _cast_into_model(self, masters: Tensor) -> None:
        parts = masters.split([p.numel() for p in self._parameters])
        for parameter, master in zip(self._parameters, parts, strict=True):
            parameter.copy_(master.view_as(parameter))


def _wide(parameter: Tensor) -> torch.dtype:
    """FP32 for FP32 and BF16 parameters, FP64 for FP64."""
    return torch.promote_types(parameter.dtype, torch.float32)

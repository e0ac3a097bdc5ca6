"""What must hold for a streamed gradient to be the synchronous one; each guard says what broke."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from thundersync.streaming.scores import SourceStatistics


def require_no_dropout(model: nn.Module) -> None:
    """Raises RuntimeError when a forward pass would be random: every pass of a batch must see the same function."""
    if not any(module.training for module in model.modules()):
        return
    rates = {
        name: value
        for name, value in vars(getattr(model, "config", object())).items()
        if ("dropout" in name or "pdrop" in name) and isinstance(value, float) and value > 0
    }
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.training and module.p > 0:
            rates[name or type(module).__name__] = module.p
    if rates:
        raise RuntimeError(f"dropout is active ({rates}): call model.eval(), or set these rates to 0")


def require_finite(tensors: Sequence[Tensor | None], source: str) -> None:
    """Raises FloatingPointError naming the source when any value is NaN or infinite."""
    if not _sums([tensor for tensor in tensors if tensor is not None]).isfinite().all():
        raise FloatingPointError(f"{source}: its gradient is not finite; it was not folded")


def require_close(statistics: SourceStatistics, tolerance: float | None, source: str) -> None:
    """Raises ValueError when the rollout engine's log-probability of some token is too far from the learner's.

    `tolerance` is in nats; None allows any distance, as tokens of an earlier policy need it.
    """
    if tolerance is not None and statistics.mismatch_max > tolerance:
        largest, mean, kl = (f"{statistics.mismatch[name]:.3g}" for name in ("max", "mean", "kl"))
        raise ValueError(
            f"{source}: the rollout engine's log-probabilities are up to {largest} nats from the learner's (mean "
            f"{mean}, KL {kl}), more than logprob_tolerance, {tolerance:g}; it was not folded. Either the engine "
            "serves other weights or computes otherwise, or its precision needs a larger logprob_tolerance"
        )


def _sums(tensors: Sequence[Tensor]) -> Tensor:
    """The sum of each tensor: the cheapest pass over the values, which NaN and infinities survive."""
    return torch.stack([tensor.sum(dtype=torch.promote_types(tensor.dtype, torch.float32)) for tensor in tensors])


class FixedParameters:
    """Notices that parameters changed while a batch is open: all gradients of a batch belong to one policy version."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = parameters
        self._identity = self._identities()
        self._values = self._fingerprint()

    def check(self) -> None:
        """Cheap, before each source: in-place updates and replaced storage."""
        if self._identities() != self._identity:
            self._fail()

    def check_values(self) -> None:
        """Once, when the batch closes: also a write through `.data`, which leaves no other trace."""
        self.check()
        if not torch.equal(self._fingerprint(), self._values):
            self._fail()

    def _identities(self) -> list[tuple[int, int]]:
        return [(p._version, p.data_ptr()) for p in self._parameters]

    def _fingerprint(self) -> Tensor:
        return torch.stack(
            [norm.float() for norm in torch._foreach_norm([p.detach() for p in self._parameters], ord=1)]
        )

    @staticmethod
    def _fail() -> None:
        raise RuntimeError("the parameters changed while a batch was open; step only after close(), or abort() it")

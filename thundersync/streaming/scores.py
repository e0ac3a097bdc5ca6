"""Log-probabilities of a segment's scored tokens, and the statistics that a record keeps of them.

Shapes: T tokens of a segment, A its scored tokens, N scored tokens of a batch of segments, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Segment:
    """Tokens that are learnt from in one forward pass."""

    inputs_T: Tensor
    """int64: the last token before the segment, then all but the last of its own."""
    targets_T: Tensor
    """int64: the segment's own tokens."""
    positions_A: Tensor
    """int64: the scored ones among them."""
    teacher_A: Tensor | None
    """Teacher log-probabilities of the scored tokens."""
    rollout_A: Tensor | None
    """The rollout engine's log-probabilities of the scored tokens."""

    @property
    def scored_tokens(self) -> int:
        return len(self.positions_A)


def make_segment(
    name: str, previous: int, ids: Any, scored: Any, teacher: Any = None, rollout: Any = None, *, device: torch.device
) -> Segment:
    """Checks and aligns what a source consists of; `previous` is the token before it.

    Raises ValueError naming the source when lengths do not fit, or a log-probability is not finite.
    """
    targets_T = torch.as_tensor(ids, device=device).long().reshape(-1)
    scored_T = torch.as_tensor(scored, device=device).bool().reshape(-1)
    if len(scored_T) != len(targets_T):
        raise ValueError(f"{name}: the mask has {len(scored_T)} entries for {len(targets_T)} tokens")
    positions_A = scored_T.nonzero().reshape(-1)
    given = []
    for what, values in (("teacher", teacher), ("rollout", rollout)):
        if values is None:
            given.append(None)
            continue
        values_A = torch.as_tensor(values, device=device).reshape(-1)
        if len(values_A) != len(positions_A):
            raise ValueError(f"{name}: {len(values_A)} {what} log-probabilities for {len(positions_A)} scored tokens")
        if not values_A.isfinite().all():
            raise ValueError(f"{name}: a {what} log-probability is not finite")
        given.append(values_A)
    inputs_T = torch.cat([targets_T.new_tensor([previous]), targets_T[:-1]])[: len(targets_T)]
    return Segment(inputs_T, targets_T, positions_A, *given)


def sampled_logprobs(logits_NV: Tensor, ids_N: Tensor) -> tuple[Tensor, Tensor]:
    """log pi of the given ids [N] (differentiable) and the entropy in nats [N] (detached), in FP32 or better."""
    logits_NV = logits_NV.to(torch.promote_types(logits_NV.dtype, torch.float32))
    all_NV = torch.log_softmax(logits_NV, dim=-1)
    with torch.no_grad():
        entropy_N = -(all_NV.exp() * all_NV).sum(-1)
    return all_NV.gather(-1, ids_N[:, None])[:, 0], entropy_N


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStatistics:
    """Sums and counts over scored tokens, never means, so that any split of a batch adds up to the same."""

    scored_tokens: int = 0
    entropy_sum: float = 0.0
    """Nats."""
    compared_tokens: int = 0
    """Scored tokens that came with the rollout engine's log-probability."""
    mismatch_max: float = 0.0
    """Largest absolute difference between rollout and learner log-probability."""
    mismatch_abs_sum: float = 0.0
    kl_sum: float = 0.0
    """Sum of rollout - learner log-probability: its mean estimates KL(rollout || learner)."""

    def __add__(self, other: SourceStatistics) -> SourceStatistics:
        return SourceStatistics(
            scored_tokens=self.scored_tokens + other.scored_tokens,
            entropy_sum=self.entropy_sum + other.entropy_sum,
            compared_tokens=self.compared_tokens + other.compared_tokens,
            mismatch_max=max(self.mismatch_max, other.mismatch_max),
            mismatch_abs_sum=self.mismatch_abs_sum + other.mismatch_abs_sum,
            kl_sum=self.kl_sum + other.kl_sum,
        )

    @property
    def entropy(self) -> float:
        """Mean entropy per scored token; 0 where nothing was scored."""
        return self.entropy_sum / max(1, self.scored_tokens)

    @property
    def mismatch(self) -> dict[str, float]:
        """max, mean (absolute) and kl of the log-probability mismatch; zeros where nothing was compared."""
        count = max(1, self.compared_tokens)
        return {"max": self.mismatch_max, "mean": self.mismatch_abs_sum / count, "kl": self.kl_sum / count}


@torch.no_grad()
def statistics_of(segments: Sequence[Segment], logprobs_N: Tensor, entropy_N: Tensor) -> SourceStatistics:
    """Statistics of segments whose scored tokens lie one after the other in `logprobs_N` and `entropy_N`."""
    total = SourceStatistics(scored_tokens=len(logprobs_N), entropy_sum=float(entropy_N.double().sum()))
    for segment, learner_A in zip(segments, logprobs_N.split([s.scored_tokens for s in segments]), strict=True):
        if segment.rollout_A is None or not len(learner_A):
            continue
        gap_A = segment.rollout_A.double() - learner_A.double()
        total += SourceStatistics(
            compared_tokens=len(gap_A),
            mismatch_max=float(gap_A.abs().max()),
            mismatch_abs_sum=float(gap_A.abs().sum()),
            kl_sum=float(gap_A.sum()),
        )
    return total

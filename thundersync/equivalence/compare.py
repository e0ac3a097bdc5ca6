"""How far apart two replays are (Appendix G), and how far they may be (grade 1 of the design)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from thundersync.equivalence.replay import Replay

BLOCK = 1 << 22
"""Numbers that are compared at a time."""
DIRECTION_FP64 = 1e-12
"""Largest relative error of the first direction in FP64."""
DIRECTION_FP32 = 2e-6
"""The same in FP32, of the embedded models."""
GAP_FP32 = 5e-4
"""Largest parameter gap after any update: Adam's first steps are sign steps, so coordinates near zero set it."""
GAP_FP32_TENTH = 1e-4
"""Largest parameter gap after the tenth update."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One replay against another that learnt the same batches from the same parameters."""

    relative_error: float
    """||g - g_ref|| / ||g_ref|| of the first directions, before clipping."""
    one_minus_cosine: float
    gaps: tuple[float, ...]
    """Delta_k of Equation 30 after each update."""


def compare(ours: Replay, reference: Replay) -> Comparison:
    """Raises ValueError when the replays do not start from the same parameters."""
    if _norm(lambda ours, reference: ours - reference, ours.start_P, reference.start_P) != 0:
        raise ValueError("the replays start from different parameters: their gap would mean nothing")
    return Comparison(
        relative_error=relative_error(ours.direction_P, reference.direction_P),
        one_minus_cosine=one_minus_cosine(ours.direction_P, reference.direction_P),
        gaps=tuple(
            parameter_gap(a, b, reference.start_P) for a, b in zip(ours.parameters, reference.parameters, strict=True)
        ),
    )


def relative_error(found_P: Tensor, expected_P: Tensor) -> float:
    return _norm(lambda found, expected: found - expected, found_P, expected_P) / _norm(lambda x: x, expected_P)


def one_minus_cosine(a_P: Tensor, b_P: Tensor) -> float:
    """1 - cos(a, b) = ||a/|a| - b/|b|||^2 / 2, which does not lose its digits near zero."""
    of_a, of_b = (_norm(lambda x: x, vector_P) for vector_P in (a_P, b_P))
    return _norm(lambda a, b: a / of_a - b / of_b, a_P, b_P) ** 2 / 2


def parameter_gap(ours_P: Tensor, reference_P: Tensor, start_P: Tensor) -> float:
    """Delta_k = ||theta_ours_k - theta_ref_k|| / ||theta_ref_k - theta_0|| (Equation 30)."""
    gap = _norm(lambda ours, reference: ours - reference, ours_P, reference_P)
    return gap / _norm(lambda reference, start: reference - start, reference_P, start_P)


def _norm(of: Callable[..., Tensor], *vectors_P: Tensor) -> float:
    """Norm of a vector made of others, elementwise, in FP64: block by block, for copies of a large model do not fit."""
    blocks = zip(*(vector_P.split(BLOCK) for vector_P in vectors_P), strict=True)
    return math.sqrt(sum(float(of(*(block.double() for block in some)).square().sum()) for some in blocks))


def direction_bound(rounding: float) -> float:
    """The bound on FP32 first directions for a pretrained model, `rounding` being Sync's own distance from its FP64.

    Many layers round more than the few that DIRECTION_FP32 was set for. What streaming adds may then be as much as
    what FP32 does to Sync, and no more.
    """
    return max(DIRECTION_FP32, rounding)


def broken_fp32(comparison: Comparison, direction: float = DIRECTION_FP32) -> list[str]:
    """What exceeds a threshold of FP32, in words; empty when all is well. `direction` bounds the first direction."""
    found = []
    if not comparison.relative_error < direction:
        found.append(f"first direction {comparison.relative_error:.2e}, threshold {direction:.2g}")
    for k, gap in enumerate(comparison.gaps, start=1):
        if not gap < GAP_FP32:
            found.append(f"parameter gap {gap:.2e} after update {k}, threshold {GAP_FP32:.0e}")
    if len(comparison.gaps) >= 10 and not comparison.gaps[9] < GAP_FP32_TENTH:
        found.append(f"parameter gap {comparison.gaps[9]:.2e} after the tenth update, threshold {GAP_FP32_TENTH:.0e}")
    return found


def broken_fp64(comparison: Comparison) -> list[str]:
    if comparison.relative_error < DIRECTION_FP64:
        return []
    return [f"FP64 first direction {comparison.relative_error:.2e}, threshold {DIRECTION_FP64:.0e}"]

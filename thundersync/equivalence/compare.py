"""How far apart two replays are (Appendix G), and how far they may be (grade 1 of the design)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from thundersync.equivalence.replay import Replay

DIRECTION_FP64 = 1e-12
"""Largest relative error of the first direction in FP64."""
DIRECTION_FP32 = 2e-6
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
    if not torch.equal(ours.start_P.double(), reference.start_P.double()):
        raise ValueError("the replays start from different parameters: their gap would mean nothing")
    return Comparison(
        relative_error=relative_error(ours.direction_P, reference.direction_P),
        one_minus_cosine=one_minus_cosine(ours.direction_P, reference.direction_P),
        gaps=tuple(
            parameter_gap(a, b, reference.start_P) for a, b in zip(ours.parameters, reference.parameters, strict=True)
        ),
    )


def relative_error(found_P: Tensor, expected_P: Tensor) -> float:
    expected_P = expected_P.double()
    return float((found_P.double() - expected_P).norm() / expected_P.norm())


def one_minus_cosine(a_P: Tensor, b_P: Tensor) -> float:
    """1 - cos(a, b) = ||a/|a| - b/|b|||^2 / 2, which does not lose its digits near zero."""
    a_P, b_P = a_P.double(), b_P.double()
    return float((a_P / a_P.norm() - b_P / b_P.norm()).norm() ** 2 / 2)


def parameter_gap(ours_P: Tensor, reference_P: Tensor, start_P: Tensor) -> float:
    """Delta_k = ||theta_ours_k - theta_ref_k|| / ||theta_ref_k - theta_0|| (Equation 30)."""
    reference_P = reference_P.double()
    return float((ours_P.double() - reference_P).norm() / (reference_P - start_P.double()).norm())


def broken_fp32(comparison: Comparison) -> list[str]:
    """What exceeds a threshold of FP32, in words; empty when all is well."""
    found = []
    if not comparison.relative_error < DIRECTION_FP32:
        found.append(f"first direction {comparison.relative_error:.2e}, threshold {DIRECTION_FP32:.0e}")
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

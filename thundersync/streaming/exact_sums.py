"""Exact sums: the same bits in whatever order sources arrive.

Each gradient entry is rounded once, to a whole number of units of 2**exponent; everything after that is integer
arithmetic in int64, which neither rounds nor depends on an order.

    q_i  = round(H_i / unit)
    G_b  = sum_i phi_b(i) q_i                     `fold`, phi whole numbers
    g    = factor * unit * sum_b beta_b G_b       `combine`, beta whole numbers; rounded once, to float64

For a group of m rewards R_i / D this makes Equation 7 exact: with phi = (R_i, 1) and beta = (m, -sum R_i),

    m G1 - (sum R) G2 = sum_i (m R_i - sum R) q_i,      factor = scale / (m D),     scale the objective's beta_1

so equal rewards give exactly zero. Rewards need a common denominator: `Rewards` finds it while they arrive.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import torch
from torch import Tensor

LOWEST_EXPONENT = -100
MOST = 1 << 62
"""No sum may reach it: a margin of two below where int64 wraps around."""
LARGEST_DENOMINATOR = 1024
BLOCK = 1 << 17
"""Entries rounded and added at a time: what lies between two passes over them stays in the cache."""


@dataclass(slots=True)
class Grid:
    """What gradients are rounded to, and what rounding did to them."""

    exponent: int = -44
    """Of the unit, a power of two from 2**-100 to 1. Lower resolves smaller entries and overflows earlier."""
    entries: int = 0
    underflowed: int = 0
    """Entries that were not zero and became it."""

    def __post_init__(self) -> None:
        if not LOWEST_EXPONENT <= self.exponent <= 0:
            raise ValueError(f"exact_exponent is {self.exponent}; it goes from {LOWEST_EXPONENT} to 0")

    @property
    def unit(self) -> float:
        return 2.0**self.exponent

    def largest(self, tensors: Sequence[Tensor]) -> int:
        """A bound on the entries, in units. Raises OverflowError for one that float64 cannot count in whole units."""
        most = max((float(end.abs()) for tensor in tensors if tensor.numel() for end in tensor.aminmax()), default=0.0)
        if most / self.unit >= 2.0**53:
            raise OverflowError(f"a gradient entry of {most:.3g} exceeds the grid; {self._advice}")
        return math.ceil(most / self.unit)

    def rounded(self, block: Tensor) -> Tensor:
        """FP32 or FP64 to int64, to nearest, ties to even.

        A power of two scales FP32 without rounding, and FP32 rounds to whole numbers as FP64 would: no wider copy.
        """
        whole = (block / self.unit).round_()
        self.entries += whole.numel()
        self.underflowed += int(block.count_nonzero() - whole.count_nonzero())
        return whole.to(torch.int64)

    @property
    def _advice(self) -> str:
        return f"raise exact_exponent, now {self.exponent}"

    @property
    def underflow(self) -> float:
        """Share of the entries that underflowed."""
        return self.underflowed / max(1, self.entries)


class ExactSums:
    """`bases` int64 sums over tensors shaped like `like`; a drop-in for `RunningSums` at twice its memory."""

    def __init__(self, like: Sequence[Tensor], bases: int, grid: Grid) -> None:
        self._grid = grid
        self._shapes = [tensor.shape for tensor in like]
        size = sum(shape.numel() for shape in self._shapes)
        self._flat_b = [torch.zeros(size, dtype=torch.int64) for _ in range(bases)]
        self._views_b = [self.split(flat) for flat in self._flat_b]
        self._most_b = [0] * bases
        """An upper bound on |G_b|, kept in Python's unbounded integers."""

    @property
    def nbytes(self) -> int:
        return sum(flat.nbytes for flat in self._flat_b)

    def split(self, flat: Tensor) -> list[Tensor]:
        """Views of a flat buffer, one per tensor, in their order and shapes."""
        parts = flat.split([shape.numel() for shape in self._shapes])
        return [part.view(shape) for part, shape in zip(parts, self._shapes, strict=True)]

    def fold(self, phi: Sequence[int], gradients: Sequence[Tensor | None]) -> None:
        """G_b += phi_b * rounded gradients, phi_b whole. None stands for zero.

        Raises OverflowError, before anything is added.
        """
        present = [i for i, gradient in enumerate(gradients) if gradient is not None]
        host = [_on_host(gradients[i]) for i in present]
        largest = self._grid.largest(host)
        most_b = [most + abs(int(phi_b)) * largest for most, phi_b in zip(self._most_b, phi, strict=True)]
        self._require_room(max(most_b))
        for i, gradient in zip(present, host, strict=True):
            sums_b = [(int(phi_b), views[i].view(-1)) for phi_b, views in zip(phi, self._views_b, strict=True) if phi_b]
            for start in range(0, gradient.numel(), BLOCK):
                q = self._grid.rounded(gradient[start : start + BLOCK])
                for phi_b, sums in sums_b:
                    sums[start : start + BLOCK].add_(q, alpha=phi_b)
        self._most_b = most_b

    def rescale(self, basis: int, factor: int) -> None:
        """G_b *= factor: its rewards have a new common denominator. Raises OverflowError, before anything changes."""
        self._require_room(self._most_b[basis] * factor)
        self._flat_b[basis].mul_(factor)
        self._most_b[basis] *= factor

    def reduce(self, add_up: Callable[[Tensor], None]) -> None:
        """Hands each flat buffer to `add_up`, which adds it up over ranks in place: exact, so in any order.

        Raises OverflowError on all ranks alike, before any sum changes.
        """
        most = torch.tensor([float(most) for most in self._most_b], dtype=torch.float64)
        add_up(most)
        self._most_b = [math.ceil(bound) for bound in most.tolist()]
        self._require_room(max(self._most_b))
        for flat in self._flat_b:
            add_up(flat)

    def combine(self, beta: Sequence[int], factor: float = 1.0) -> list[Tensor]:
        """factor * unit * sum_b beta_b G_b as float64 tensors in the shapes of `like`; the sum is exact.

        In place, so that closing needs no further buffer: the sums end. Raises OverflowError before that.
        """
        self._require_room(sum(abs(int(b)) * most for b, most in zip(beta, self._most_b, strict=True)))
        total = self._flat_b[0].mul_(int(beta[0]))
        for beta_b, G_b in zip(beta[1:], self._flat_b[1:], strict=True):
            total.add_(G_b, alpha=int(beta_b))
        wide = total.view(torch.float64)  # the same memory
        for start in range(0, len(total), BLOCK):
            wide[start : start + BLOCK] = total[start : start + BLOCK].double().mul_(self._grid.unit * factor)
        return self.split(wide)

    def _require_room(self, most: int) -> None:
        if most >= MOST:
            raise OverflowError(f"an exact sum could exceed int64; {self._grid._advice}")


def _on_host(gradient: Tensor) -> Tensor:
    """Flat, in host memory, FP32 or FP64."""
    wide = torch.promote_types(gradient.dtype, torch.float32)
    return gradient.detach().to(device="cpu", dtype=wide).reshape(-1)


@dataclass(slots=True)
class Rewards:
    """The rewards of a group as whole numbers over a common denominator, which grows while they arrive."""

    denominator: int = 1
    numerators: list[int] = field(default_factory=list)

    def admit(self, reward: float, source: str) -> tuple[int, int]:
        """Makes room for a reward: (its numerator, the factor by which earlier numerators had to grow).

        Raises ValueError for a reward that is no fraction with a denominator of at most LARGEST_DENOMINATOR.
        """
        fraction = Fraction(reward).limit_denominator(LARGEST_DENOMINATOR)
        if float(fraction) != reward:
            raise ValueError(
                f"{source}: exact sums need rewards that are fractions, with a denominator of at most "
                f"{LARGEST_DENOMINATOR}; {reward!r} is none"
            )
        factor = math.lcm(self.denominator, fraction.denominator) // self.denominator
        self.denominator *= factor
        self.numerators = [factor * numerator for numerator in self.numerators]
        return fraction.numerator * (self.denominator // fraction.denominator), factor

    def combination(self, scale: float) -> tuple[tuple[int, int], float]:
        """((m, -sum R), scale / (m D)): beta and factor of Equation 7 for `ExactSums.combine`."""
        m = len(self.numerators)
        return (m, -sum(self.numerators)), scale / (m * self.denominator)

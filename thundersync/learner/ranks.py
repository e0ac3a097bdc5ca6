"""Learner ranks: the processes that share a logical batch, and everything that they say to each other.

    groups    whole; the one at place i of the batch is learnt by rank i mod R
    sums      FP32, added up over the ranks, divided once afterwards                              (Equation 9)
    masters   and both moments: rank r holds the r-th contiguous shard of the flat tensor; parameters are replicated
    refusals  a rank that cannot step says so before anything changes, and no rank steps

A rank alone is the same code: its collectives have nothing to do. Between processes they run over gloo, on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from thundersync.batch import LogicalBatch

T = TypeVar("T")


class RanksRefused(RuntimeError):
    """Some rank could not step, or the ranks disagree. Raised on all of them; nothing has changed on any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankGroup:
    """This process among R = `size` learner ranks. Every collective is called by all ranks, in the same order."""

    rank: int = 0
    size: int = 1

    @classmethod
    def join(cls, address: str, *, rank: int, size: int, timeout_s: float) -> RankGroup:
        """Meets the other ranks at `address` (as torch.distributed takes it: tcp://HOST:PORT of rank 0).

        A collective that some rank has not reached after `timeout_s` raises RuntimeError on the others.
        """
        dist.init_process_group(
            "gloo", init_method=address, rank=rank, world_size=size, timeout=timedelta(seconds=timeout_s)
        )
        return cls(rank=rank, size=size)

    def leave(self) -> None:
        """Ends what `join` began."""
        if self.size > 1:
            dist.destroy_process_group()

    def share(self, batch: LogicalBatch) -> LogicalBatch:
        """The groups of a batch that this rank learns; there may be none."""
        return batch.shares(self.size)[self.rank]

    def shard(self, numel: int, rank: int | None = None) -> slice:
        """Which of `numel` flat elements a rank (by default this one) holds; the last shards may be shorter."""
        width = -(-numel // self.size)
        start = min(numel, width * (self.rank if rank is None else rank))
        return slice(start, min(numel, start + width))

    def gather(self, item: T) -> list[T]:
        """`item` of every rank, in rank order."""
        if self.size == 1:
            return [item]
        items: list[Any] = [None] * self.size
        dist.all_gather_object(items, item)
        return items

    def together(self, work: Callable[[], T]) -> list[T]:
        """Runs `work` on every rank and returns all results, in rank order.

        What it raises on a rank alone passes through. Among several, RanksRefused on all of them names those where it
        raised, so that none waits for a rank that has given up.
        """
        if self.size == 1:
            return [work()]
        result, error = None, None
        try:
            result = work()
        except Exception as raised:
            error = raised
        answers = self.gather((result, None if error is None else str(error)))
        refusals = [f"rank {rank}: {text}" for rank, (_, text) in enumerate(answers) if text is not None]
        if refusals:
            raise RanksRefused(f"refused on all ranks: {'; '.join(refusals)}") from error
        return [result for result, _ in answers]

    def sum_(self, tensor: Tensor) -> None:
        """Adds up a host tensor over the ranks, in place. Raises RanksRefused where some rank's is not finite."""
        if self.size == 1:
            return
        self.together(lambda: _require_finite(tensor))
        dist.all_reduce(tensor)

    def gather_shards(self, shard: Tensor, numel: int) -> Tensor:
        """The flat tensor of `numel` elements whose shards the ranks hold; in host memory where there are several."""
        if self.size == 1:
            return shard
        whole = torch.empty(numel, dtype=shard.dtype)
        whole[self.shard(numel)] = shard.to(whole.device)
        for rank in range(self.size):
            part = whole[self.shard(numel, rank)]
            if part.numel():
                dist.broadcast(part, src=rank)
        return whole


ALONE = RankGroup()


def require_agreement(what: str, values: Sequence[Any]) -> None:
    """Raises RanksRefused when the values of the ranks, in rank order, are not all equal."""
    if any(value != values[0] for value in values):
        stated = ", ".join(f"rank {rank} has {value}" for rank, value in enumerate(values))
        raise RanksRefused(f"refused on all ranks: they disagree on the {what}: {stated}")


def _require_finite(tensor: Tensor) -> None:
    if not tensor.sum(dtype=torch.float64).isfinite():
        raise FloatingPointError("its sum of gradients is not finite")

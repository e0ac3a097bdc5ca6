"""Processes that replay at the same time: independent variants side by side, or the ranks of one variant.

Each works on one thread, so that the bits of a replay do not depend on who else is at work.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import socket
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from thundersync.equivalence.replay import Batches, Replay, Variant, replay
from thundersync.learner.optimizer import AdamWSettings
from thundersync.learner.ranks import ALONE, RankGroup
from thundersync.objectives.objective import Objective

MOST_WORKERS = 4
RANKS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One replay, as a worker is told of it."""

    policy: Path
    objective: Objective
    settings: AdamWSettings
    batches: Batches
    variant: Variant
    bits_only: bool = False
    """Whether its hashes are enough."""


class Workers:
    """Jobs start in the order in which they are submitted, as many at once as there are cores, two at least."""

    def __init__(self) -> None:
        self.count = max(RANKS, min(MOST_WORKERS, len(os.sched_getaffinity(0))))
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["__main__", __name__])  # one import for all of them
        self._pool = ProcessPoolExecutor(
            self.count, mp_context=context, initializer=torch.set_num_threads, initargs=(1,)
        )

    def submit(self, job: Job) -> Future[bytes]:
        return self._pool.submit(_work, job)

    def submit_ranks(self, job: Job) -> list[Future[bytes]]:
        """The same job on two learner ranks: a worker each, which wait for each other."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
        return [self._pool.submit(_work, job, address, rank) for rank in range(RANKS)]

    def close(self) -> None:
        """Drops what has not started and waits for the rest."""
        self._pool.shutdown(cancel_futures=True)


def taken(future: Future[bytes]) -> Replay:
    """The replay, once it is done. Raises what it raised."""
    return pickle.loads(future.result())


def _work(job: Job, address: str | None = None, rank: int = 0) -> bytes:
    """Pickled here, tensors included: their usual way between processes needs shared memory of their size."""
    ranks = ALONE if address is None else RankGroup.join(address, rank=rank, size=RANKS)
    result = replay(job.policy, job.objective, job.settings, job.batches, job.variant, ranks=ranks)
    ranks.leave()
    return pickle.dumps(result.bits_only() if job.bits_only or rank else result)

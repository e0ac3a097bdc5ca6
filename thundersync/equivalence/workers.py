"""Processes that replay at the same time: independent variants side by side, or the ranks of one variant.

Each works on one thread, so that the bits of a replay do not depend on who else is at work.
"""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import socket
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from thundersync.equivalence.replay import Recording, Replay, Variant, learner_time_ratio, replay
from thundersync.heap import settle_heap
from thundersync.learner.ranks import ALONE, RankGroup

MOST_WORKERS = 4
NICENESS = 10
RANKS = 2
RANK_TIMEOUT_S = 3600.0
"""One rank may have to wait for a worker that still replays something else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One replay, as a worker is told of it."""

    recording: Recording
    variant: Variant
    bits_only: bool = False
    """Whether its hashes are enough."""


class Workers:
    """Jobs start in the order in which they are submitted, as many at once as there are cores, two at least; on all
    cores that this process may use now, at low priority, so that a run beside them comes first.

    With `scarce_memory` an FP64 replay works alone, and a process ends with its job, for it would keep the memory that
    it once had: for models of which memory holds no more.
    """

    def __init__(self, *, scarce_memory: bool = False) -> None:
        cores = os.sched_getaffinity(0)
        self.count = max(RANKS, min(MOST_WORKERS, len(cores)))
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["__main__", __name__])  # one import for all of them
        self._pool = ProcessPoolExecutor(
            self.count,
            mp_context=context,
            initializer=_settle,
            initargs=(cores,),
            max_tasks_per_child=1 if scarce_memory else None,
        )
        self._results = tempfile.TemporaryDirectory(prefix="replays-")
        self._scarce_memory = scarce_memory

    def submit(self, job: Job) -> Future[Path]:
        return self._pool.submit(_work, job, self._results.name, gated=self._scarce_memory)

    def submit_ranks(self, job: Job) -> list[Future[Path]]:
        """The same job on two learner ranks: a worker each, which wait for each other."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
        return [self._pool.submit(_work, job, self._results.name, address, rank) for rank in range(RANKS)]

    def submit_ratio(self, job: Job, other: Variant, rounds: int) -> Future[float]:
        """`learner_time_ratio` of the job over the same batches as `other`, in one worker."""
        return self._pool.submit(_ratio, job, other, rounds, self._results.name, gated=self._scarce_memory)

    def close(self) -> None:
        """Drops what has not started and waits for the rest."""
        self._pool.shutdown(cancel_futures=True)
        self._results.cleanup()


def taken(future: Future[Path]) -> Replay:
    """The replay, once it is done; its tensors stay in their file, which nobody else can find any more. Raises what it
    raised."""
    path = future.result()
    found = torch.load(path, mmap=True, weights_only=False)
    path.unlink()
    return found


def _settle(cores: set[int]) -> None:
    os.sched_setaffinity(0, cores)  # a session that was opened meanwhile has pinned the parent
    os.nice(NICENESS)
    torch.set_num_threads(1)
    settle_heap()


@contextmanager
def _gate(results: str, *, gated: bool, alone: bool = False) -> Iterator[None]:
    """Waits until nobody is in here who wants to be alone, or nobody at all if this one does; open unless `gated`."""
    if not gated:
        yield
        return
    with open(Path(results) / "gate", "w") as gate:
        fcntl.flock(gate, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield


def _ratio(job: Job, other: Variant, rounds: int, results: str, gated: bool) -> float:
    with _gate(results, gated=gated):
        return learner_time_ratio(job.recording, job.variant, other, rounds)


def _work(job: Job, results: str, address: str | None = None, rank: int = 0, gated: bool = False) -> Path:
    """The replay goes through a file: between processes tensors would need shared memory of their size."""
    meeting = {"rank": rank, "size": RANKS, "timeout_s": RANK_TIMEOUT_S}
    ranks = ALONE if address is None else RankGroup.join(address, **meeting)
    with _gate(results, gated=gated, alone=job.variant.precision == "fp64"):
        result = replay(job.recording, job.variant, ranks=ranks, bits_only=job.bits_only or rank > 0)
    ranks.leave()
    handle, path = tempfile.mkstemp(dir=results)
    with open(handle, "wb") as file:
        torch.save(result, file)
    return Path(path)

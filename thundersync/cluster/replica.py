"""A rollout replica as a Ray actor: the process around `thundersync.rollout.replica.Replica`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import ray

from thundersync.batch import LogicalBatch, Task, Trajectory, TrajectoryKey
from thundersync.cluster.clock import TrainingClock
from thundersync.cluster.placement import import_then_pin
from thundersync.cluster.specs import ReplicaSpec
from thundersync.environments import load_workload, require_sandbox
from thundersync.heap import settle_heap
from thundersync.ports import Event
from thundersync.rollout.engine import ServedPolicy

if TYPE_CHECKING:
    import torch

    from thundersync.rollout.replica import Replica


class RolloutReplica:
    """Taken into use by `configure` for a run, and again for the next one; the process and its imports stay."""

    def __init__(self, cores: tuple[int, ...]) -> None:
        import_then_pin(cores, "thundersync.rollout.transformers_engine", "thundersync.rollout.replica")
        require_sandbox()
        self._clock = TrainingClock()
        self._replica: Replica | None = None

    async def configure(self, spec: ReplicaSpec, teacher: Any | None) -> ServedPolicy:
        """Builds engine and workload; what ran before is cancelled. `teacher` is a Teacher actor for scored runs."""
        from thundersync.rollout.chat import load_chat
        from thundersync.rollout.replica import Replica
        from thundersync.rollout.transformers_engine import load_engine

        await self.release()
        settle_heap()
        chat = load_chat(spec.policy)
        engine = load_engine(spec.policy, chat=chat, settings=spec.generation, version=spec.version)
        workload = spec.workload
        self._replica = Replica(
            engine=engine,
            chat=chat,
            workload=load_workload(workload.name, root=workload.root, seed=workload.seed),
            settings=spec.generation,
            run_seed=spec.run_seed,
            scorer=RemoteScorer(teacher) if teacher is not None else None,
            script=spec.script,
            now=self._clock.now,
        )
        return engine.served()

    async def release(self) -> None:
        """Cancels what is in flight and frees the engine."""
        if self._replica is not None:
            await self._replica.close()
            self._replica = None

    async def start_clock(self, epoch: float) -> None:
        self._clock.epoch = epoch

    async def start(self, batch: LogicalBatch) -> None:
        self._replica.start(batch)

    async def next_events(self) -> list[Event]:
        """At least one event, and whatever else is ready, in readiness order."""
        return [await self._replica.next_event(), *self._replica.ready_events()]

    async def load(self, version: int, weights: Mapping[str, torch.Tensor]) -> ServedPolicy:
        """Loads a published version, empties the caches and says what is served now."""
        self._replica.load_weights(weights, version)
        self._replica.clear()
        return self._replica.served()

    async def attempt(self, task: Task, key: TrajectoryKey, run_seed: int) -> Trajectory:
        """One evaluation attempt."""
        return await self._replica.attempt(task, key, run_seed=run_seed)


class RemoteScorer:
    """The teacher actor as the agent loop sees it."""

    def __init__(self, teacher: Any) -> None:
        self._teacher = teacher

    async def score(self, source, history_ids, action_ids_A):
        return await self._teacher.score.remote(source, history_ids, action_ids_A)

    async def forget(self, trajectory: TrajectoryKey) -> None:
        await self._teacher.forget.remote(trajectory)


RolloutReplicaActor = ray.remote(num_cpus=0, max_concurrency=10_000)(RolloutReplica)

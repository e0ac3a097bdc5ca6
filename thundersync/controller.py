"""The controller: the process that runs a schedule against the Ray ports and keeps the run's records."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import ray

from thundersync.cluster.clock import TrainingClock
from thundersync.cluster.placement import pin
from thundersync.cluster.ports import RayLearner, RayRollout, ray_publisher
from thundersync.cluster.session import Session
from thundersync.config import RunConfig
from thundersync.journal import RunJournal
from thundersync.mirror import open_mirror
from thundersync.records import CheckpointRecord, RunDirectory, UpdateRecord
from thundersync.sampler import TaskSampler
from thundersync.schedules import SCHEDULES, Parts, Release
from thundersync.watch import WatchedLearner, WatchedRollout


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a run stands, for a progress bar."""

    updates: int
    training_s: float
    reward: float | None


class Controller:
    def __init__(self, cores: tuple[int, ...]) -> None:
        pin(cores)
        self._journal: RunJournal | None = None
        self._clock = TrainingClock()

    async def run(
        self, config: RunConfig, session: Session, sampler: TaskSampler, first_update: int, elapsed: float
    ) -> None:
        """Runs the schedule until the budget, the last update or `stop`. The actors are configured already.

        `first_update` and `elapsed` are 0 for a new run; a resumed one goes on at its checkpoint.
        """
        self._journal = None  # of the run before
        directory = RunDirectory(Path(config.runs) / config.name)
        run = directory.run()
        learners = session.learners[: config.scale.learner_ranks]
        trained = directory.read_if_any(UpdateRecord)

        async def save(policy: Path, state: Path) -> None:
            await asyncio.gather(*(learner.save.remote(policy, state) for learner in learners))

        self._journal = RunJournal(
            directory=directory,
            run=run,
            scale=config.scale,
            clock=self._clock,
            save=save,
            mirror=open_mirror(config.mirror, directory.path, run.name),
            record_batches=config.record_batches,
            last=trained[-1] if trained else None,
        )
        if not directory.read_if_any(CheckpointRecord):
            await self._journal.checkpoint("start")
        rollout = RayRollout(session.replicas)
        parts = Parts(
            batch=sampler.batch,
            group=sampler.group,
            prompts=sampler.prompts,
            rollout=WatchedRollout(rollout, config.scale.rollout_timeout_s),
            learner=WatchedLearner(RayLearner(learners), config.scale.learner_timeout_s, ranks=len(learners)),
            publisher=ray_publisher(learners[0], session.replicas, config.scale.acknowledge_timeout_s),
            clock=self._clock,
            journal=self._journal,
            release=Release(
                policy=config.objective.release,
                needs_reward=config.objective.build().needs_reward,
                open_groups=config.schedule.open_groups,
                waiting_rewards=config.schedule.waiting_rewards,
                ranks=len(learners),
            ),
            reduction=config.schedule.reduction,
            lag_bound=config.schedule.lag_bound,
            trained=frozenset(group for update in trained for group in update.groups),
        )
        try:
            self._clock.start(elapsed)  # the first rollout request follows
            actors = [*session.replicas.values(), *learners]
            for actor in actors:
                await actor.start_clock.remote(self._clock.epoch)
            await SCHEDULES[config.schedule.name](parts, first_update)
        finally:
            rollout.close()
            directory.close()

    async def stop(self) -> None:
        """Asks the run to save and end at the next optimizer boundary."""
        if self._journal is not None:
            self._journal.stop_requested = True

    async def progress(self) -> Progress:
        last = self._journal.last if self._journal else None
        if last is None:
            return Progress(updates=0, training_s=0.0, reward=None)
        return Progress(updates=last.update + 1, training_s=last.published_at, reward=last.reward.value)


ControllerActor = ray.remote(num_cpus=0, max_concurrency=16)(Controller)

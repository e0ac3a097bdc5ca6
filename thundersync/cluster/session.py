"""One Ray session for all runs of a target: the actors start once, and are taken into use run by run."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ray

from thundersync.cluster.independence import core_independence
from thundersync.cluster.peak import core_peak
from thundersync.cluster.placement import Placement, descendants, pin, pin_unpinned, place
from thundersync.environments import require_sandbox


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    placement: Placement
    core_independence: float
    """How much of its speed a core keeps while the other is busy, measured at the start of the session."""
    learner_peak_flops: float
    """Measured peak of the learner's core, FP32, also at the start."""
    replicas: dict[str, Any]
    """Rollout replicas by name; they serve training."""
    learners: tuple[Any, ...]
    """Learner ranks; a run takes as many of them as its configuration says."""
    teacher: Any
    evaluator: Any
    """One more replica, on the learner's core: idle in training, so that offline evaluation uses both cores."""

    @property
    def evaluators(self) -> list[Any]:
        return [*self.replicas.values(), self.evaluator]


@contextmanager
def open_session(replicas: int, learner_ranks: int = 1, *, apart: bool = True) -> Iterator[Session]:
    """Starts Ray and the actors; not `apart`, rollout shares the learner's core, for runs that nobody takes times from.

    Raises SandboxMissing before, and what an actor raised while starting.
    """
    from thundersync.cluster.learner import LearnerActor
    from thundersync.cluster.replica import RolloutReplicaActor
    from thundersync.cluster.teacher import TeacherActor

    require_sandbox()
    placement = place(learner_ranks, apart=apart)
    if shortage := placement.shortage(learner_ranks):
        print(f"note: {shortage}; they work, but not faster than one", file=sys.stderr)
    independence = core_independence(placement)
    before, others = os.sched_getaffinity(0), descendants()
    ray.init(
        num_cpus=placement.devices(learner_ranks),
        namespace="thundersync",
        include_dashboard=False,
        configure_logging=False,
        log_to_driver=False,
        _system_config={"enable_metrics_collection": False, "worker_niceness": 0},
        runtime_env={"env_vars": {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}},
    )
    try:
        names = [f"replica-{i}" for i in range(replicas)]
        session = Session(
            placement=placement,
            core_independence=independence,
            learner_peak_flops=core_peak(placement.learner_cores[0]),
            replicas={name: RolloutReplicaActor.remote(placement.rollout_cores) for name in names},
            learners=tuple(LearnerActor.remote(placement.of_rank(rank)) for rank in range(learner_ranks)),
            teacher=TeacherActor.remote(placement.rollout_cores),
            evaluator=RolloutReplicaActor.remote(placement.of_rank(0)),
        )
        actors = [*session.evaluators, *session.learners, session.teacher]
        ray.get([actor.__ray_ready__.remote() for actor in actors])
        pin_unpinned(descendants() - others, placement.rollout_cores)  # Ray's own, and workers that it keeps in reserve
        pin(placement.rollout_cores)
        yield session
    finally:
        ray.shutdown()
        pin(tuple(before))

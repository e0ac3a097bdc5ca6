"""A byte that goes astray between learner and replica: real actors, real tensors, the real hash of what is served."""

from __future__ import annotations

import asyncio

import pytest
import ray
import torch

from thundersync.cluster.ports import ray_publisher
from thundersync.cluster.replica import RolloutReplica
from thundersync.cluster.specs import LearnerSpec, ReplicaSpec, Seat, WorkloadSpec
from thundersync.learner.adamw import AdamWSettings
from thundersync.objectives import GRPO
from thundersync.ports import PublicationError
from thundersync.rollout.settings import GenerationSettings

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def one_byte_astray() -> type[RolloutReplica]:
    """Defined in a function, so that it travels to the actor by value."""

    class OneByteAstray(RolloutReplica):
        async def load(self, version, weights):
            name, tensor = sorted(weights.items())[0]
            damaged = tensor.clone()
            damaged.view(-1).view(torch.uint8)[0] ^= 1  # the lowest bit of one parameter
            return await super().load(version, {**weights, name: damaged})

    return OneByteAstray


def test_a_replica_that_serves_one_wrong_bit_is_named(session, random_models, tmp_path):
    learner = session.learners[0]
    spec = LearnerSpec(
        policy=random_models.student,
        objective=GRPO(prompts=1),
        optimizer=AdamWSettings(learning_rate=1e-3),
    )
    version, policy_hash = ray.get(learner.configure.remote(spec, Seat(rank=0, size=1, address="")))
    damaged = ray.remote(num_cpus=0, max_concurrency=16)(one_byte_astray()).remote(session.placement.rollout_cores)
    replicas = {"replica-0": session.replicas["replica-0"], "replica-1": damaged}
    replica = ReplicaSpec(
        policy=random_models.student,
        version=version,
        workload=WorkloadSpec(name="micro_terminal", root=tmp_path, seed=0),
        generation=GenerationSettings(),
        run_seed=0,
    )
    ray.get([actor.configure.remote(replica, None) for actor in replicas.values()])

    def publish(names):
        subject = ray_publisher(learner, {name: replicas[name] for name in names}, timeout_s=60)
        asyncio.run(subject.publish(1, policy_hash))
        return subject.served_version

    assert publish(["replica-0"]) == 1
    with pytest.raises(PublicationError, match="^replica replica-1 serves version 1 with hash .* was published$"):
        publish(["replica-0", "replica-1"])

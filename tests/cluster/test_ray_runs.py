"""Real runs on Ray: a random policy, real sandboxes, real gradients; what the records say of them. And a publication in
which one bit goes astray between learner and replica. One session serves them all: to start it takes a minute."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
import ray
import torch

from experiments.compose import compose_run
from thundersync.cluster.placement import descendants
from thundersync.cluster.ports import ray_publisher
from thundersync.cluster.replica import RolloutReplica
from thundersync.cluster.specs import LearnerSpec, ReplicaSpec, Seat, WorkloadSpec
from thundersync.config import ConfigError
from thundersync.equivalence.end_to_end import compare_runs
from thundersync.learner.adamw import AdamWSettings
from thundersync.learner.policy import load_policy
from thundersync.objectives import GRPO
from thundersync.policy_hash import policy_hash
from thundersync.ports import PublicationError
from thundersync.records import (
    CheckpointRecord,
    RecordError,
    RunDirectory,
    SourceRecord,
    TrajectoryRecord,
    UpdateRecord,
    read_lines,
)
from thundersync.rollout.settings import GenerationSettings
from thundersync.trainer import Interrupted, train

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture(autouse=True)
def no_warm_start(monkeypatch, random_models):
    monkeypatch.setattr("thundersync.trainer.build_models", lambda root, requests: [random_models])


def configuration(tmp_path, name, *overrides):
    small = ["workload=micro_terminal", "scale=smoke", "scale.max_updates=3", "scale.budget_s=1000"]
    small += ["scale.checkpoint_every_s=1000", "scale.replicas=2"]
    small += [f"batch.{name}.{what}" for name in ("grpo", "opd") for what in ("prompts=2", "trajectories=4")]
    small += ["generation.max_turns=3"]
    small += ["generation.max_tokens_per_turn=12", f"runs={tmp_path}", f"cache={tmp_path / 'cache'}", f"name={name}"]
    return compose_run([*small, *overrides])


def test_the_learner_is_alone_on_its_core(session):
    """All threads of every process of the session, Ray's own included, except the learners' and the evaluator's."""
    rollout, learner = (set(cores) for cores in (session.placement.rollout_cores, session.placement.learner_cores))
    allowed = [cores for process in descendants() if (cores := allowed_cores(process))]
    elsewhere = [cores for cores in allowed if cores != [rollout]]
    assert len(allowed) > 10
    assert len(elsewhere) == 3, "two learner ranks, and the replica that is idle in training"
    assert all(len(cores) == 1 and len(cores[0]) == 1 and cores[0] <= learner for cores in elsewhere)


def allowed_cores(process) -> list[set[int]]:
    """Distinct sets of cores that the threads of a process may use; none if it has just ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        threads = [int(thread.name) for thread in Path(f"/proc/{process.pid}/task").iterdir()]
        return [set(cores) for cores in {frozenset(os.sched_getaffinity(thread)) for thread in threads}]
    return []


@pytest.mark.parametrize("objective", ["grpo", "opd"])
@pytest.mark.parametrize("schedule", ["sync", "async", "fully_async", "thundersync"])
def test_every_schedule_trains_each_trajectory_once_within_its_lag(schedule, objective, session, tmp_path):
    config = configuration(tmp_path, "run", f"schedule={schedule}", f"objective={objective}")
    run = RunDirectory(train(config, session))
    updates = run.read(UpdateRecord)
    assert [u.update for u in updates] == [0, 1, 2]
    if objective == "opd":  # a random policy earns no reward, so that GRPO's groups are uniform and it stays as it is
        assert len({u.policy_hash for u in updates}) == 3, "the policy did not change at every update"
    groups = [group for u in updates for group in u.groups]
    assert len(set(groups)) == len(groups) == 3 * 2
    trained = [r for r in run.read(TrajectoryRecord) if r.key.split("/trajectory=")[0] in groups]
    assert len({r.key for r in trained}) == len(trained) == 3 * 8
    lags = {(u.lag_min, u.lag_max) for u in updates}
    if schedule in ("sync", "thundersync"):
        assert lags == {(0, 0)}
    elif schedule == "async":
        assert [(u.lag_min, u.lag_max) for u in updates] == [(0, 0), (1, 1), (1, 1)]
    else:
        assert all(0 <= low <= high <= 2 for low, high in lags)
    # Engine and learner compute the same log-probabilities: FP32 against FP32. Stale tokens differ, as they must.
    if schedule in ("sync", "thundersync"):
        assert max(u.logprob_mismatch.max for u in updates) < 1e-4
    sources = run.read(SourceRecord)
    if schedule == "thundersync":
        kinds = {"grpo": {"source", "group"}, "opd": {"source", "deferred", "group"}}[objective]
        assert {s.kind for s in sources} == kinds
    else:
        assert {s.kind for s in sources} == {"direct"}


def test_an_engine_too_far_from_the_learner_ends_the_run(session, tmp_path):
    config = configuration(tmp_path, "run", "objective=opd", "logprob_tolerance=1e-12")
    with pytest.raises(
        Exception, match="group=[0-9], trajectory [0-9]: the rollout engine.* more than logprob_tolerance, 1e-12"
    ):
        train(config, session)


@pytest.mark.parametrize("objective", ["dr_grpo", "rloo", "reinforce"])
@pytest.mark.parametrize("schedule", ["sync", "thundersync"])
def test_the_other_objectives_train(schedule, objective, session, tmp_path):
    sizes = [f"batch.{objective}.prompts=2", "scale.max_updates=2"]
    run = RunDirectory(
        train(configuration(tmp_path, "run", f"schedule={schedule}", f"objective={objective}", *sizes), session)
    )
    assert [u.update for u in run.read(UpdateRecord)] == [0, 1]
    kinds = {"source", "group"} if schedule == "thundersync" else {"direct"}
    assert {s.kind for s in run.read(SourceRecord)} == kinds


def test_a_run_that_ended_is_left_alone(session, tmp_path):
    config = configuration(tmp_path, "run", "scale.max_updates=1")
    before = RunDirectory(train(config, session)).read(UpdateRecord)
    elsewhere = config.model_copy(update={"cache": f"{config.cache}/../cache"})  # where files lie is no setting
    assert RunDirectory(train(elsewhere, session)).read(UpdateRecord) == before
    with pytest.raises(ConfigError, match="another configuration, which differs in seed: give this run another name"):
        train(config.model_copy(update={"seed": 7}), session)


def test_two_learner_ranks_publish_the_policies_of_one(session, tmp_path):
    """With exact sums to the bit, BF16 moments included: each element rounds alike in whichever shard it lies."""
    settings = ["schedule=thundersync", "objective=opd", "objective.sums=exact", "optimizer.moments=bf16"]
    settings += ["batch.opd.prompts=4"]
    one = RunDirectory(train(configuration(tmp_path, "one", *settings), session))
    two = configuration(tmp_path, "two", *settings, "scale.learner_ranks=2", "scale.devices=3")
    two = RunDirectory(train(two, session))
    hashes = [[update.policy_hash for update in run.read(UpdateRecord)] for run in (one, two)]
    assert hashes[0] == hashes[1] and len(set(hashes[0])) == 3
    for run, ranks in ((one, 1), (two, 2)):
        learnt = {source.key: source.rank for source in run.read(SourceRecord) if source.kind == "group"}
        assert learnt == {f"update={u}/group={g}": g % ranks for u in range(3) for g in range(4)}


def test_sync_and_thundersync_publish_the_same_policies(session, tmp_path):
    """Grade 3 with whole runs: exact sums, Sync's learner after the barrier, ThunderSync's beside the rollout."""
    settings = ["objective=opd", "objective.sums=exact"]
    sync = train(configuration(tmp_path, "sync", *settings, "schedule=sync", "schedule.reduction=sums"), session)
    streamed = train(configuration(tmp_path, "thundersync", *settings, "schedule=thundersync"), session)
    runs = RunDirectory(sync), RunDirectory(streamed)
    found = compare_runs(*runs)
    assert (found.updates, found.hashes_equal, found.hashes_distinct) == (3, 3, 3)
    assert found.groups == 6 and found.sources_before_close > 0
    lines = (streamed / "updates.jsonl").read_text().splitlines()
    policy = runs[1].read(UpdateRecord)[1].policy_hash
    (streamed / "updates.jsonl").write_text("\n".join(lines).replace(policy, policy[::-1]) + "\n")
    assert compare_runs(*runs).hashes_equal == 2
    (streamed / "updates.jsonl").write_text("\n".join(lines[:2]) + "\n")
    with pytest.raises(RecordError, match="has 3 updates and .* has 2"):
        compare_runs(*runs)


@pytest.mark.parametrize("release", ["content", "turn_forward"])
def test_other_releases_of_opd_take_the_direction_of_turn_eager(release, session, tmp_path):
    """Its norm at least, of the same tokens: the releases sum in another order."""
    settings = ["objective=opd", "schedule=thundersync", "scale.max_updates=1"]
    runs = [
        RunDirectory(train(configuration(tmp_path, name, *settings, f"objective.release={name}"), session))
        for name in ("turn_eager", release)
    ]
    norms = [run.read(UpdateRecord)[0].gradient_norm for run in runs]
    assert norms[0] == pytest.approx(norms[1], rel=1e-5) and norms[0] > 0


def test_more_ranks_than_the_session_has_are_refused(session, tmp_path):
    with pytest.raises(ConfigError, match="scale.learner_ranks is 3, but the session was opened for 2"):
        train(configuration(tmp_path, "run", "scale.learner_ranks=3"), session)
    with pytest.raises(ConfigError, match="scale.replicas is 1, but the session was opened for 2"):
        train(configuration(tmp_path, "run", "scale.replicas=1"), session)


def interrupt_after(path, updates):
    """Presses Ctrl-C once the run has recorded so many updates."""

    def watch():
        while not path.exists() or path.read_text().count("\n") < updates:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=watch, daemon=True).start()


@pytest.mark.parametrize("lora", ["null", "{rank:4,alpha:8}"])
def test_an_interrupted_run_goes_on_bit_for_bit(session, tmp_path, lora):
    """CASES D15: same tasks, same sampled tokens, same parameters and moments as an uninterrupted run.

    With adapters also that replicas, served the merged weights, compute what the learner computes.
    """
    settings = ["schedule=sync", "objective=opd", "scale.max_updates=5", f"model.lora={lora}"]
    whole = RunDirectory(train(configuration(tmp_path, "whole", *settings), session))
    config = configuration(tmp_path, "parts", *settings)
    interrupt_after(tmp_path / "parts" / "updates.jsonl", 2)
    with pytest.raises(Interrupted, match="run the same command again"):
        train(config, session)
    parts = RunDirectory(tmp_path / "parts")
    stopped = len(parts.read(UpdateRecord))
    assert 2 <= stopped < 5 and parts.read(CheckpointRecord)[-1].reason == "interrupt"
    train(config, session)
    first, second = whole.read(UpdateRecord), parts.read(UpdateRecord)
    assert [u.update for u in second] == list(range(5))
    assert [u.groups for u in first] == [u.groups for u in second]
    assert len({u.policy_hash for u in first}) == 5
    assert [u.policy_hash for u in first] == [u.policy_hash for u in second]
    assert [u.tokens for u in first] == [u.tokens for u in second]
    assert all(a.published_at < b.published_at for a, b in zip(second, second[1:], strict=False))
    assert max(u.logprob_mismatch.max for u in second) < 1e-4
    exported = load_policy(parts.path / parts.read(CheckpointRecord)[-1].path)
    assert policy_hash(dict(exported.named_parameters())) == second[-1].policy_hash


def test_another_configuration_does_not_resume_a_run(session, tmp_path):
    interrupt_after(tmp_path / "run" / "updates.jsonl", 1)
    with pytest.raises(Interrupted):
        train(configuration(tmp_path, "run", "scale.max_updates=50"), session)
    with pytest.raises(ConfigError, match="another configuration, which differs in optimizer.learning_rate"):
        train(configuration(tmp_path, "run", "scale.max_updates=50", "optimizer.learning_rate=1e-3"), session)


def test_a_damaged_record_names_file_and_line(session, tmp_path):
    path = train(configuration(tmp_path, "run", "scale.max_updates=2"), session) / "updates.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], lines[1][:-9] + "}"]) + "\n")
    with pytest.raises(RecordError, match="updates.jsonl, line 2: damaged record"):
        read_lines(path, UpdateRecord)


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
    version, digest = ray.get(learner.configure.remote(spec, Seat(rank=0, size=1, address="", timeout_s=60.0)))
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
        asyncio.run(subject.publish(1, digest))
        return subject.served_version

    assert publish(["replica-0"]) == 1
    with pytest.raises(PublicationError, match="^replica replica-1 serves version 1 with hash .* was published$"):
        publish(["replica-0", "replica-1"])

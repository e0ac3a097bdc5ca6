"""Records from the dataclasses of the ports, against numbers worked out by hand."""

import subprocess
import sys

import numpy as np
import pytest

from thundersync.batch import GroupKey, GroupPlan, LogicalBatch, SourceKey, Task, Trajectory, TrajectoryKey, Turn
from thundersync.ports import PublishedUpdate, Receipt, RewardReady, StepReport, TurnTimes
from thundersync.records import PeakMemory, TurnSpans, provenance, source_record, trajectory_record, update_record
from thundersync.records.provenance import digest_of, source_commit


def turn(context: int, versions: list[int]) -> Turn:
    n = len(versions)
    return Turn(
        context_ids_C=np.zeros(context, np.int32),
        action_ids_A=np.zeros(n, np.int32),
        logprobs_A=np.zeros(n, np.float32),
        versions_A=np.array(versions, np.int32),
    )


def trajectory(group: int, member: int, reward: float | None, *turns: Turn) -> Trajectory:
    return Trajectory(
        key=TrajectoryKey(5, group, member),
        task_id=f"task-{group}",
        prompt_ids_P=np.zeros(10, np.int32),
        turns=turns,
        reward=reward,
        success=None if reward is None else reward >= 1,
        outcome="submitted",
    )


TRAJECTORIES = (
    trajectory(0, 0, 1.5, turn(0, [5, 5]), turn(4, [6])),  # lag 7 - 5 = 2
    trajectory(0, 1, 0.5, turn(0, [6, 6, 6])),  # lag 1
    trajectory(1, 0, 0.25, turn(0, [7])),  # lag 0
    trajectory(1, 1, 0.25),  # sampled nothing: no lag, uniform with its group
)


def receipt(kind: str, update: int, started: float) -> Receipt:
    return Receipt(
        key=SourceKey(5, 0, 0, 1),
        kind=kind,
        update=update,
        ready_at=0,
        started_at=started,
        ended_at=9,
        tokens=3,
        rank=1,
    )


RECEIPTS = [receipt("source", 7, 9.0), receipt("source", 7, 10.0), receipt("group", 7, 8.0), receipt("source", 6, 1.0)]


def published() -> PublishedUpdate:
    task = Task(task_id="task-0", split_group="r", instruction="")
    groups = tuple(GroupPlan(key=GroupKey(5, g), task=task, size=2) for g in (0, 1))
    step = StepReport(
        version=8,
        policy_hash="abc",
        started_at=12.0,
        ended_at=12.5,
        divisor=1.0,
        gradient_norm=2.0,
        clip_coefficient=0.5,
        entropy=1.25,
        logprob_mismatch={"max": 0.1, "mean": 0.01, "kl": -0.001},
        peak_memory=("resident_set", 1024),
    )
    return PublishedUpdate(
        batch=LogicalBatch(update=7, groups=groups),
        trajectories=TRAJECTORIES,
        step=step,
        learner_version=7,
        started_at=4.0,
        rollout_closed_at=10.0,
        learner_started_at=6.0,
        published_at=13.0,
    )


def test_update_record_by_hand():
    first = update_record(published(), receipts=RECEIPTS, previous=None)
    assert (first.lag_min, first.lag_max) == (0, 2)
    assert first.uniform_groups == 1
    assert (first.reward.sum, first.reward.count, first.reward.value) == (2.5, 4, 0.625)
    assert (first.success.sum, first.success.count) == (1, 4)
    tokens = first.tokens
    assert (tokens.prompt, tokens.context, tokens.generated, tokens.scored) == (40, 4, 7, 7)
    assert (first.sources, first.sources_before_close) == (2, 1)  # one started at the closure, not before it
    direct = update_record(published(), receipts=[receipt("direct", 7, 9.0)], previous=None)
    assert (direct.sources, direct.sources_before_close) == (1, 0)  # it had its whole batch, whatever closed since
    assert first.groups == ("update=5/group=0", "update=5/group=1")
    assert (first.published_version, first.step_seconds) == (8, 9.0)
    assert first.peak_memory == PeakMemory(counter="resident_set", bytes=1024)
    second = update_record(published(), receipts=[], previous=first)
    assert (second.total_trajectories, second.total_tokens.generated, second.trajectories) == (8, 14, 4)


def test_times_within_a_trajectory_are_recorded_where_somebody_looked():
    times = (TurnTimes(generation_started_at=2.0, generated_at=3.0, scored_at=None, acted_at=4.0),)
    event = RewardReady(trajectory=TRAJECTORIES[1], at=6.0, started_at=1.5, turn_times=times)
    record = trajectory_record(event, content_at=5.0)
    assert record.started_at == 1.5
    assert record.turn_spans == (TurnSpans(generation_started_at=2, generated_at=3, scored_at=None, acted_at=4),)
    bare = trajectory_record(RewardReady(trajectory=TRAJECTORIES[1], at=6.0), content_at=5.0)
    assert bare.started_at is bare.turn_spans is None


def test_the_lag_comes_from_the_oldest_token_of_any_turn():
    late = trajectory(0, 0, 1.0, turn(0, [7]), turn(0, [7, 4]))
    record = update_record(
        PublishedUpdate(
            **{name: getattr(published(), name) for name in PublishedUpdate.__slots__} | {"trajectories": (late,)}
        ),
        receipts=[],
        previous=None,
    )
    assert (record.lag_min, record.lag_max) == (3, 3)


def test_trajectory_record_by_hand():
    record = trajectory_record(RewardReady(trajectory=TRAJECTORIES[0], at=11.0), content_at=10.5)
    assert record.key == "update=5/group=0/trajectory=0"
    assert (record.oldest_version, record.newest_version, record.turns) == (5, 6, 2)
    assert (record.content_at, record.reward_at, record.reward, record.success) == (10.5, 11.0, 1.5, True)
    silent = trajectory_record(RewardReady(trajectory=TRAJECTORIES[3], at=1.0), content_at=1.0)
    assert silent.oldest_version is None and silent.tokens.generated == 0


def test_source_record_keeps_the_receipt():
    record = source_record(RECEIPTS[0])
    assert (record.key, record.kind, record.update, record.rank) == (
        "update=5/group=0/trajectory=0/turn=1",
        "source",
        7,
        1,
    )
    whole = Receipt(key=None, kind="direct", update=0, ready_at=0, started_at=0, ended_at=1, tokens=1, rank=0)
    assert source_record(whole).key is None


def test_digest_does_not_depend_on_key_order():
    """Expected value: sha256sum of the 13 bytes {"a":1,"b":2}."""
    expected = "43258cff783fe7036d8a43033f830adfc60ec037382473548ac742b888292777"
    assert digest_of({"b": 2, "a": 1}) == digest_of({"a": 1, "b": 2}) == expected


def test_records_need_no_torch():
    code = "import sys, thundersync.records; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.fixture
def source_tree(tmp_path, monkeypatch):
    file = tmp_path / "provenance.py"
    file.write_text("x = 1\n")
    monkeypatch.setattr(provenance, "SOURCE", file)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    return tmp_path


def git(folder, *arguments):
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_a_tree_without_git_needs_an_explicit_commit(source_tree):
    with pytest.raises(ValueError, match="cannot be known: run from a git clone, or give --commit"):
        source_commit()
    assert source_commit("a" * 40) == "a" * 40
    with pytest.raises(ValueError, match="40 hexadecimal digits"):
        source_commit("main")


def test_the_commit_of_a_clone(source_tree):
    git(source_tree, "init", "-q")
    with pytest.raises(ValueError, match="cannot be known"):  # nothing committed; also: not tracked here
        source_commit()
    git(source_tree, "add", "provenance.py")
    git(source_tree, "commit", "-qm", "one")
    head = git(source_tree, "rev-parse", "HEAD")
    assert source_commit() == source_commit(head) == head
    with pytest.raises(ValueError, match="contradicts git"):
        source_commit("a" * 40)
    (source_tree / "provenance.py").write_text("x = 2\n")
    assert source_commit() == head + "+modified"


def test_somebody_elses_repository_is_not_our_provenance(source_tree):
    (source_tree / "other.txt").write_text("theirs")
    git(source_tree, "init", "-q")
    git(source_tree, "add", "other.txt")
    git(source_tree, "commit", "-qm", "theirs")
    with pytest.raises(ValueError, match="cannot be known"):
        source_commit()

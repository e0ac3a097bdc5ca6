"""Append-only files: what is written is read back, and damage is refused by file and line."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thundersync.records import (
    CheckpointRecord,
    EndRecord,
    RecordError,
    RunDirectory,
    RunRecord,
    SourceRecord,
    TrajectoryRecord,
    UpdateRecord,
    parse_key,
    read_lines,
)
from thundersync.records.files import to_line
from thundersync.records.schemas import Tokens


def source(update: int = 0, tokens: int = 7) -> SourceRecord:
    return SourceRecord(
        key=f"update={update}/group=0/trajectory=1",
        kind="source",
        update=update,
        ready_at=1.0,
        started_at=1.5,
        ended_at=2.25,
        tokens=tokens,
        rank=0,
        deferred="",
    )


def trajectory(update: int) -> TrajectoryRecord:
    return TrajectoryRecord(
        key=f"update={update}/group=0/trajectory=0",
        task_id="t",
        reward=0.5,
        success=False,
        outcome="submitted",
        turns=1,
        tokens=Tokens(prompt=1, context=0, generated=2, scored=2),
        oldest_version=0,
        newest_version=0,
        content_at=1.0,
        reward_at=2.0,
    )


def update(k: int, groups: tuple[str, ...]) -> UpdateRecord:
    none = Tokens(prompt=0, context=0, generated=0, scored=0)
    return UpdateRecord(
        update=k,
        learner_version=k,
        published_version=k + 1,
        policy_hash=f"p{k}",
        groups=groups,
        started_at=0,
        rollout_closed_at=1,
        learner_started_at=1,
        step_started_at=2,
        stepped_at=3,
        published_at=4,
        trajectories=0,
        tokens=none,
        total_trajectories=0,
        total_tokens=none,
        divisor=1,
        gradient_norm=0,
        clip_coefficient=1,
        entropy=0,
        logprob_mismatch={"max": 0, "mean": 0, "kl": 0},
        reward={"sum": 0, "count": 0},
        success={"sum": 0, "count": 0},
        lag_min=0,
        lag_max=0,
        uniform_groups=0,
        sources=0,
        sources_before_close=0,
    )


def checkpoint(k: int) -> CheckpointRecord:
    digest = "0" * 64
    return CheckpointRecord(
        seed=42,
        update=k,
        reason="cadence",
        policy_hash=f"p{k}",
        published_at=k,
        trajectories=0,
        generated_tokens=0,
        path="x",
        tokenizer_digest=digest,
        workload_digest=digest,
        settings_digest=digest,
    )


def test_each_line_is_on_disk_before_the_writer_is_closed(tmp_path):
    directory = RunDirectory(tmp_path)
    for k in range(3):
        directory.append(source(k))
        assert RunDirectory(tmp_path).read(SourceRecord) == [source(i) for i in range(k + 1)]
    raw = json.loads((tmp_path / "sources.jsonl").read_text().splitlines()[0])
    assert (raw["schema"], raw["version"], raw["tokens"]) == ("source", 2, 7)


def test_appending_goes_on_after_reopening(tmp_path):
    for k in range(2):
        with RunDirectory(tmp_path) as directory:
            directory.append(source(k))
    assert [r.update for r in RunDirectory(tmp_path).read(SourceRecord)] == [0, 1]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('{"schema": "source"', "line 2: damaged record, not JSON"),
        ("[1, 2]", "line 2: damaged record, an object was expected"),
        (to_line(source()).replace('"version": 2', '"version": 3'), "'source' version 3 found, 'source' version 2 exp"),
        (to_line(checkpoint(0)), "schema 'checkpoint' version 1 found, 'source' version 2 expected"),
        (to_line(source()).replace('"tokens": 7', '"tokens": -7'), "line 2: damaged record, tokens: "),
        (to_line(source()).replace('"tokens": 7, ', ""), "line 2: damaged record, tokens: Field required"),
        (to_line(source()).replace('"rank"', '"rang"'), "line 2: damaged record, ran"),
        (to_line(source()).replace("2.25", "NaN"), "line 2: damaged record, ended_at: "),
        ("", "line 2: damaged record, not JSON"),
    ],
)
def test_a_damaged_line_is_refused_by_file_and_line(tmp_path, line, complaint):
    path = tmp_path / "sources.jsonl"
    path.write_text(f"{to_line(source())}\n{line}\n{to_line(source())}\n")
    with pytest.raises(RecordError) as error:
        read_lines(path, SourceRecord)
    assert complaint in str(error.value) and str(path) in str(error.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(RecordError, match=r"sources\.jsonl is missing"):
        RunDirectory(tmp_path).read(SourceRecord)
    assert RunDirectory(tmp_path).read_if_any(SourceRecord) == []


@given(cut=st.integers(1, len(to_line(source()))))
def test_a_torn_last_line_stops_reader_and_writer_until_repaired(tmp_path_factory, cut):
    path = tmp_path_factory.mktemp("run")
    whole = to_line(source(0)) + "\n"
    (path / "sources.jsonl").write_text(whole + to_line(source(1))[:cut])
    directory = RunDirectory(path)
    with pytest.raises(RecordError, match=r"line 2: torn record"):
        directory.read(SourceRecord)
    with pytest.raises(RecordError, match="torn line"):
        directory.append(source(2))
    with pytest.warns(UserWarning, match=r"sources\.jsonl, line 2: torn record dropped"):
        assert len(directory.repair()) == 1
    directory.append(source(2))
    assert [r.update for r in directory.read(SourceRecord)] == [0, 2]
    assert directory.repair() == []


def test_rewind_sets_aside_exactly_what_will_be_redone(tmp_path):
    """Checkpoint after two updates. Update 1 trained a group drawn for update 2: its trajectories stay."""
    directory = RunDirectory(tmp_path)
    trained = {0: ("update=0/group=0",), 1: ("update=2/group=0",), 2: ("update=1/group=0",)}
    for k, groups in trained.items():
        directory.append(update(k, groups))
        directory.append(trajectory(k))
        directory.append(source(k))
        directory.append(checkpoint(k + 1))
    assert directory.rewind(2) == 4
    assert [r.update for r in directory.read(UpdateRecord)] == [0, 1]
    assert [r.update for r in directory.read(SourceRecord)] == [0, 1]
    assert [parse_key(r.key).update for r in directory.read(TrajectoryRecord)] == [0, 2]
    assert [r.update for r in directory.read(CheckpointRecord)] == [1, 2]
    assert len(read_lines(tmp_path / "superseded-1" / "updates.jsonl", UpdateRecord)) == 3  # nothing is lost
    assert directory.rewind(2) == 0
    directory.append(update(2, ()))
    assert [r.update for r in directory.read(UpdateRecord)] == [0, 1, 2]


def test_a_whole_file_record_is_never_overwritten(tmp_path):
    directory = RunDirectory(tmp_path)
    end = EndRecord(reason="budget", updates=3, training_seconds=9.5)
    assert not directory.ended
    directory.end(end)
    assert directory.ended
    with pytest.raises(RecordError, match="never overwritten"):
        directory.end(end)
    (tmp_path / RunRecord.FILE).write_text("{}")
    with pytest.raises(RecordError, match=r"run\.json: schema None version None found, 'run' version 2 expected"):
        directory.run()


def test_numbers_that_are_not_finite_are_refused_when_the_record_is_made():
    with pytest.raises(ValueError, match="ended_at"):
        source().model_copy(update={}).__class__(**source().model_dump() | {"ended_at": math.nan})


@given(st.lists(st.integers(0, 10**6), min_size=2, max_size=4))
def test_keys_survive_the_trip_through_text(numbers):
    names = ["update", "group", "trajectory", "turn"]
    text = "/".join(f"{name}={number}" for name, number in zip(names, numbers, strict=False))
    key = parse_key(text)
    assert tuple(key) == tuple(numbers) and str(key) == text


@pytest.mark.parametrize("text", ["", "update=1", "update=1/group=-1", "update=1/group=2/turn=3", "batch"])
def test_other_keys_are_refused(text):
    with pytest.raises(ValueError, match="is no key"):
        parse_key(text)


def test_records_of_version_1_are_still_read(tmp_path):
    """What came later is None, or says that nothing waited; today's fields are required of today's version."""
    old = json.loads(to_line(source())) | {"version": 1}
    del old["deferred"]
    path = tmp_path / "sources.jsonl"
    path.write_text(json.dumps(old) + "\n")
    assert read_lines(path, SourceRecord) == [source()]
    path.write_text(json.dumps(old | {"version": 2}) + "\n")
    with pytest.raises(RecordError, match="deferred: Field required"):
        read_lines(path, SourceRecord)

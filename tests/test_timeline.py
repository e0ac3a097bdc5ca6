"""The timeline of hand-made records, parsed back from the file; and the slots that trajectories had."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent
from timeline_records import KEYS, SOURCES, TRAJECTORIES, UPDATE, run, source, trajectory, update

from paper_figures.timeline_view import draw_trace
from thundersync.records import RunDirectory
from thundersync.slots import stays
from thundersync.timeline import export_timeline
from thundersync.trace_file import Sample, Slice, read_trace, write_trace


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    directory = RunDirectory.create(tmp_path_factory.mktemp("runs") / "made-up", run("thundersync"))
    for record in (UPDATE, *TRAJECTORIES, *SOURCES):
        directory.append(record)
    directory.close()
    return export_timeline(directory.path)


def test_every_track_of_the_issue_is_there_with_its_times(trace):
    slices, _ = read_trace(trace)
    spans = {(s.room, s.track, s.name): (s.start, s.end) for s in slices}
    assert spans["rollout", "slot 0", "u0 g0 t0"] == (0.5, 3.0)
    assert spans["rollout", "slot 0", "u0 g1 t1"] == (3.0, 6.0)  # the slot that fell free at 3.0
    assert spans["rollout", "slot 2", "u0 g1 t0"] == (0.5, 4.5)
    assert spans["rollout", "slot 0", "generate turn 1"] == (1.5, 2.0)
    assert spans["environment", "environment 0", "command of turn 0"] in {(1.0, 1.5), (4.0, 5.0)}
    assert spans["environment", "environment 1", "verify u0 g0 t1"] == (4.0, 5.0)
    assert spans["learner", "rank 0", "source u0 g0 t0"] == (3.1, 4.7)
    assert spans["learner", "rank 0", "step 0"] == (6.6, 6.8)
    assert spans["publisher", "publisher", "publish version 1"] == (6.8, 7.0)
    assert len([s for s in slices if s.room == "learner"]) == len(SOURCES) + 1


def test_arrows_lead_from_each_reward_to_its_gradient_to_the_step(trace):
    slices, _ = read_trace(trace)
    chains = {}
    for one in slices:
        for number in one.flows:
            chains.setdefault(number, []).append(one.name)
    assert sorted(chains.values()) == sorted(
        [f"verify {name}", f"source {name}", "step 0"] for name in ("u0 g0 t0", "u0 g0 t1", "u0 g1 t0", "u0 g1 t1")
    )


def test_counters_hold_the_policy_version_and_what_waits_for_the_learner(trace):
    _, samples = read_trace(trace)
    assert [(s.at, s.value) for s in samples if s.counter == "policy version"] == [(0.4, 0), (7.0, 1)]
    # ready 3.0, 4.5, 5.0 and started 3.1, 4.7, 5.2; the last source and the closures start at once
    assert [(s.at, s.value) for s in samples if s.counter == "learner queue"] == [
        (3.0, 1), (3.1, 0), (4.5, 1), (4.7, 0), (5.0, 1), (5.2, 0),
    ]  # fmt: skip


def test_the_file_is_what_perfetto_reads(trace):
    """Without our reader: brackets balance on each track in order of time, and tracks hang below named rooms."""
    raw = Trace()
    raw.ParseFromString(trace.read_bytes())
    tracks = {p.track_descriptor.uuid: p.track_descriptor for p in raw.packet if p.HasField("track_descriptor")}
    rooms = {tracks[t.parent_uuid].name for t in tracks.values() if t.parent_uuid}
    assert rooms == {"rollout", "environment", "learner", "publisher"}
    depth, last = {}, 0
    for packet in raw.packet:
        if packet.HasField("track_event"):
            assert packet.timestamp >= last and packet.trusted_packet_sequence_id
            last, event = packet.timestamp, packet.track_event
            change = {TrackEvent.TYPE_SLICE_BEGIN: 1, TrackEvent.TYPE_SLICE_END: -1}.get(event.type, 0)
            depth[event.track_uuid] = depth.get(event.track_uuid, 0) + change
            assert depth[event.track_uuid] >= 0
    assert not any(depth.values())


def test_turns_scored_by_a_teacher_release_their_gradients(tmp_path):
    key = KEYS[0]
    scored = trajectory(key, 3.0, 3.5, 0.5, [(0.5, 1.0, 1.4, 1.2), (1.4, 2.0, 2.5, 3.0)])
    other = trajectory(KEYS[1], 3.0, 3.5, 0.5, [(0.5, 1.1, 1.3, 1.2)])
    directory = RunDirectory.create(tmp_path / "opd", run("thundersync", "opd"))
    work = [
        source(f"{key}/turn=0", "source", 0, 1.4, 1.5, 2.0),
        source(f"{key}/turn=1", "source", 0, 2.5, 2.6, 3.0),
        source(key, "deferred", 0, 3.0, 3.0, 3.2),
    ]
    for record in (UPDATE, scored, other, *work):
        directory.append(record)
    directory.close()
    slices, _ = read_trace(export_timeline(directory.path))
    assert {(s.track, s.start, s.end) for s in slices if s.room == "teacher"} == {
        ("request 0", 1.0, 1.4), ("request 1", 1.1, 1.3), ("request 0", 2.0, 2.5),
    }  # fmt: skip
    chains = {}
    for one in slices:
        for number in one.flows:
            chains.setdefault(number, []).append(one.name)
    names = ("u0 g0 t0 turn 0", "u0 g0 t0 turn 1")
    assert [[f"score {name}", f"source {name}", "step 0"] for name in names] == [
        c for c in chains.values() if len(c) > 1
    ]


def test_a_picture_is_drawn_from_the_file(trace, tmp_path):
    assert draw_trace(trace, tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="is no Perfetto trace"):
        (tmp_path / "junk").write_bytes(b"\xff\xff\xff")
        read_trace(tmp_path / "junk")


def test_slices_that_cross_are_refused_by_name(tmp_path):
    a, b = (Slice(room="learner", track="rank 0", name=n, start=s, end=e) for n, s, e in (("a", 0, 2), ("b", 1, 3)))
    with pytest.raises(ValueError, match="learner, rank 0: b and a cross"):
        write_trace(tmp_path / "trace", [a, b], [])


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=12))
def test_what_is_written_is_read(tmp_path_factory, spans):
    """Slices after one another on a track, with empty ones, and a counter."""
    at, slices = 0, []
    for i, (gap, length) in enumerate(spans):
        at += gap
        slices.append(
            Slice(
                room="rollout", track="slot 0", name=str(i), start=at, end=at + length, flows=(i + 1,), notes={"n": i}
            )
        )
        at += length
    samples = [Sample(counter="c", at=s.start, value=i) for i, s in enumerate(slices)]
    path = tmp_path_factory.mktemp("t") / "trace"
    write_trace(path, slices, samples)
    read, sampled = read_trace(path)
    assert sorted(read, key=lambda s: int(s.name)) == slices and sampled == samples


def test_starts_that_were_not_recorded_follow_from_the_order_of_slots():
    """Three slots: t11 starts when the first of the others ends, at 3.0, which is what the records with starts say."""
    bare = [t.model_copy(update={"started_at": None, "turn_spans": None}) for t in TRAJECTORIES]
    derived = {s.trajectory.key: (s.slot, s.started_at, s.recorded) for s in stays(run("thundersync"), [UPDATE], bare)}
    assert derived == {
        KEYS[0]: (0, 0.4, False),
        KEYS[1]: (1, 0.4, False),
        KEYS[2]: (2, 0.4, False),
        KEYS[3]: (0, 3.0, False),
    }


def test_async_admits_a_batch_when_the_one_before_starts_to_train():
    updates = [update(0, 0.0, 4.0, 2.0, (4.0, 4.1), 4.2), update(1, 4.2, 8.0, 4.2, (8.0, 8.1), 8.2)]
    bare = [trajectory(f"update={k}/group=0/trajectory=0", c, c + 0.5) for k, c in ((0, 1.0), (1, 3.0), (2, 6.0))]
    starts = [s.started_at for s in stays(run("async"), updates, bare)]
    assert starts == [0.0, 2.0, 4.2]

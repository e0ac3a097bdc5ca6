"""Run records to traces, and replay beside measurement: two updates worked out by hand."""

import numpy as np
import pytest
from synthetic import run_record, update_record

from thundersync.records import RecordError, RunDirectory, SourceRecord, Tokens, TrajectoryRecord
from thundersync.scaling.command import main
from thundersync.scaling.replay import law_error, release_fraction, replay, runtime_gap, stages
from thundersync.scaling.run_records import read_run_trace
from thundersync.scaling.trace import Job, StepTrace, Trace

START = 100.0


def run(path, schedule, *, closed, step_started, published, sources):
    """A run of one update: four groups of one trajectory, whose rewards come 2, 4, 6 and 10 seconds after its start."""
    directory = RunDirectory.create(path, run_record(path.name, schedule, "grpo", "micro_swe", 42))
    base = update_record(0, START, schedule, "0" * 64, 0.5, 1.0)
    times = {"rollout_closed_at": START + closed, "learner_started_at": START, "step_started_at": START + step_started}
    end = {"stepped_at": START + published, "published_at": START + published}
    directory.append(base.model_copy(update=times | end))
    for group, at in enumerate((2, 4, 6, 10)):
        directory.append(
            TrajectoryRecord(
                key=f"update=0/group={group}/trajectory=0", task_id="t", reward=0.0, success=False, outcome="submitted",
                turns=1, tokens=Tokens(prompt=2, context=3, generated=5, scored=5), oldest_version=0, newest_version=0,
                content_at=START + at - 1, reward_at=START + at,
            )
        )  # fmt: skip
    for kind, key, ready, started, ended in sources:
        fields = dict(
            zip(("ready_at", "started_at", "ended_at"), (START + t for t in (ready, started, ended)), strict=True)
        )
        directory.append(SourceRecord(key=key, kind=kind, update=0, tokens=10, rank=0, deferred="", **fields))
    directory.close()
    return path


@pytest.fixture
def streamed(tmp_path):
    """Service 3 each and 0.5 to close a group. The queue: 2-5, close -5.5, -8.5, -9, -12, -12.5, -15.5, -16."""
    sources, free = [], 0.0
    for group, ready in enumerate((2, 4, 6, 10)):
        key = f"update=0/group={group}"
        begin = max(ready, free)
        sources.append(("source", f"{key}/trajectory=0", ready, begin, begin + 3))
        sources.append(("group", key, begin + 3, begin + 3, begin + 3.5))
        free = begin + 3.5
    return run(tmp_path / "ts", "thundersync", closed=10, step_started=16.25, published=17, sources=sources)


@pytest.fixture
def sync(tmp_path):
    """Rollout 9, then 2.5 for each group directly, then 0.75."""
    sources = [("direct", f"update=0/group={g}", 9, 9 + 2.5 * g, 11.5 + 2.5 * g) for g in range(4)]
    return run(tmp_path / "sync", "sync", closed=9, step_started=19, published=19.75, sources=sources)


def test_replay_by_hand(sync, streamed):
    pair = replay(read_run_trace(sync), read_run_trace(streamed))
    mine = pair.streamed
    assert (mine.rollout, mine.learner, mine.suffix) == pytest.approx((10, 14, 0.75))
    assert mine.replayed == pytest.approx(16.75) and mine.tail == pytest.approx(6)
    assert mine.measured == pytest.approx(17) and pair.sync.measured == pytest.approx(19.75)
    assert pair.predicted == pytest.approx(24.75 / 16.75)  # o
    assert pair.measured == pytest.approx(19.75 / 17)  # f
    assert pair.gap == pytest.approx(100 * (1 - (19.75 / 17) / (24.75 / 16.75)))
    assert pair.side_by_side * pair.unexplained == pytest.approx(pair.measured / pair.predicted)
    assert pair.unexplained == pytest.approx(16.75 / 17)
    assert pair.stretch() == pytest.approx({"rollout": 10 / 9, "learner": 14 / 10, "suffix": 1})


def test_the_command_tells_the_pair(sync, streamed, capsys):
    assert main(["replay", str(sync), str(streamed), "--warmup", "0"]) == 0
    printed = capsys.readouterr().out
    assert "| learner | 10.000 | 14.000 | 1.40 |" in printed and "| step, replayed | 19.750 | 16.750 |" in printed
    assert f"o = {24.75 / 16.75:.3f}; measured: f = {19.75 / 17:.3f}" in printed
    assert main(["replay", str(sync), str(streamed)]) == 2
    assert "none after 1 of warm-up" in capsys.readouterr().err


def test_a_direct_batch_is_divided_over_its_trajectories(sync):
    trace = read_run_trace(sync)
    assert [(j.ready, j.service, j.content) for j in trace.steps[0].jobs] == [
        (2, 2.5, 1), (4, 2.5, 3), (6, 2.5, 5), (10, 2.5, 9)
    ]  # fmt: skip
    assert stages(trace.steps).sync == pytest.approx(19.75) and "tokens" in trace.notes[0]


def test_ranks_queue_apart():
    """One rank works 2 + 4, the other 1: pooled, the step would seem to end at 7 or at 3.5."""
    jobs = tuple(
        Job(group=g, trajectory=g, ready=0, service=s, rank=r) for g, (s, r) in enumerate([(2, 0), (4, 0), (1, 1)])
    )
    step = StepTrace(update=0, rollout=1, suffix=0.5, jobs=jobs)
    assert (step.streamed_step, step.learner, step.sync_step) == (6.5, 6, 7.5)


def test_equation_29():
    assert law_error(1.9, 2.0) == pytest.approx(5) and law_error(2.1, 2.0) == pytest.approx(5)
    assert runtime_gap(2.0, 1.9) == pytest.approx(5) and runtime_gap(1.9, 2.0) < 0


def test_release_fraction_is_strictly_before():
    """Equation 18 with R = 10: a quarter of the service at 2, 4, 6, 10."""
    jobs = tuple(Job(group=0, trajectory=i, ready=at, service=3) for i, at in enumerate((2, 4, 6, 10)))
    trace = Trace(source="by hand", steps=(StepTrace(update=0, rollout=10, suffix=0, jobs=jobs),), unit="trajectory")
    assert release_fraction(trace, np.array([0.1, 0.2, 0.21, 0.6, 0.7, 1.0])).tolist() == [0, 0, 0.25, 0.5, 0.75, 0.75]


def test_runs_that_cannot_be_paired_are_refused(sync, streamed, tmp_path):
    with pytest.raises(ValueError, match="has 1 updates, none after 1 of warm-up"):
        read_run_trace(sync, warmup=1)
    (streamed / "sources.jsonl").unlink()
    with pytest.raises(RecordError, match="sources.jsonl is missing"):
        read_run_trace(streamed)
    trace = read_run_trace(sync)
    other = Trace(
        source="b", steps=(StepTrace(update=5, rollout=1, suffix=0, jobs=trace.steps[0].jobs),), unit="trajectory"
    )
    with pytest.raises(ValueError, match="no update in common"):
        replay(trace, other)

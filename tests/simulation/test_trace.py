"""Durations from records: those that were put in come out again, and a recorded run simulates to its own step times."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import synthetic

from analysis.simulated import recorded_cells, trace_rows
from thundersync.batch import GroupKey, TrajectoryKey
from thundersync.ports import ContentReady, RewardReady
from thundersync.records import RecordError, RunDirectory, SourceRecord, Tokens, digest_of, source_record
from thundersync.records.build import trajectory_record
from thundersync.simulation import Generated, Setting, simulate
from thundersync.simulation.trace import read_trace

MODEL = Generated(
    seed=9, group_size=3, trajectory_s=6.0, service_s=1.5, turns=3, verification_s=0.4, closure=0.0, deferred=0.3,
    step_s=0.2, publication_s=0.7,
)  # fmt: skip
DURATIONS = replace(MODEL.durations(), boundary=lambda update: 0.25 * (update % 2))


def setting(schedule, **changes):
    return Setting(schedule=schedule, prompts=2, group_size=3, updates=4, slots=4, lag_bound=1, **changes)


def config_of(chosen: Setting) -> dict:
    return {
        "schedule": {
            "name": chosen.schedule, "reduction": chosen.reduction, "lag_bound": chosen.lag_bound,
            "open_groups": chosen.open_groups, "waiting_rewards": 1,
        },
        "objective": {
            "name": "grpo" if chosen.needs_reward else "opd", "release": chosen.release,
            "prompts_per_update": chosen.prompts, "trajectories_per_prompt": chosen.group_size,
        },
        "scale": {"replicas": chosen.replicas},
        "generation": {"concurrent_episodes_per_replica": chosen.slots},
    }  # fmt: skip


def record(root, outcome):
    """Writes the records that a real run with these times would have left."""
    chosen, config = outcome.setting, config_of(outcome.setting)
    name = f"grpo-made-{chosen.schedule}-seed1"
    run = synthetic.run_record(
        name, chosen.schedule, "grpo", "made", 1, config=config, settings_digest=digest_of(config)
    )
    directory = RunDirectory.create(root / name, run)
    content = {event.key: event.at for event in outcome.events if isinstance(event, ContentReady)}
    for event in outcome.events:
        if isinstance(event, RewardReady):
            written = trajectory_record(event, content_at=content[event.key])
            directory.append(written.model_copy(update={"tokens": tokens_of(event.key)}))
    for receipt in outcome.receipts:
        if receipt.kind != "direct":
            directory.append(source_record(receipt))
    for update in outcome.published:
        times = {name: getattr(update, name) for name in
                 ("started_at", "rollout_closed_at", "learner_started_at", "published_at")}  # fmt: skip
        times |= {"step_started_at": update.step.started_at, "stepped_at": update.step.ended_at}
        k = update.batch.update
        directory.append(synthetic.update_record(k, 0.0, chosen.schedule, "h", 0.5, 1.0).model_copy(update=times))
        if any(receipt.kind == "direct" for receipt in outcome.receipts):
            at = update.learner_started_at
            for plan in update.batch.groups:
                seconds = sum(DURATIONS.trajectory(TrajectoryKey(*plan.key, i)).service for i in range(plan.size))
                directory.append(
                    SourceRecord(key=str(plan.key), kind="direct", update=k, ready_at=at, started_at=at,
                                 ended_at=at + seconds, tokens=1, rank=0, deferred="")
                )  # fmt: skip
                at += seconds
    directory.close()
    return directory


def tokens_of(key: TrajectoryKey) -> Tokens:
    """In proportion to service, as divides a group's `direct` time."""
    return Tokens(prompt=9, context=0, generated=round(1e9 * DURATIONS.trajectory(key).service), scored=0)


@pytest.mark.parametrize(
    "chosen",
    [
        setting("sync"),
        setting("async"),
        setting("fully_async"),
        setting("thundersync"),
        setting("thundersync", release="turn_eager", needs_reward=False, turn_events=True),
        setting("sync", reduction="sums"),
    ],
    ids=lambda chosen: f"{chosen.schedule}-{chosen.release}-{chosen.reduction}",
)
def test_the_durations_of_a_run_are_found_in_its_records(chosen, tmp_path):
    outcome = simulate(chosen, DURATIONS)
    trace = read_trace(record(tmp_path, outcome))
    for update in outcome.published:
        for key in update.batch.keys:
            found, put_in = trace.trajectories[key], DURATIONS.trajectory(key)
            assert found.seconds == pytest.approx(put_in.seconds, rel=1e-6)
            assert found.verification == pytest.approx(0.4, rel=1e-6)
            if chosen.release == "turn_eager":
                assert found.turn_ends_T == pytest.approx([1 / 3, 2 / 3, 1], rel=1e-6)
                assert found.deferred == pytest.approx(put_in.deferred, rel=1e-6)
                assert found.turn_service == pytest.approx(put_in.turn_service, rel=1e-6)
            else:
                assert found.service == pytest.approx(put_in.service, rel=1e-6)
    again = simulate(replace(trace.setting, turn_events=True), trace.durations(), group=trace.group)
    assert again.step_seconds() == pytest.approx(outcome.step_seconds(), rel=1e-6)
    assert trace.step_seconds == pytest.approx(outcome.step_seconds(), rel=1e-6)


def test_other_schedules_are_predicted_from_the_durations_of_one(tmp_path):
    """Durations that do not depend on the schedule: every prediction is the truth."""
    truth = {s: simulate(setting(s), DURATIONS) for s in ("sync", "thundersync")}
    for outcome in truth.values():
        record(tmp_path, outcome)
    cells = recorded_cells(tmp_path)
    rows = trace_rows("made", cells["grpo-made-seed1"])
    assert len(rows) == 4
    for row in rows:
        expected = np.mean(truth[row["schedule"]].step_seconds(warmup=1))
        assert row["simulated_step_s"] == pytest.approx(expected, rel=1e-6)
        assert row["simulated_over_measured"] == pytest.approx(1, rel=1e-6)


def test_a_trajectory_that_was_never_recorded_takes_the_times_of_one_that_was(tmp_path):
    trace = read_trace(record(tmp_path, simulate(setting("sync"), DURATIONS)))
    durations, far = trace.durations(), TrajectoryKey(99, 1, 2)
    assert durations.trajectory(far) in trace.trajectories.values()
    assert durations.trajectory(far) == durations.trajectory(far)
    assert durations.group(GroupKey(99, 0)) == 0


def test_a_run_without_an_update_is_refused(tmp_path):
    directory = record(tmp_path, simulate(setting("sync"), DURATIONS))
    (directory.path / "updates.jsonl").write_text("")
    with pytest.raises(RecordError, match="no completed update"):
        read_trace(directory)

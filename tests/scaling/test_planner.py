"""The planner against traces small enough to work out by hand, and against what must hold for every trace."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thundersync.scaling.plan_report import report, table
from thundersync.scaling.planner import Question, make_plan, slot_time
from thundersync.scaling.releases import Shares, predictable, release
from thundersync.scaling.trace import Job, StepTrace, Trace, unit_of
from thundersync.scaling.trace_files import GROUP_LOG, read_public_logs


def trace_of(*steps: StepTrace) -> Trace:
    return Trace(source="by hand", steps=steps, unit=unit_of([job for step in steps for job in step.jobs]))


def four_trajectories() -> Trace:
    """Two groups of two, ready at 2, 4 | 6, 10 with 3 of service each: R = 10, L = 12, P = 1."""
    ready = {(0, 0): 2, (0, 1): 4, (1, 2): 6, (1, 3): 10}
    jobs = tuple(Job(group=g, trajectory=t, ready=at, service=3, content=at - 1) for (g, t), at in ready.items())
    return trace_of(StepTrace(update=0, rollout=10, suffix=1, jobs=jobs))


def test_step_times_by_hand():
    plan = make_plan(four_trajectories())
    steps = {(p.schedule, p.release): p.step for p in plan.predictions}
    assert steps == {
        ("sync", ""): 10 + 12 + 1,
        ("thundersync", "trajectory"): 10 + 3 + 1 + 1,  # 5, 8, 11, 14
        ("thundersync", "group"): 16 + 1,  # 4 + 6 = 10, then 10 + 6
        ("thundersync", "content"): 13 + 1,  # ready at 1, 3, 5, 9: 4, 7, 10, 13
        ("async", ""): 12 + 1,
        ("fully_async", ""): 12 + 1,  # the learner needs longer than a slot, (2 + 4 + 6 + 10) / 4
    }
    assert plan.best_release == "content"
    assert plan.share == pytest.approx(12 / 22)
    assert plan.bound == pytest.approx(22 / 12)
    assert plan.bound_with_suffix == pytest.approx(23 / 13)


def test_split_and_batch_by_hand():
    jobs = tuple(Job(group=job.group, trajectory=job.trajectory, ready=job.ready, service=3)
                 for job in four_trajectories().steps[0].jobs)  # fmt: skip
    plan = make_plan(trace_of(StepTrace(update=0, rollout=10, suffix=1, jobs=jobs)))  # releases by trajectory
    splits = {s.rollout_gpus: s for s in plan.splits}
    assert sorted(splits) == [1, 2, 3, 4, 5, 6, 7]
    # 3 + 5: ready at 8/3, 16/3, 8, 40/3 with 2.4 of service: the last one starts when it is ready.
    assert splits[3].streamed == pytest.approx(40 / 3 + 2.4 + 1)
    assert splits[3].sync == pytest.approx(40 / 3 + 4 * 2.4 + 1)
    batches = {b.factor: b for b in plan.batches}
    assert (batches[2].sync, batches[2].streamed) == (20 + 24 + 1, 26 + 1)  # 5, 8, 11, 14, 17, 20, 23, 26
    assert (batches[0.5].sync, batches[0.5].streamed) == (10 + 6 + 1, 11.5 + 1)  # half the service, same window


def test_releases_by_turns_by_hand():
    """One trajectory, turns ready at 1 and 3 with 2 of service each; half of it early: 1+1, 3+1, then 2 more."""
    jobs = (
        Job(group=0, trajectory=0, turn=0, ready=1, service=2),
        Job(group=0, trajectory=0, turn=1, ready=3, service=2),
    )
    step = StepTrace(update=0, rollout=3, suffix=0, jobs=jobs)
    assert release(step, "turn_eager", Shares(early=0.5, late=0.5)).streamed_step == 6
    assert release(step, "trajectory").streamed_step == 7
    assert step.streamed_step == 5  # as recorded: everything with its turn
    assert predictable(trace_of(step)) == ("group", "trajectory", "turn_eager", "turn_forward")


def test_a_closure_is_released_with_its_group():
    jobs = (Job(group=0, trajectory=0, ready=1, service=1), Job(group=0, trajectory=1, ready=5, service=1),
            Job(group=0, ready=5, service=2))  # fmt: skip
    assert release(StepTrace(update=0, rollout=5, suffix=0, jobs=jobs), "trajectory").streamed_step == 5 + 1 + 2


def test_what_a_trace_cannot_tell_is_refused():
    groups = StepTrace(update=7, rollout=1, suffix=0, jobs=(Job(group=0, ready=1, service=1),))
    assert predictable(trace_of(groups)) == ("group",)
    with pytest.raises(ValueError, match="update 7 does not say when turns were ready"):
        release(groups, "turn_eager", Shares(early=1, late=1))
    with pytest.raises(ValueError, match="valid are group, trajectory, content"):
        release(groups, "batch")
    with pytest.raises(ValueError, match="capacity is 0"):
        Question(capacity=0)
    with pytest.raises(ValueError, match="neither rollout nor learner takes any time"):
        make_plan(trace_of(StepTrace(update=0, rollout=0, suffix=1, jobs=(Job(group=0, ready=0, service=0),))))


def test_slots_that_are_refilled_are_busy_until_their_last_trajectory():
    """Four trajectories of 2, 4, 4, 6 seconds on two slots: 2 + 4 and 4 + 6, so each slot is busy for 8 on average."""
    jobs = tuple(Job(group=0, trajectory=i, ready=at, service=1) for i, at in enumerate([2, 4, 6, 10]))
    assert slot_time(StepTrace(update=0, rollout=10, suffix=0, jobs=jobs), capacity=2) == 8


times = st.floats(0, 50)


@st.composite
def traces(draw):
    """Turns of a few trajectories in a few groups, with a closure for each group."""
    jobs = []
    for group in range(draw(st.integers(1, 3))):
        for trajectory in range(draw(st.integers(1, 2))):
            for turn in range(draw(st.integers(1, 3))):
                ready, service = draw(times), draw(st.floats(0.01, 50))
                jobs.append(Job(group=group, trajectory=trajectory, turn=turn, ready=ready, service=service))
    rollout = max(job.ready for job in jobs)
    return trace_of(StepTrace(update=0, rollout=rollout, suffix=draw(times), jobs=tuple(jobs)))


@given(traces())
def test_releasing_earlier_never_hurts_and_nothing_beats_the_bound(trace):
    step = trace.steps[0]
    least = max(step.rollout, step.learner) + step.suffix
    ordered = [step, release(step, "trajectory"), release(step, "group")]
    seconds = [least, *(one.streamed_step for one in ordered), step.sync_step]
    assert all(a <= b + 1e-9 for a, b in zip(seconds, seconds[1:], strict=False))
    moved = release(step, "turn_forward", Shares(early=0.3, late=0.7))
    assert moved.learner == pytest.approx(step.learner)


@given(traces())
def test_a_plan_is_consistent(trace):
    plan = make_plan(trace)
    now = next(split for split in plan.splits if split.rollout_gpus == 4)
    assert now.streamed == pytest.approx(plan.prediction("thundersync", plan.best_release).step)
    assert now.sync == pytest.approx(plan.prediction("sync").step)
    assert next(batch for batch in plan.batches if batch.factor == 1).streamed == pytest.approx(now.streamed)


def test_table_and_report_name_what_was_measured_and_what_predicted():
    step = four_trajectories().steps[0]
    measured = StepTrace(update=0, rollout=10, suffix=1, jobs=step.jobs, observed=25.0)
    plan = make_plan(trace_of(measured))
    text = table(plan)
    assert "measured step: 25.00 s; replayed as Sync: 23.00 s (-8.0%)" in text
    assert "| ThunderSync | trajectory | 15.00 | 1.53 |" in text
    assert "| 4 + 4 (now)" in text and "(best)" in text
    assert report(plan)["observed_s"] == 25.0 and report(plan)["predicted"][0]["step_s"] == 23.0


def test_the_public_logs():
    """The published facts of these logs: Sync replays within 2 % of the observed time, streaming gains about 1.22."""
    folder = Path(os.environ.get("THUNDERSYNC_DATA", "."))
    if not (folder / GROUP_LOG).exists():
        pytest.skip(f"set THUNDERSYNC_DATA to the folder of {GROUP_LOG}")
    plan = make_plan(read_public_logs(folder))
    assert plan.observed == pytest.approx(89.9, abs=0.05)
    assert plan.prediction("sync").step == pytest.approx(plan.observed, rel=0.02)
    assert plan.prediction("thundersync", "group").speedup == pytest.approx(1.22, abs=0.005)
    assert plan.share == pytest.approx(0.372, abs=0.001) and plan.bound == pytest.approx(1.59, abs=0.005)

"""What goes wrong and what must follow: progress or an error with a name, and every invariant; checks that can fire."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import pytest

from thundersync.batch import TrajectoryKey
from thundersync.ports import LearnerError, PublicationError, RolloutError
from thundersync.simulation import Deadlock, Generated, Setting, simulate
from thundersync.simulation.faults import KINDS, Fault, Faults
from thundersync.simulation.histories import SCHEDULES, run_history
from thundersync.simulation.invariants import violations
from thundersync.simulation.run import Publication

HISTORIES = 500
"""Of each schedule; `make simulate` runs more."""
SETTING = Setting(
    schedule="thundersync", prompts=2, group_size=2, updates=3, slots=2, replicas=2, ranks=2,
    acknowledge_timeout_s=60, rollout_timeout_s=200, learner_timeout_s=300, tool_timeout_s=20, turn_events=True,
)  # fmt: skip
DURATIONS = Generated(
    seed=1, group_size=2, trajectory_s=4.0, service_s=1.0, turns=2, verification_s=0.5, step_s=0.2, publication_s=1.0
).durations()
SILENT = (RolloutError, PublicationError)
"""Fully Async may publish before it misses what a silent replica rolled out."""
KEY = TrajectoryKey(1, 0, 1)


def run(fault: Fault, **changes):
    return simulate(replace(SETTING, **changes), DURATIONS, Faults((fault,)))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_seeded_histories_keep_every_invariant(schedule):
    first = SCHEDULES.index(schedule) * 100_000
    histories = [run_history(seed, schedule) for seed in range(first, first + HISTORIES)]
    assert [(h.seed, h.wrong) for h in histories if h.wrong] == []
    ends = Counter(h.error.split(":")[0] for h in histories)
    assert set(ends) == {"", "RolloutError", "LearnerError", "PublicationError"}, "every kind of end is seen"
    assert {kind for h in histories for kind in h.kinds} == set(KINDS)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        (Fault(kind="replica_dies", target=1, at=3), RolloutError, "rollout replica replica-1 died"),
        (Fault(kind="replica_hangs", target=1, at=3), SILENT, "scale.rollout_timeout_s|replica-1 did not acknowl"),
        (Fault(kind="replica_late", target=1, at=3, seconds=500), SILENT, "scale.rollout_timeout_s|replica-1 did not"),
        (Fault(kind="rank_dies", target=1, at=8), LearnerError, "learner rank 1 died"),
        (Fault(kind="rank_hangs", target=1, at=8), LearnerError, "scale.learner_timeout_s.*rank"),
        (Fault(kind="reward_lost", key=KEY), RolloutError, "update=1/group=0/trajectory=1 for its reward"),
        (Fault(kind="event_twice", key=KEY), RolloutError, "the reward of update=1/group=0/trajectory=1 came twice"),
        (
            Fault(kind="event_twice", key=KEY, event="turn"),
            RolloutError,
            "the turn of .*trajectory=1/turn=0 came twice",
        ),
        (Fault(kind="event_twice", key=KEY, event="content"), RolloutError, "content of .*trajectory=1 came twice"),
    ],
)
def test_a_fault_ends_in_an_error_that_names_it(schedule, fault, error, message):
    outcome = run(fault, schedule=schedule)
    assert isinstance(outcome.error, error)
    assert re.search(message, str(outcome.error)), outcome.error
    assert violations(outcome) == []


def test_a_hung_rank_is_named_with_the_work_that_waits():
    outcome = run(Fault(kind="rank_hangs", target=1, at=0))
    assert "learn_trajectory of update=0/group=1" in str(outcome.error) and "on rank 1" in str(outcome.error)


def test_a_replica_that_fails_in_publication_is_named_and_the_version_does_not_advance():
    calm = simulate(SETTING, DURATIONS)
    during = calm.published[1].published_at - 0.5
    for kind, message in (("replica_dies", "died"), ("replica_hangs", "did not acknowledge version 2 within 60 s")):
        outcome = run(Fault(kind=kind, target=1, at=during))
        assert isinstance(outcome.error, PublicationError | RolloutError)
        assert "replica-1" in str(outcome.error) and message in str(outcome.error)
        assert [publication.version for publication in outcome.publications] == [1]
        assert len(outcome.published) == 1


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    "fault",
    [
        Fault(kind="tool_hangs", key=KEY),
        Fault(kind="replica_late", target=0, at=3, seconds=5),
        Fault(kind="rank_late", target=0, at=3, seconds=5),
    ],
    ids=lambda fault: fault.kind,
)
def test_what_is_only_slow_costs_time_and_nothing_else(schedule, fault):
    outcome, calm = run(fault, schedule=schedule), simulate(replace(SETTING, schedule=schedule), DURATIONS)
    assert outcome.error is None and len(outcome.published) == 3 and violations(outcome) == []
    assert outcome.published[-1].published_at > calm.published[-1].published_at
    ended = {t.outcome for update in outcome.published for t in update.trajectories}
    assert ended == ({"virtual", "tool_timeout"} if fault.kind == "tool_hangs" else {"virtual"})


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("late", [0.0, 0.3, 12.0])
def test_without_the_watch_a_schedule_itself_refuses_a_second_reward(schedule, late):
    """Fully Async once counted it as another member's, and trained the group without that member."""
    bare = replace(SETTING, schedule=schedule, rollout_timeout_s=float("inf"), prompts=1, updates=9)
    key = TrajectoryKey(0, 0, 0)
    with pytest.raises(ValueError, match="update=0/group=0/trajectory=0 (is not open|belongs to no)"):
        simulate(bare, DURATIONS, Faults((Fault(kind="event_twice", key=key, seconds=late),)))


def test_without_the_watch_silence_is_a_deadlock():
    bare = replace(SETTING, rollout_timeout_s=float("inf"))
    with pytest.raises(Deadlock):
        simulate(bare, DURATIONS, Faults((Fault(kind="reward_lost", key=KEY),)))


def test_a_dead_rank_is_noticed_while_the_rollout_still_runs():
    """ThunderSync and Async do not roll a whole batch for a learner that is gone."""
    slow = Generated(seed=1, group_size=2, trajectory_s=100.0, service_s=1.0, turns=1).durations()
    for schedule in ("async", "thundersync"):
        setting = replace(SETTING, schedule=schedule, prompts=8, slots=1)
        calm = simulate(setting, slow)
        work = min(r.ended_at for r in calm.receipts if r.rank == 1)
        outcome = simulate(setting, slow, Faults((Fault(kind="rank_dies", target=1, at=work - 0.01),)))
        assert "learner rank 1 died" in str(outcome.error)
        closes = calm.published[0].rollout_closed_at
        assert max(event.at for event in outcome.events) < closes


# ---- the invariants can fire


def tampered(**changes):
    outcome = simulate(SETTING, DURATIONS)
    for name, change in changes.items():
        setattr(outcome, name, change(getattr(outcome, name)))
    return violations(outcome)


def test_a_clean_run_breaks_nothing():
    assert tampered() == []


def test_learning_a_trajectory_twice_or_never_is_seen():
    outcome = simulate(SETTING, DURATIONS)
    outcome.learner.steps[1][1][TrajectoryKey(1, 0, 0)] += 1
    del outcome.learner.steps[1][1][TrajectoryKey(1, 0, 1)]
    assert {words.split(" for the")[0] for words in violations(outcome)} == {
        "update=1/group=0/trajectory=0 was learned 2 times",
        "update=1/group=0/trajectory=1 was learned 0 times",
    }


def test_a_second_step_for_a_batch_is_seen():
    outcome = simulate(SETTING, DURATIONS)
    outcome.learner.steps.append(outcome.learner.steps[-1])
    assert violations(outcome) == ["optimizer steps were taken for updates [0, 1, 2, 2]"]


def test_training_in_two_updates_is_seen():
    twice = tampered(published=lambda p: [*p[:2], replace(p[2], batch=p[1].batch, trajectories=p[1].trajectories)])
    assert any("was trained in 2 updates" in words for words in twice)


def test_another_lag_than_declared_is_seen():
    late = tampered(published=lambda p: [*p[:2], replace(p[2], learner_version=3)])
    assert len(late) == 4 and all("of versions 2 to 2 was trained at 3" in words for words in late)


def test_publishing_before_every_replica_serves_is_seen():
    early = tampered(publications=lambda p: [*p[:2], Publication(3, (3, 2))])
    assert early == ["version 3 counted as published while replicas served (3, 2)"]


def test_stopping_without_an_error_is_seen():
    short = tampered(published=lambda p: p[:2], publications=lambda p: p[:2])
    assert short == ["the run stopped after 2 of 3 updates without an error"]

"""The virtual ports against closed forms: slots, ranks, turns with and without events, seeds."""

from __future__ import annotations

import heapq
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thundersync.batch import GroupKey, TrajectoryKey
from thundersync.simulation import (
    Deadlock,
    Durations,
    Generated,
    Setting,
    TrajectoryTimes,
    lognormal,
    simulate,
    uniform,
)
from thundersync.simulation.reference import Stages, calibrated

BASE = Setting(schedule="thundersync", prompts=3, group_size=2, updates=2, slots=2)
MODEL = Generated(
    seed=5, group_size=2, trajectory_s=10.0, service_s=3.0, turns=4, gamma=0.5, closure=0.1, deferred=0.4,
    verification_s=1.0, step_s=0.5, publication_s=2.0,
)  # fmt: skip


def times_of(model, update, prompts=3, size=2):
    durations = model.durations()
    keys = [TrajectoryKey(update, g, i) for g in range(prompts) for i in range(size)]
    return {key: durations.trajectory(key) for key in keys}, durations


def test_slots_are_given_on_in_order_of_admission():
    """A hand-kept queue of two slots gives the same rollout as the port."""
    outcome = simulate(replace(BASE, schedule="sync", updates=1), MODEL.durations())
    free, last = [0.0, 0.0], 0.0
    for times in times_of(MODEL, 0)[0].values():
        start = heapq.heappop(free)
        heapq.heappush(free, start + times.seconds + times.verification)
        last = max(last, start + times.seconds + times.verification)
    assert outcome.published[0].rollout_closed_at == pytest.approx(last, rel=1e-12)


def test_ranks_queue_apart_and_the_step_waits_for_the_last():
    """Equation 14 on each rank by itself: the group at place i belongs to rank i mod 2."""
    outcome = simulate(replace(BASE, ranks=2, slots=6, updates=1), MODEL.durations())
    times, durations = times_of(MODEL, 0)
    closed = []
    for rank in range(2):
        c, left = 0.0, {}
        own = {key: t for key, t in times.items() if key.group % 2 == rank}
        for key in sorted(own, key=lambda key: own[key].rollout):
            c = max(c, own[key].rollout) + own[key].service
            left[key.group_key] = left.get(key.group_key, 0) + 1
            if left[key.group_key] == 2:
                c += durations.group(key.group_key)
        closed.append(c)
    rollout = max(t.rollout for t in times.values())
    assert outcome.step_seconds()[0] == pytest.approx(max(rollout, *closed) + 0.5 + 2.0, rel=1e-9)
    assert {receipt.rank for receipt in outcome.receipts} == {0, 1}


@settings(max_examples=25, deadline=None)
@given(
    release=st.sampled_from(["turn_eager", "turn_forward"]),
    prompts=st.integers(1, 4),
    size=st.integers(1, 3),
    slots=st.integers(1, 6),
    ranks=st.integers(1, 3),
    turns=st.integers(1, 6),
    service=st.floats(0.01, 8),
    seed=st.integers(0, 10**6),
)
def test_turns_in_the_queue_take_the_time_of_turns_with_events(
    release, prompts, size, slots, ranks, turns, service, seed
):
    model = replace(MODEL, seed=seed, group_size=size, turns=turns, service_s=service)
    setting = Setting(
        schedule="thundersync", prompts=prompts, group_size=size, updates=2, slots=slots, ranks=ranks, release=release,
        needs_reward=release == "turn_forward",
    )  # fmt: skip
    quick = simulate(setting, model.durations())
    slow = simulate(replace(setting, turn_events=True), model.durations())
    assert quick.step_seconds() == pytest.approx(slow.step_seconds(), rel=1e-8)
    assert quick.learner.busy == pytest.approx(slow.learner.busy, rel=1e-9)
    assert len(slow.events) - len(quick.events) == 2 * prompts * size * turns


@pytest.mark.parametrize("schedule", ["sync", "async", "fully_async", "thundersync"])
def test_a_seed_gives_the_same_run_and_another_one_another(schedule):
    setting = replace(BASE, schedule=schedule, replicas=2, ranks=2, updates=3)
    first, again = (simulate(setting, MODEL.durations()).step_seconds() for _ in range(2))
    assert first == again
    assert first != simulate(setting, replace(MODEL, seed=6).durations()).step_seconds()


def test_a_draw_depends_on_identity_only():
    forward, backward = MODEL.durations(), MODEL.durations()
    keys = [TrajectoryKey(u, g, i) for u in range(3) for g in range(3) for i in range(2)]
    there = {key: forward.trajectory(key).seconds for key in keys}
    back = {key: backward.trajectory(key).seconds for key in reversed(keys)}
    assert there == back and len(set(there.values())) == len(keys)


@pytest.mark.parametrize(("shape", "dispersion"), [(uniform, 1 / 3**0.5), (lognormal(0.8), 0.8), (lognormal(0), 0)])
def test_shapes_have_mean_one_and_the_dispersion_they_name(shape, dispersion):
    values = np.array([shape((i + 0.5) / 100_000) for i in range(100_000)])
    assert values.mean() == pytest.approx(1, rel=2e-3)
    assert values.std() == pytest.approx(dispersion, rel=2e-2, abs=1e-12)


def test_service_has_the_mean_that_is_asked_for_and_grows_with_duration():
    """E[service] = service_s, closure included, and service is proportional to duration^gamma (Appendix F.2)."""
    model = replace(MODEL, group_size=8, verification_s=0.0)
    durations = model.durations()
    groups = [GroupKey(u, g) for u in range(40) for g in range(10)]
    times = [durations.trajectory(TrajectoryKey(*group, i)) for group in groups for i in range(8)]
    whole = sum(t.service for t in times) + sum(map(durations.group, groups))
    assert whole / len(times) == pytest.approx(3.0, rel=0.03)
    ratios = [t.service / t.seconds**0.5 for t in times]
    assert max(ratios) == pytest.approx(min(ratios), rel=1e-9)


def test_calibration_gives_sync_its_stages():
    setting = replace(BASE, schedule="sync", replicas=2, ranks=2, updates=5)
    model = calibrated(setting, replace(MODEL, verification_s=0.0), Stages(rollout=650, learner=646.4, suffix=17.2))
    outcome = simulate(setting, model.durations())
    assert np.mean(outcome.step_seconds()) == pytest.approx(650 + 646.4 + 17.2, rel=1e-9)
    assert np.mean([u.rollout_closed_at - u.started_at for u in outcome.published]) == pytest.approx(650, rel=1e-9)


def test_a_cap_on_open_groups_holds_on_each_rank_by_itself():
    """Two ranks with a cap of one: two groups are open at once, which a cap over all ranks would forbid."""
    outcome = simulate(replace(BASE, prompts=4, slots=8, ranks=2, open_groups=1, updates=1), MODEL.durations())
    open_, most = {0: set(), 1: set()}, 0
    for receipt in sorted(outcome.receipts, key=lambda receipt: receipt.started_at):
        own = open_[receipt.rank]
        if receipt.kind == "group":
            own.remove(receipt.key)
        else:
            own.add(receipt.key.group_key)
        assert len(own) <= 1
        most = max(most, sum(map(len, open_.values())))
    assert most == 2


def test_a_wait_that_nothing_ends_is_a_deadlock_not_a_hang():
    lost = TrajectoryTimes(seconds=float("inf"), service=1.0)
    with pytest.raises(Deadlock):
        simulate(BASE, Durations(trajectory=lambda key: lost, group=lambda group: 0.0))


def test_work_does_not_grow_faster_than_n_log_n(monkeypatch):
    """Counted in calls of the event loop, not in seconds: doubling the batch at most doubles them, turns add none."""
    import asyncio

    calls = 0
    plain = asyncio.events.Handle._run

    def counted(self):
        nonlocal calls
        calls += 1
        return plain(self)

    monkeypatch.setattr(asyncio.events.Handle, "_run", counted)

    def cost(schedule, prompts, turns, **release):
        nonlocal calls
        calls = 0
        setting = Setting(
            schedule=schedule, prompts=prompts, group_size=4, updates=2, slots=8, replicas=4, ranks=2, **release
        )
        simulate(setting, replace(MODEL, group_size=4, turns=turns).durations(), keep_events=False)
        return calls

    by_turns = {"release": "turn_eager", "needs_reward": False}
    for schedule, release in [(s, {}) for s in ("sync", "async", "fully_async")] + [("thundersync", by_turns)]:
        small, large = cost(schedule, 32, 1, **release), cost(schedule, 64, 1, **release)
        assert large <= 2.1 * small
        assert cost(schedule, 32, 300, **release) <= 1.05 * small

"""The four schedules on virtual time: step times against closed forms, lag from token stamps, membership of batches."""

from __future__ import annotations

import asyncio
import hashlib
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thundersync.batch import GroupKey, Ledger, LogicalBatch, Task, TrajectoryKey
from thundersync.ports import ContentReady, RewardReady, TurnReady
from thundersync.sampler import TaskSampler
from thundersync.schedules.fully_async import Pool
from thundersync.simulation import Deadlock, Durations, Setting, TrajectoryTimes
from thundersync.simulation import simulate as run_simulation

TASKS = tuple(Task(task_id=f"task-{i}", split_group=f"repo-{i}", instruction="") for i in range(7))


def uniform(*key) -> float:
    """A number in [0, 1) that depends on the identity only."""
    return int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:6], "big") / 2**48


def simulate(schedule, *, turns=None, publication=0.5, prompts=2, size=3, slots=100, updates=3, **options):
    """Runs a schedule; returns (journal, durations)."""
    turns = turns or (lambda key: [1 + 3 * uniform("turn", *key, t) for t in range(1 + key.trajectory % 3)])

    def trajectory(key):
        ends_T = np.cumsum(turns(key))
        service_T = np.array([0.2 + 2 * uniform("source", *key.turn(t)) for t in range(len(ends_T))])
        return TrajectoryTimes(
            seconds=ends_T[-1],
            turn_ends_T=np.append(ends_T[:-1] / ends_T[-1], 1.0),
            service=0.2 + 2 * uniform("source", *key.turn(None)),
            turn_service=service_T.sum(),
            turn_shares_T=service_T / service_T.sum(),
            deferred=0.1,
        )

    durations = Durations(trajectory=trajectory, group=lambda key: 0.3, publication=lambda version: publication)
    release = options.get("release", "trajectory")
    setting = Setting(
        schedule=schedule,
        prompts=prompts,
        group_size=size,
        slots=slots,
        updates=updates,
        turn_events=True,
        **{"needs_reward": release in ("trajectory", "content")} | options,
    )
    return run_simulation(setting, durations), durations


def lags(journal):
    return [[p.learner_version - t.oldest_version for t in p.trajectories] for p in journal.published]


def ready_times(durations, batch):
    """Rollout with a free slot for everyone: a trajectory is ready when its turns are over."""
    return {key: durations.trajectory(key).rollout for key in batch.keys}


def test_sync_step_is_rollout_plus_learner_plus_publication():
    """T_Sync = R + L + P (Equation 16), computed from the durations alone."""
    journal, durations = simulate("sync")
    for published in journal.published:
        rollout = max(ready_times(durations, published.batch).values())
        learner = sum(durations.trajectory(key).service for key in published.batch.keys) + 2 * 0.3
        assert published.published_at - published.started_at == pytest.approx(rollout + learner + 0.5, rel=1e-12)


def test_thundersync_step_is_the_recurrence_of_equation_1():
    """c_j = max(tau_j, c_{j-1}) + p_j in readiness order, T = max(R, c_n) + P (Equations 1 and 2)."""
    journal, durations = simulate("thundersync")
    for published in journal.published:
        ready = ready_times(durations, published.batch)
        closed, left = 0.0, {group.key: group.size for group in published.batch.groups}
        for key in sorted(ready, key=ready.get):
            closed = max(ready[key], closed) + durations.trajectory(key).service
            left[key.group_key] -= 1
            if not left[key.group_key]:
                closed += durations.group(key.group_key)
        expected = max(max(ready.values()), closed) + 0.5
        assert published.published_at - published.started_at == pytest.approx(expected, rel=1e-12)


def test_sync_sums_serves_one_source_at_a_time_after_the_barrier():
    journal, _ = simulate("sync", reduction="sums", updates=1)
    assert {receipt.kind for receipt in journal.receipts} == {"source", "group"}
    assert min(receipt.started_at for receipt in journal.receipts) >= journal.published[0].rollout_closed_at


def test_turn_eager_release_learns_every_turn_and_closes_every_trajectory():
    journal, durations = simulate("thundersync", release="turn_eager", updates=1)
    batch = journal.published[0].batch
    turns = sorted(str(key.turn(t)) for key in batch.keys for t in range(len(durations.trajectory(key).turn_ends_T)))
    assert sorted(str(r.key) for r in journal.receipts if r.kind == "source") == turns
    assert sorted(r.key for r in journal.receipts if r.kind == "deferred") == sorted(batch.keys)
    last_turn = {r.key.trajectory_key: r.ended_at for r in journal.receipts if r.kind == "source"}
    assert all(r.started_at >= last_turn[r.key] for r in journal.receipts if r.kind == "deferred")


@pytest.mark.parametrize("schedule", ["sync", "thundersync"])
def test_lag_is_zero(schedule):
    journal, _ = simulate(schedule, updates=4)
    assert all(lag == 0 for update in lags(journal) for lag in update)


def test_async_lag_is_one_after_start_up():
    journal, _ = simulate("async", updates=4)
    assert lags(journal)[0] == [0] * 6
    assert all(lag == 1 for update in lags(journal)[1:] for lag in update)


def test_async_step_is_the_longer_of_rollout_and_learner_in_steady_state():
    journal, durations = simulate("async", updates=4)
    for k in (1, 2, 3):
        rollout = max(ready_times(durations, LogicalBatch(update=k + 1, groups=journal_batch(k + 1).groups)).values())
        learner = sum(durations.trajectory(key).service for key in journal_batch(k).keys) + 2 * 0.3
        step = journal.published[k].published_at - journal.published[k - 1].published_at
        assert step == pytest.approx(max(rollout, learner) + 0.5, rel=1e-12)


def journal_batch(k):
    return TaskSampler(tasks=TASKS, seed=1, prompts=2, group_size=3).batch(k)


@settings(max_examples=200, deadline=None)
@given(
    bound=st.integers(0, 3),
    slots=st.integers(1, 12),
    size=st.integers(1, 4),
    prompts=st.integers(1, 3),
    salt=st.integers(0, 10**6),
    publication=st.floats(0, 5),
)
def test_fully_async_lag_never_exceeds_the_bound_and_nothing_is_dropped(bound, slots, size, prompts, salt, publication):
    def turns(key):
        return [0.1 + 10 * uniform(salt, *key, t) ** 4 for t in range(1 + int(3 * uniform(salt, *key)))]

    journal, _ = simulate(
        "fully_async", lag_bound=bound, slots=slots, size=size, prompts=prompts, updates=6, turns=turns,
        publication=publication,
    )  # fmt: skip
    assert all(0 <= lag <= bound for update in lags(journal) for lag in update)
    trained = [t.key for p in journal.published for t in p.trajectories]
    assert len(set(trained)) == len(trained) == 6 * prompts * size
    assert all({t.key for t in p.trajectories} == set(p.batch.keys) for p in journal.published)


def test_fully_async_swaps_weights_in_flight():
    """Some trajectory spans two versions, and some batch mixes ages."""
    journal, _ = simulate("fully_async", slots=4, updates=8, turns=lambda key: [2 * uniform(*key, t) for t in range(6)])
    trained = [t for p in journal.published for t in p.trajectories]
    assert any(t.oldest_version < t.newest_version for t in trained)
    assert any(len(set(update)) > 1 for update in lags(journal))


def test_a_resumed_fully_async_run_admits_what_was_not_trained_first():
    """Two updates trained groups 1, 2, 4 and 5 of the prompt stream: 0 and 3, in flight at the time, come before 6."""
    admitted = []

    class Silent:
        async def start(self, batch):
            admitted.extend((group.key.update, group.key.group) for group in batch.groups)

        async def events(self):
            await asyncio.Event().wait()
            yield

    parts = SimpleNamespace(
        rollout=Silent(),
        group=TaskSampler(tasks=TASKS, seed=1, prompts=2, group_size=3).group,
        prompts=2,
        lag_bound=1,
        trained={"update=0/group=1", "update=1/group=0", "update=2/group=0", "update=2/group=1"},
    )

    async def main():
        rolling = asyncio.ensure_future(Pool(parts, first_update=2).roll())
        await asyncio.sleep(0)
        rolling.cancel()

    asyncio.run(main())
    assert admitted == [(0, 0), (1, 1), (3, 0), (3, 1)]


@settings(max_examples=40, deadline=None)
@given(schedule=st.sampled_from(["sync", "async", "thundersync"]), slots=st.integers(1, 10), size=st.integers(1, 4))
def test_every_registered_trajectory_is_trained_once_in_its_own_update(schedule, slots, size):
    journal, _ = simulate(schedule, slots=slots, size=size)
    for k, published in enumerate(journal.published):
        assert published.batch.update == k
        assert sorted(t.key for t in published.trajectories) == sorted(published.batch.keys)


@settings(max_examples=30, deadline=None)
@given(
    cap=st.integers(1, 4),
    slots=st.integers(1, 20),
    release=st.sampled_from(["trajectory", "content", "turn_eager", "turn_forward"]),
)
def test_the_cap_bounds_the_groups_that_hold_statistics(cap, slots, release):
    journal, _ = simulate(
        "thundersync", prompts=4, slots=slots, open_groups=cap, release=release, updates=2, publication=0.0
    )
    for update in (0, 1):
        held: set = set()
        for receipt in sorted((r for r in journal.receipts if r.update == update), key=lambda r: r.started_at):
            if receipt.kind == "group":
                held.remove(receipt.key)
            else:
                held.add(GroupKey(receipt.key.update, receipt.key.group))
                assert len(held) <= cap
        assert not held


def test_content_without_a_reward_to_wait_for_closes_with_its_tokens():
    """OPD: every trajectory is learnt once, and none is held; a cap on open groups defers it whole."""
    for cap in (None, 1):
        journal, _ = simulate("thundersync", release="content", needs_reward=False, open_groups=cap, updates=1)
        learnt = [receipt for receipt in journal.receipts if receipt.kind != "group"]
        assert sorted(receipt.key for receipt in learnt) == sorted(journal.published[0].batch.keys)
        assert {receipt.kind for receipt in learnt} == {"source"}
        assert {receipt.deferred for receipt in learnt} == ({""} if cap is None else {"", "open_groups"})


@settings(max_examples=30, deadline=None)
@given(cap=st.integers(1, 4))
def test_content_holds_at_most_u_gradients_and_says_which_had_to_wait(cap):
    journal, _ = simulate("thundersync", release="content", waiting_rewards=cap, updates=1, prompts=4)
    whole = [r for r in journal.receipts if r.kind == "source" and r.deferred == "waiting_rewards"]
    bound = [r.key for r in journal.receipts if r.kind == "bind"]
    assert len(whole) + len(bound) == len(journal.published[0].batch.keys) and bound
    held, most = 0, 0
    for event in journal.receipts:
        held += {"source": not event.deferred, "bind": -1}.get(event.kind, 0)
        most = max(most, held)
    assert most <= cap and held == 0


def test_a_turn_that_waited_for_a_group_is_not_the_reason_of_the_next_one():
    """Two groups of one, one of which may be open: turns end at 1 and 3, at 1.5 and 4; the second group opens at 3."""
    ends = {0: [1.0, 2.0], 1: [1.5, 2.5]}
    journal, _ = simulate(
        "thundersync", prompts=2, size=1, open_groups=1, release="turn_eager", updates=1,
        turns=lambda key: ends[key.group],
    )  # fmt: skip
    waited = {(r.key.group, r.key.turn): r.deferred for r in journal.receipts if r.kind == "source"}
    assert waited == {(0, 0): "", (0, 1): "", (1, 0): "open_groups", (1, 1): ""}


def test_turn_forward_forwards_every_turn_and_closes_every_trajectory():
    journal, durations = simulate("thundersync", release="turn_forward", updates=1)
    batch = journal.published[0].batch
    turns = sorted(str(key.turn(t)) for key in batch.keys for t in range(len(durations.trajectory(key).turn_ends_T)))
    assert sorted(str(r.key) for r in journal.receipts if r.kind == "source") == turns
    assert sorted(r.key for r in journal.receipts if r.kind == "deferred") == sorted(batch.keys)


def test_a_cap_of_one_costs_time_but_changes_no_membership():
    free, _ = simulate("thundersync", prompts=4, updates=2)
    capped, _ = simulate("thundersync", prompts=4, updates=2, open_groups=1)
    assert {r.key for r in free.receipts} == {r.key for r in capped.receipts}
    assert capped.published[0].published_at >= free.published[0].published_at


def test_a_lost_trajectory_is_named_and_a_doubled_one_refused():
    batch = journal_batch(0)
    ledger = Ledger(batch)
    ledger.close(TrajectoryKey(0, 0, 1))
    with pytest.raises(ValueError, match="update=0/group=0/trajectory=1 .* came twice"):
        ledger.close(TrajectoryKey(0, 0, 1))
    with pytest.raises(ValueError, match="never registered"):
        ledger.close(TrajectoryKey(1, 0, 1))
    with pytest.raises(ValueError, match="5 lost: update=0/group=0/trajectory=0"):
        ledger.require_complete()


def test_a_rollout_that_loses_a_trajectory_does_not_hang():
    """On virtual time a lost event is a deadlock that is reported, not a wait for ever."""
    with pytest.raises(Deadlock):
        simulate("thundersync", turns=lambda key: [float("inf")] if key.trajectory == 1 else [1.0])


def test_events_carry_what_their_release_needs():
    journal, _ = simulate("thundersync", updates=1)
    kinds = [type(event) for event in journal.events]
    assert kinds.count(RewardReady) == kinds.count(ContentReady) == 6
    assert kinds.count(TurnReady) == 2 * (1 + 2 + 3)

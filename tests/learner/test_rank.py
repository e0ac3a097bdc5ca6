"""LearnerRank behind the Learner port's calls: the same update by streaming and at once, and resume to the bit."""

from __future__ import annotations

import pytest
import torch
from learner_parts import GROUPS, SIZE, direct_update, make_batch, make_events, make_rank, stream_update, without_turns

from thundersync.batch import SourceKey
from thundersync.learner.policy import load_policy
from thundersync.objectives import GRPO, OPD, REINFORCE, RLOO, DrGRPO
from thundersync.policy_hash import policy_hash
from thundersync.ports import ContentReady, RewardReady, TurnReady

OBJECTIVES = [
    GRPO(prompts=GROUPS),
    DrGRPO(prompts=GROUPS, length=4),
    RLOO(prompts=GROUPS),
    REINFORCE(trajectories=GROUPS * SIZE),
    OPD(),
]


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda o: o.name)
def test_streaming_and_direct_take_the_same_step(objective):
    streamed, direct = make_rank(objective), make_rank(objective)
    _, by_source = stream_update(streamed, 0)
    _, at_once = direct_update(direct, 0)
    assert by_source.version == at_once.version == streamed.version == 1
    assert by_source.divisor == at_once.divisor
    assert by_source.gradient_norm == pytest.approx(at_once.gradient_norm, rel=2e-6)
    assert by_source.entropy == pytest.approx(at_once.entropy, rel=1e-5)
    for name in ("max", "mean", "kl"):
        assert by_source.logprob_mismatch[name] == pytest.approx(at_once.logprob_mismatch[name], rel=1e-5)
    assert by_source.gradient_norm > 0.01


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda o: o.name)
def test_direct_does_not_depend_on_the_order_of_events(objective):
    forwards, backwards = make_rank(objective), make_rank(objective)
    _, one = direct_update(forwards, 0)
    _, other = direct_update(backwards, 0, events=make_events(0)[::-1])
    assert one.policy_hash == other.policy_hash


def test_receipts_say_what_ran_and_when():
    receipts, step = stream_update(make_rank(OPD()), 0)
    kinds = [receipt.kind for receipt in receipts]
    turns = sum(isinstance(event, TurnReady) for event in make_events(0))
    assert (kinds.count("source"), kinds.count("deferred"), kinds.count("group")) == (turns, GROUPS * SIZE, GROUPS)
    for earlier, later in zip(receipts, receipts[1:], strict=False):
        assert earlier.started_at < earlier.ended_at < later.started_at
    first = receipts[0]
    assert isinstance(first.key, SourceKey) and first.key.turn == 0 and first.update == 0 and first.ready_at == 1.0
    assert first.tokens == len(make_events(0)[0].turn.ids)
    assert step.started_at < step.ended_at


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_resume_is_bit_exact(tmp_path, dtype):
    """D15, the learner's share: after save and load, further updates are those of an uninterrupted run."""
    straight = make_rank(dtype=dtype)
    hashes = [stream_update(straight, k)[1].policy_hash for k in range(4)]
    assert len(set(hashes)) == 4

    stopped = make_rank(dtype=dtype)
    for k in range(2):
        stream_update(stopped, k)
    stopped.save(tmp_path / "checkpoint")
    resumed = make_rank(dtype=dtype)
    resumed.load(tmp_path / "checkpoint")
    assert resumed.version == 2
    assert [stream_update(resumed, k)[1].policy_hash for k in (2, 3)] == hashes[2:]
    for name, tensor in straight.optimizer.state().items():
        assert torch.equal(tensor, resumed.optimizer.state()[name]), name


def test_a_damaged_checkpoint_is_refused(tmp_path):
    rank = make_rank()
    rank.save(tmp_path)
    path = tmp_path / "policy.safetensors"
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    before = policy_hash(rank.weights())
    with pytest.raises(ValueError, match="policy.safetensors"):
        rank.load(tmp_path)
    assert policy_hash(rank.weights()) == before


def test_export_serves_what_the_learner_has(tmp_path):
    rank = make_rank()
    stream_update(rank, 0)
    rank.export(tmp_path)
    assert policy_hash(dict(load_policy(tmp_path).named_parameters())) == policy_hash(rank.weights())


def test_a_batch_for_another_version_is_refused():
    rank = make_rank()
    with pytest.raises(ValueError, match="batch 3 cannot be learnt at version 0"):
        rank.open(make_batch(3))


def test_lost_doubled_and_foreign_trajectories_are_refused():
    rank = make_rank()
    rank.open(make_batch(0))
    rewards = [event for event in make_events(0) if isinstance(event, RewardReady)]
    with pytest.raises(ValueError, match="lost"):
        rank.learn_batch(rewards[1:])
    rank.abort()
    rank.open(make_batch(0))
    with pytest.raises(ValueError, match="came twice"):
        rank.learn_batch([*rewards, rewards[0]])
    rank.learn_trajectory(rewards[0])
    with pytest.raises(ValueError, match="bound already"):
        rank.learn_trajectory(rewards[0])
    foreign = next(event for event in make_events(7) if isinstance(event, RewardReady))
    with pytest.raises(ValueError, match="not part of the open batch"):
        rank.learn_trajectory(foreign)
    with pytest.raises(ValueError, match="lost"):
        rank.step()
    assert rank.version == 0


def test_an_engine_too_far_from_the_learner_is_refused_with_the_source_and_the_setting():
    """The events' log-probabilities are drawn at random, as those of no policy are."""
    rank = make_rank(OPD(), logprob_tolerance=0.01)
    rank.open(make_batch(0))
    turn = next(event for event in make_events(0) if isinstance(event, TurnReady))
    named = f"group {turn.key.trajectory_key.group_key}, trajectory {turn.key.trajectory}, turn 0"
    with pytest.raises(ValueError, match=f"{named}: the rollout engine's .* more than logprob_tolerance, 0.01"):
        rank.learn_turn(turn)
    with pytest.raises(ValueError, match="lost"):
        rank.step()
    assert rank.version == 0


def test_an_opd_batch_without_a_scored_token_leaves_everything_as_it_was():
    """D6 (b), with trajectories that never reached a turn."""
    rank = make_rank(OPD())
    before = policy_hash(rank.weights())
    rank.open(make_batch(0))
    for key in make_batch(0).keys:
        rank.close_trajectory(ContentReady(trajectory=without_turns(key), at=0.0))
    for group in make_batch(0).groups:
        rank.close_group(group.key)
    with pytest.raises(ValueError, match="no scored token"):
        rank.step()
    assert rank.version == 0 and policy_hash(rank.weights()) == before


def test_a_trajectory_without_a_turn_counts_for_its_group():
    """It ends before any event has brought the prompt; the others of its group are learnt as if alone."""
    rank = make_rank(OPD())
    rank.open(make_batch(0))
    empty = make_events(0)[0].key.trajectory_key
    rank.close_trajectory(ContentReady(trajectory=without_turns(empty), at=0.0))
    for event in make_events(0):
        if isinstance(event, TurnReady) and event.key.trajectory_key != empty:
            rank.learn_turn(event)
        elif isinstance(event, ContentReady) and event.key != empty:
            rank.close_trajectory(event)
    for group in make_batch(0).groups:
        rank.close_group(group.key)
    scored = sum(
        len(event.turn.action_ids_A)
        for event in make_events(0)
        if isinstance(event, TurnReady) and event.key.trajectory_key != empty
    )
    assert rank.step().divisor == scored

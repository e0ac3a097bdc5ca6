"""Dr. GRPO, RLOO and REINFORCE: their weights against the textbook formulas, and numbers worked out by hand."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thundersync.objectives import REINFORCE, RLOO, DrGRPO, Objective
from thundersync.objectives.objective import Settled

REWARDS = st.lists(st.floats(0, 1.5, allow_nan=False), min_size=2, max_size=12)
SHIFTS = st.floats(-2, 2)


def streamed_weights(objective: Objective, rewards: list[float], c: float) -> list[float]:
    """What multiplies each H_i: sum_b beta_b phi_b(i)."""
    beta = objective.beta(rewards, c)
    return [math.fsum(b * p for b, p in zip(beta, objective.phi(r, c), strict=True)) for r in rewards]


def objectives(size: int) -> list[Objective]:
    return [DrGRPO(prompts=1, length=1), RLOO(prompts=1), REINFORCE(trajectories=size)]


@given(REWARDS, SHIFTS)
def test_dr_grpo_is_the_group_mean_for_any_shift(rewards, c):
    r = np.asarray(rewards)
    found = streamed_weights(DrGRPO(prompts=1, length=1), rewards, c)
    np.testing.assert_allclose(found, (r - r.mean()) / len(r), rtol=0, atol=1e-14)


@given(REWARDS, SHIFTS)
def test_rloo_leaves_one_out_for_any_shift(rewards, c):
    others = [np.mean(rewards[:i] + rewards[i + 1 :]) for i in range(len(rewards))]
    expected = (np.asarray(rewards) - others) / len(rewards)
    np.testing.assert_allclose(streamed_weights(RLOO(prompts=1), rewards, c), expected, rtol=0, atol=1e-14)


@given(REWARDS, SHIFTS)
def test_reinforce_is_the_batch_mean_for_any_shift(rewards, c):
    found = streamed_weights(REINFORCE(trajectories=len(rewards)), rewards, c)
    np.testing.assert_allclose(found, np.asarray(rewards) - np.mean(rewards), rtol=0, atol=1e-14)


def test_by_hand():
    """Rewards 1, 0, 0, 0.6: the mean is 0.4; the means of the other three are 0.2, 1.6/3, 1.6/3 and 1/3."""
    rewards = [1.0, 0.0, 0.0, 0.6]
    assert streamed_weights(DrGRPO(prompts=9, length=9), rewards, 1.0) == pytest.approx([0.15, -0.1, -0.1, 0.05])
    assert streamed_weights(RLOO(prompts=9), rewards, 1.0) == pytest.approx([0.2, -0.4 / 3, -0.4 / 3, 0.2 / 3])
    assert streamed_weights(REINFORCE(trajectories=4), rewards, 1.0) == pytest.approx([0.6, -0.4, -0.4, 0.2])


def test_scores_by_hand():
    """Values [2, 2, 2, 2, 2] and [10] of D1: sums 10 and 10, means 2 and 10."""

    def total(objective: Objective) -> float:
        values = [np.full(5, 2.0), np.full(1, 10.0)]
        return sum((objective.token_weights(v) * v).sum() for v in values) / objective.divisor(6)

    assert total(DrGRPO(prompts=2, length=8)) == pytest.approx(20 / 16)
    assert total(RLOO(prompts=2, score="sequence")) == pytest.approx(20 / 2)
    assert total(RLOO(prompts=2, score="token_mean")) == pytest.approx(12 / 2)
    assert total(REINFORCE(trajectories=2)) == pytest.approx(12 / 2)


@given(st.floats(-1e6, 1e6), st.integers(2, 16))
def test_equal_rewards_contribute_exactly_zero(reward, size):
    for objective in objectives(size):
        assert objective.beta([reward] * size, reward) == (0.0, 0.0)


@given(REWARDS)
def test_settled_weights_are_those_of_the_running_sums(rewards):
    for objective in objectives(len(rewards)):
        settled = Settled(objective, rewards)
        expected = streamed_weights(objective, rewards, rewards[0])
        assert [settled.weight(r) for r in rewards] == expected and settled.shift == rewards[0]


@pytest.mark.parametrize(("objective", "title"), [(DrGRPO(prompts=1, length=1), "Dr. GRPO"), (RLOO(prompts=1), "RLOO")])
def test_a_group_of_one_is_refused_by_name(objective, title):
    objective.check_group_size(2, "django-7")
    with pytest.raises(ValueError, match=f"group django-7: {title} .* at least 2, got 1"):
        objective.check_group_size(1, "django-7")


def test_reinforce_takes_a_group_of_one_but_no_batch_of_one():
    REINFORCE(trajectories=2).check_group_size(1, "a")
    with pytest.raises(ValueError, match="group a: a group needs at least 1"):
        REINFORCE(trajectories=2).check_group_size(0, "a")
    with pytest.raises(ValueError, match="at least 2 trajectories, got 1"):
        REINFORCE(trajectories=1)


def test_reinforce_refuses_the_mean_of_a_part_of_the_batch():
    with pytest.raises(ValueError, match="the mean of the batch's 6 rewards, got 3"):
        REINFORCE(trajectories=6).beta([1.0, 0.0, 1.0], 1.0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DrGRPO(prompts=0, length=1), "Dr. GRPO: prompts must be at least 1"),
        (lambda: DrGRPO(prompts=1, length=0), "Dr. GRPO: length must be at least 1"),
        (lambda: RLOO(prompts=0), "RLOO: prompts must be at least 1"),
        (lambda: RLOO(prompts=1, score="tokens"), "unknown score 'tokens'; valid: sequence, token_mean"),
    ],
)
def test_values_without_an_update_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_they_are_objectives_and_travel_between_processes():
    assert all(isinstance(objective, Objective) for objective in objectives(2))
    assert all(pickle.loads(pickle.dumps(objective)) == objective for objective in objectives(2))
    assert [o.scope for o in objectives(2)] == ["group", "group", "batch"]

"""GRPO's weights against Equation 6 evaluated directly, and the reported faults D1, D2, D3, D6a."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thundersync.objectives import GRPO, Objective
from thundersync.objectives.objective import Settled, check_reward

REWARDS = st.lists(st.floats(0, 1.5, allow_nan=False), min_size=2, max_size=12)


def streamed_weights(rewards: list[float], c: float, eps: float = 1e-6) -> list[float]:
    """What multiplies each H_i after Equation 7: sum_b beta_b phi_b(i)."""
    grpo = GRPO(prompts=1, eps=eps)
    beta = grpo.beta(rewards, c)
    return [sum(b * p for b, p in zip(beta, grpo.phi(r, c), strict=True)) for r in rewards]


def equation_6(rewards: list[float], eps: float = 1e-6) -> np.ndarray:
    r = np.asarray(rewards, np.float64)
    return (r - r.mean()) / (r.std() + eps) / len(r)


@given(REWARDS, st.floats(-2, 2))
def test_equation_7_gives_equation_6_for_any_shift(rewards, c):
    if max(rewards) - min(rewards) < 1e-3:
        return  # near-uniform rewards have a test of their own, with the shift that is used for them
    np.testing.assert_allclose(streamed_weights(rewards, c), equation_6(rewards), rtol=1e-9, atol=1e-12)


@given(st.floats(-1e6, 1e6), st.integers(2, 16))
def test_equal_rewards_contribute_exactly_zero(reward, size):
    assert GRPO(prompts=1).beta([reward] * size, reward) == (0.0, 0.0)


def test_a_tiny_difference_is_not_a_uniform_group():
    rewards = [0.35] * 7 + [0.35001]
    np.testing.assert_allclose(streamed_weights(rewards, rewards[0]), equation_6(rewards), rtol=1e-6)
    assert max(map(abs, streamed_weights(rewards, rewards[0]))) > 0.2


def test_d1_sequence_means_are_averaged():
    """D1: values [2,2,2,2,2] and [10] give 6.0; a token mean over the batch would give 3.33."""
    grpo = GRPO(prompts=2)
    values = [[2.0] * 5, [10.0]]
    assert sum(grpo.token_weights(v) * sum(v) for v in values) == pytest.approx(6.0)


def test_d2_statistics_are_per_group():
    """D2: [1,0] and [1,1] give +-0.999998 and zeros."""
    m = 2
    assert [m * w for w in streamed_weights([1.0, 0.0], 1.0)] == pytest.approx([0.999998, -0.999998], abs=1e-9)
    assert streamed_weights([1.0, 1.0], 1.0) == [0.0, 0.0]


def test_d3_four_rollouts_of_one_task_form_one_group():
    """D3: rewards [1,0,1,0] give alternating +-0.999998."""
    weights = [4 * w for w in streamed_weights([1.0, 0.0, 1.0, 0.0], 1.0)]
    assert weights == pytest.approx([0.999998, -0.999998] * 2, abs=1e-9)


def test_d3_a_group_of_one_is_refused_by_name():
    with pytest.raises(ValueError, match="group django-7: GRPO .* at least 2, got 1"):
        GRPO(prompts=1).check_group_size(1, "django-7")


def test_d6_statistics_of_a_group_with_an_unscored_member():
    """D6 (a): rewards [1,0,0,1] have mu = sigma = 0.5 whichever trajectory has nothing to score."""
    scale, offset = GRPO(prompts=1, eps=0.0).beta([1.0, 0.0, 0.0, 1.0], 0.0)
    assert (scale, offset) == (1 / (4 * 0.5), -0.5 / (4 * 0.5))


@given(REWARDS)
def test_settled_weights_are_those_of_the_running_sums(rewards):
    settled = Settled(GRPO(prompts=1), rewards)
    np.testing.assert_allclose([settled.weight(r) for r in rewards], streamed_weights(rewards, rewards[0]), rtol=1e-12)
    assert settled.scope == "source" and settled.beta(rewards, 0.0) == (1.0,)


@pytest.mark.parametrize("reward", [None, math.nan, math.inf, -math.inf])
def test_a_reward_that_is_not_a_number_is_refused_by_name(reward):
    with pytest.raises(ValueError, match="group a, trajectory 3: reward must be a finite number"):
        check_reward(reward, "group a, trajectory 3")


def test_prompts_must_be_positive():
    with pytest.raises(ValueError, match="prompts must be at least 1"):
        GRPO(prompts=0)


def test_it_is_an_objective_and_needs_no_torch():
    assert isinstance(GRPO(prompts=1), Objective)
    code = "import sys, thundersync.objectives; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0

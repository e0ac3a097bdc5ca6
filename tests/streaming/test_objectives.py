"""Trajectory objectives, streamed in any order over all groups, against the textbook gradient of the whole batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plain_gradients import (
    DRAWN_FP32,
    PlainGroup,
    flat,
    plain_policy_gradient,
    random_group,
    relative_error,
    tiny_model,
)
from test_guards import live_tensors

from thundersync.equivalence.precision import WideCasts
from thundersync.objectives import REINFORCE, RLOO, DrGRPO, Objective
from thundersync.streaming import Continuation, GradientStream

MODELS = {dtype: tiny_model(dtype=dtype) for dtype in (torch.float32, torch.float64)}
BOUND = {torch.float32: DRAWN_FP32, torch.float64: 1e-12}
ARITHMETIC = {torch.float32: nullcontext, torch.float64: WideCasts}
LENGTH = 7
examples = settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@dataclass(frozen=True)
class Case:
    """An objective and its textbook form: g = sum_i weights_i * per_token_i * sum_t grad log pi."""

    objective: Callable[[list[PlainGroup]], Objective]
    weights: Callable[[list[np.ndarray]], list[np.ndarray]]
    """From the rewards of each group."""
    per_token: Callable[[int], float]
    """From the scored tokens of a trajectory."""
    smallest_group: int = 2


def mean_of_others(r: np.ndarray) -> np.ndarray:
    return np.array([np.delete(r, i).mean() for i in range(len(r))])


def dr_grpo(rewards: list[np.ndarray]) -> list[np.ndarray]:
    return [(r - r.mean()) / len(r) / len(rewards) / LENGTH for r in rewards]


def rloo(rewards: list[np.ndarray]) -> list[np.ndarray]:
    return [(r - mean_of_others(r)) / len(r) / len(rewards) for r in rewards]


def reinforce(rewards: list[np.ndarray]) -> list[np.ndarray]:
    everything = np.concatenate(rewards)
    return [(r - everything.mean()) / len(everything) for r in rewards]


def make_reinforce(groups: list[PlainGroup]) -> REINFORCE:
    return REINFORCE(trajectories=sum(len(group.members) for group in groups))


CASES = {
    "dr_grpo": Case(lambda groups: DrGRPO(prompts=len(groups), length=LENGTH), dr_grpo, lambda tokens: 1.0),
    "rloo": Case(lambda groups: RLOO(prompts=len(groups)), rloo, lambda tokens: 1.0),
    "rloo_token_mean": Case(
        lambda groups: RLOO(prompts=len(groups), score="token_mean"), rloo, lambda tokens: 1 / tokens
    ),
    "reinforce": Case(make_reinforce, reinforce, lambda tokens: 1 / tokens, smallest_group=1),
}


def plain(case: Case, groups: list[PlainGroup], dtype=torch.float32) -> torch.Tensor:
    weights = case.weights([np.array([member.reward for member in group.members]) for group in groups])
    return plain_policy_gradient(MODELS[dtype], groups, weights, case.per_token)


def whole(member) -> Continuation:
    return Continuation(ids=member.ids, scored=member.scored, reward=member.reward)


def feed(stream: GradientStream, groups: Sequence[PlainGroup], order: np.random.Generator) -> None:
    """Trajectories in random order over all groups; each group closes with its last one."""
    stream.open()
    for i, group in enumerate(groups):
        stream.open_group(i, size=len(group.members), prompt_ids=group.prompt)
    left = [len(group.members) for group in groups]
    for g, i in order.permutation([(g, i) for g, n in enumerate(left) for i in range(n)]).tolist():
        stream.add_trajectory(g, i, whole(groups[g].members[i]))
        left[g] -= 1
        if not left[g]:
            stream.close_group(g)


def streamed(objective: Objective, groups, dtype=torch.float32, seed: int = 0) -> torch.Tensor:
    stream = GradientStream(MODELS[dtype], objective, dtype=dtype)
    feed(stream, groups, np.random.default_rng(seed))
    return flat(stream.close())


def direct(objective: Objective, groups) -> torch.Tensor:
    stream = GradientStream(MODELS[torch.float32], objective, run_tokens=20)
    stream.open()
    rewards = [member.reward for group in groups for member in group.members]
    for i, group in enumerate(groups):
        stream.add_group(i, group.prompt, [whole(member) for member in group.members], rewards)
    return flat(stream.close())


@st.composite
def batches(draw, case: Case) -> list[PlainGroup]:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sizes = draw(st.lists(st.integers(case.smallest_group, 4), min_size=1, max_size=3).filter(lambda s: sum(s) > 1))
    return [random_group(rng, size) for size in sizes]


@pytest.mark.parametrize("dtype", MODELS, ids=["fp32", "fp64"])
@pytest.mark.parametrize("name", CASES)
@examples
@given(data=st.data(), seed=st.integers(0, 2**32 - 1))
def test_streamed_in_any_order(name, dtype, data, seed):
    case = CASES[name]
    groups = data.draw(batches(case))
    with ARITHMETIC[dtype]():
        expected = plain(case, groups, dtype)
        if expected.norm() > 1e-6:
            assert relative_error(streamed(case.objective(groups), groups, dtype, seed), expected) < BOUND[dtype]


@pytest.mark.parametrize("name", CASES)
@examples
@given(data=st.data())
def test_direct(name, data):
    case = CASES[name]
    groups = data.draw(batches(case))
    expected = plain(case, groups)
    if expected.norm() > 1e-6:
        assert relative_error(direct(case.objective(groups), groups), expected) < BOUND[torch.float32]


@pytest.mark.parametrize("name", CASES)
def test_equal_rewards_give_exactly_zero(name):
    groups = [random_group(np.random.default_rng(seed), 4, [0.35] * 4) for seed in (1, 2)]
    for reduce in (streamed, direct):
        assert not reduce(CASES[name].objective(groups), groups).any()


@pytest.mark.parametrize("name", CASES)
def test_nearly_equal_rewards_survive_fp32_sums(name):
    groups = [random_group(np.random.default_rng(1), 8, [0.35] * 7 + [0.35001])]
    expected = plain(CASES[name], groups, torch.float64)
    found = streamed(CASES[name].objective(groups), groups)
    assert relative_error(found, expected) < 2e-5  # of a difference of 1e-5 in float64; without the shift: above 1e-3


@pytest.mark.parametrize("name", CASES)
def test_a_trajectory_without_scored_tokens_counts_through_its_reward_only(name):
    """D6 (a): the third of rewards 1, 0, 0, 1 has nothing to score."""
    group = random_group(np.random.default_rng(2), 4, [1.0, 0.0, 0.0, 1.0])
    ids, mask = group.members[2].turns[0]
    empty = type(group.members[2])(((ids, np.zeros_like(mask)),), 0.0, np.zeros(len(ids)))
    groups = [PlainGroup(group.prompt, (*group.members[:2], empty, group.members[3]))]
    found = streamed(CASES[name].objective(groups), groups)
    assert relative_error(found, plain(CASES[name], groups)) < 2e-6


def uneven_batch() -> list[PlainGroup]:
    """Groups that are uniform in themselves, so that only a baseline of the whole batch learns from them."""
    return [random_group(np.random.default_rng(s), n, [r] * n) for s, n, r in ((3, 2, 1.0), (4, 3, 0.0), (5, 1, 0.5))]


def test_a_batch_baseline_learns_from_uniform_groups():
    groups = uneven_batch()
    expected = plain(CASES["reinforce"], groups)
    assert expected.norm() > 1e-3
    assert relative_error(streamed(make_reinforce(groups), groups), expected) < 2e-6


def test_the_shift_of_a_batch_scope_is_the_first_reward_of_the_batch():
    stream = GradientStream(MODELS[torch.float32], REINFORCE(trajectories=2))
    groups = [random_group(np.random.default_rng(s), 1, [r]) for s, r in ((1, 0.75), (2, 0.25))]
    stream.open()
    for i in (0, 1):
        stream.open_group(i, size=1, prompt_ids=groups[i].prompt)
    closures = []
    for i in (1, 0):
        stream.add_trajectory(i, 0, whole(groups[i].members[0]))
        closures.append(stream.close_group(i))
    assert [(c.shift, c.rewards, c.beta) for c in closures] == [(0.25, (0.25,), ()), (0.25, (0.75,), ())]
    assert stream.batch_rewards == (0.25, 0.75)
    with pytest.raises(ValueError, match="group 2: the batch has one shift for all groups, 0.25, not 0.75"):
        stream.open_group(2, size=1, prompt_ids=[1], shift=0.75)


def test_ranks_combine_their_own_sums_with_the_rewards_of_all():
    groups = uneven_batch()
    ranks = [GradientStream(MODELS[torch.float32], make_reinforce(groups)) for _ in groups]
    for rank, group in zip(ranks, groups, strict=True):
        feed(rank, [group], np.random.default_rng(0))
    with pytest.raises(ValueError, match="the batch's 6 rewards, got 2"):
        ranks[0].close_sums()
    rewards = [reward for rank in ranks for reward in rank.batch_rewards]
    total = sum(flat(rank.close_sums(batch_rewards=rewards)[0]) for rank in ranks)
    assert relative_error(total, plain(CASES["reinforce"], groups)) < 2e-6


def test_direct_needs_the_rewards_of_the_whole_batch():
    group = random_group(np.random.default_rng(1), 2)
    stream = GradientStream(MODELS[torch.float32], REINFORCE(trajectories=4))
    stream.open()
    with pytest.raises(ValueError, match="group a: reinforce weights it by the whole batch: give batch_rewards"):
        stream.add_group("a", group.prompt, [whole(member) for member in group.members])


def test_a_closed_group_holds_no_graph_and_a_closed_batch_nothing():
    groups = uneven_batch()
    stream = GradientStream(MODELS[torch.float32], make_reinforce(groups))
    before = live_tensors()
    feed(stream, groups, np.random.default_rng(0))
    sums = 1 + REINFORCE.bases  # each is a flat buffer and its views
    assert 0 < live_tensors() - before <= sums * (1 + len(list(stream.model.parameters()))) + 1
    stream.close()
    assert live_tensors() == before


def test_an_aborted_batch_leaves_no_reward_to_the_next():
    groups = uneven_batch()
    stream = GradientStream(MODELS[torch.float32], make_reinforce(groups))
    feed(stream, groups[:1], np.random.default_rng(0))
    stream.abort()
    assert stream.batch_rewards == ()
    feed(stream, groups, np.random.default_rng(0))
    assert relative_error(flat(stream.close()), plain(CASES["reinforce"], groups)) < 2e-6

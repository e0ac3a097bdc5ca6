"""Grade 2: the same bits whatever the arrival order, and the plain gradient within the bound of grade 1."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_gradients import DRAWN_FP32, flat, plain_grpo, plain_opd, random_group, relative_error, tiny_model
from test_exactness import turns_of, whole

from thundersync.objectives import GRPO, OPD
from thundersync.streaming import Continuation, GradientStream, Grid
from thundersync.streaming.exact_sums import ExactSums, Rewards

PARTIAL = [0.0, 1 / 3, 2 / 3, 1.5, 0.25, 1.0]
"""Pass shares of tests, with SETA's bonus: denominators differ within a group."""


def learn(model, objective, groups, rng: np.random.Generator, grid: Grid | None) -> dict[str, torch.Tensor]:
    """One batch, trajectories (GRPO) or turns (OPD) of all groups interleaved at random."""
    stream = GradientStream(model, objective, grid=grid)
    stream.open()
    for g, group in enumerate(groups):
        stream.open_group(g, size=len(group.members), prompt_ids=group.prompt)
    left = [len(group.members) for group in groups]
    by_turn = objective.name == "opd"
    queues = {(g, i): list(turns_of(m)) for g, group in enumerate(groups) for i, m in enumerate(group.members)}
    while queues:
        g, i = list(queues)[rng.integers(len(queues))]
        if by_turn and queues[g, i]:
            stream.add_turn(g, i, queues[g, i].pop(0))
            continue
        del queues[g, i]
        if by_turn:
            stream.close_trajectory(g, i)
        else:
            stream.add_trajectory(g, i, whole(groups[g].members[i]))
        left[g] -= 1
        if not left[g]:
            stream.close_group(g)
    return stream.close()


def ten_updates(name: str, arrivals: int, exact: bool) -> torch.Tensor:
    """Parameters after ten optimizer steps whose batches are the same and whose arrival orders are not."""
    model, batches, orders = tiny_model(), np.random.default_rng(7), np.random.default_rng(arrivals)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(10):
        groups = [random_group(batches, 4, rewards=list(batches.choice(PARTIAL, 4))) for _ in range(3)]
        objective = GRPO(prompts=3) if name == "grpo" else OPD()
        direction = learn(model, objective, groups, orders, Grid() if exact else None)
        for parameter_name, parameter in model.named_parameters():
            parameter.grad = -direction[parameter_name]
        optimizer.step()
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


@pytest.mark.parametrize("name", ["grpo", "opd"])
def test_ten_updates_end_in_the_same_bits_in_any_order(name):
    first, *others = [ten_updates(name, arrivals, exact=True) for arrivals in (0, 1, 2)]
    assert all(torch.equal(first, other) for other in others)
    assert not torch.equal(first, torch.cat([p.detach().reshape(-1) for p in tiny_model().parameters()]))


@pytest.mark.parametrize("name", ["grpo", "opd"])
def test_fp32_sums_do_depend_on_the_order(name):
    """So the test above can fail."""
    assert not torch.equal(ten_updates(name, 0, exact=False), ten_updates(name, 1, exact=False))


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), name=st.sampled_from(["grpo", "opd"]))
def test_exact_sums_give_the_plain_gradient(seed, name):
    rng = np.random.default_rng(seed)
    groups = [random_group(rng, 3, rewards=list(rng.choice(PARTIAL, 3))) for _ in range(2)]
    if not any(member.scored.any() for group in groups for member in group.members):
        return
    model = tiny_model()
    objective, plain = (GRPO(prompts=2), plain_grpo) if name == "grpo" else (OPD(), plain_opd)
    expected = plain(model, groups)
    if expected.norm() > 1e-6:
        assert relative_error(flat(learn(model, objective, groups, rng, Grid())), expected) < DRAWN_FP32


def test_equal_rewards_give_exactly_zero():
    groups = [random_group(np.random.default_rng(1), 8, rewards=[0.35] * 8)]
    direction = learn(tiny_model(), GRPO(prompts=1), groups, np.random.default_rng(0), Grid())
    assert not any(tensor.any() for tensor in direction.values())


@settings(max_examples=50)
@given(
    values=st.lists(st.integers(-1000, 1000), min_size=2, max_size=8),
    rewards=st.lists(st.sampled_from(PARTIAL), min_size=8, max_size=8),
)
def test_the_combination_is_the_fraction_computed_by_hand(values, rewards):
    """m G1 - (sum R) G2 over m D is sum_i (r_i - mean) H_i, here in exact fractions."""
    like, bound = [torch.zeros(1)], Rewards()
    sums = ExactSums(like, 2, Grid(exponent=-10))
    for value, reward in zip(values, rewards, strict=False):
        numerator, factor = bound.admit(reward, "source")
        sums.rescale(0, factor)
        sums.fold((numerator, 1), [torch.tensor([value / 1024])])
        bound.numerators.append(numerator)
    beta, factor = bound.combination(scale=1.0)
    exact = [Fraction(r).limit_denominator(12) for r in rewards[: len(values)]]
    mean = sum(exact) / len(exact)
    by_hand = sum(((r - mean) * Fraction(v, 1024) for r, v in zip(exact, values, strict=True)), Fraction(0))
    assert float(sums.combine(beta, factor)[0]) == pytest.approx(float(by_hand), rel=1e-14, abs=0)


def test_a_reward_without_a_small_denominator_is_refused_and_nothing_is_folded():
    group = random_group(np.random.default_rng(2), 2, rewards=[1.0, 0.1 + 0.2])
    stream = GradientStream(tiny_model(), GRPO(prompts=1), grid=Grid())
    stream.open()
    stream.open_group(0, size=2, prompt_ids=group.prompt)
    with pytest.raises(ValueError, match="group 0, trajectory 1: exact sums need rewards that are fractions"):
        stream.add_trajectory(0, 1, whole(group.members[1]))
    stream.add_trajectory(0, 1, Continuation(ids=group.members[1].ids, scored=group.members[1].scored, reward=0.3))


@given(
    entries=st.lists(st.floats(-0.5, 0.5, width=32), min_size=1, max_size=9),
    exponent=st.integers(-60, -2),
)
def test_entries_round_to_whole_units_as_fractions_do(entries, exponent):
    """FP32 entries, subnormal ones included, against exact rational arithmetic; ties go to even."""
    grid, unit = Grid(exponent=exponent), Fraction(2) ** exponent
    expected = [round(Fraction(entry) / unit) for entry in entries]
    if max(map(abs, expected)) >= 2**53:
        return
    sums = ExactSums([torch.zeros(len(entries))], 1, grid)
    sums.fold((3,), [torch.tensor(entries)])
    assert sums._flat_b[0].tolist() == [3 * q for q in expected]
    assert grid.underflowed == sum(q == 0 and entry != 0 for q, entry in zip(expected, entries, strict=True))


def test_overflow_is_refused_and_underflow_counted():
    grid = Grid(exponent=-44)
    sums = ExactSums([torch.zeros(2)], 1, grid)
    sums.fold((1,), [torch.tensor([1.0, 1e-20])])
    assert grid.underflow == 0.5
    with pytest.raises(OverflowError, match="raise exact_exponent, now -44"):
        sums.fold((1,), [torch.tensor([1000.0, 0.0])])  # 2**53 units are 512
    with pytest.raises(OverflowError, match="could exceed int64"):
        sums.fold((1 << 20,), [torch.tensor([1.0, 0.0])])
    assert sums.combine((1,))[0].tolist() == [1.0, 0.0]

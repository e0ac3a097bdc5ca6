"""The streamed gradient is the plain full-batch gradient: any arrival order, group sizes, turn counts and masks.

Bounds of grade 1: 2e-6 relative in FP32, for drawn batches `DRAWN_FP32`; 1e-12 in FP64, where the casts to float32
inside transformers follow the dtype.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plain_gradients import (
    DRAWN_FP32,
    PlainGroup,
    flat,
    gradient,
    plain_grpo,
    plain_opd,
    random_group,
    relative_error,
    tiny_model,
)
from plain_gradients import token_logprobs as plain_logprobs

from thundersync.equivalence.precision import WideCasts
from thundersync.objectives import GRPO, OPD
from thundersync.streaming import Continuation, GradientStream

MODELS = {dtype: tiny_model(dtype=dtype) for dtype in (torch.float32, torch.float64)}
BOUND = {torch.float32: DRAWN_FP32, torch.float64: 1e-12}
ARITHMETIC = {torch.float32: nullcontext, torch.float64: WideCasts}
DTYPES = pytest.mark.parametrize("dtype", MODELS, ids=["fp32", "fp64"])
examples = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def whole(member, teacher: bool = False) -> Continuation:
    scores = member.teacher[member.scored] if teacher else None
    return Continuation(ids=member.ids, scored=member.scored, reward=member.reward, teacher_logprobs=scores)


def turns_of(member) -> Iterator[Continuation]:
    start = 0
    for ids, mask in member.turns:
        yield Continuation(ids=ids, scored=mask, teacher_logprobs=member.teacher[start : start + len(ids)][mask])
        start += len(ids)


def open_stream(objective, dtype, groups: list[PlainGroup], run_tokens: int = 1024) -> GradientStream:
    stream = GradientStream(MODELS[dtype], objective, dtype=dtype, run_tokens=run_tokens)
    stream.open()
    for i, group in enumerate(groups):
        stream.open_group(i, size=len(group.members), prompt_ids=group.prompt)
    return stream


def stream_grpo(groups: list[PlainGroup], dtype, order: np.random.Generator) -> dict[str, torch.Tensor]:
    """Trajectories in random order over all groups; each group closes with its last one."""
    stream = open_stream(GRPO(prompts=len(groups)), dtype, groups)
    left = [len(group.members) for group in groups]
    for g, i in order.permutation([(g, i) for g, n in enumerate(left) for i in range(n)]).tolist():
        stream.add_trajectory(g, i, whole(groups[g].members[i]))
        left[g] -= 1
        if not left[g]:
            stream.close_group(g)
    return stream.close()


def stream_opd(groups: list[PlainGroup], dtype, order: np.random.Generator, run_tokens: int = 1024):
    """Turns in random order over all trajectories, each trajectory's own in sequence."""
    stream = open_stream(OPD(), dtype, groups, run_tokens)
    queues = {(g, i): list(turns_of(m)) for g, group in enumerate(groups) for i, m in enumerate(group.members)}
    left = [len(group.members) for group in groups]
    while queues:
        g, i = list(queues)[order.integers(len(queues))]
        if queues[g, i]:
            stream.add_turn(g, i, queues[g, i].pop(0))
            continue
        del queues[g, i]
        stream.close_trajectory(g, i)
        left[g] -= 1
        if not left[g]:
            stream.close_group(g)
    return stream.close()


@st.composite
def batches(draw, min_size: int):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    groups = [random_group(rng, size) for size in draw(st.lists(st.integers(min_size, 5), min_size=1, max_size=3))]
    return groups, np.random.default_rng(draw(st.integers(0, 2**32 - 1)))


def anything_scored(groups: list[PlainGroup]) -> bool:
    return any(member.scored.any() for group in groups for member in group.members)


@DTYPES
@examples
@given(batch=batches(min_size=2))
def test_grpo_by_trajectory(dtype, batch):
    groups, order = batch
    with ARITHMETIC[dtype]():
        expected = plain_grpo(MODELS[dtype], groups)
        if expected.norm() > 1e-6:
            assert relative_error(flat(stream_grpo(groups, dtype, order)), expected) < BOUND[dtype]


@DTYPES
@examples
@given(batch=batches(min_size=1), run_tokens=st.sampled_from([1, 8, 1024]))
def test_opd_by_turn(dtype, batch, run_tokens):
    groups, order = batch
    if anything_scored(groups):
        with ARITHMETIC[dtype]():
            expected = plain_opd(MODELS[dtype], groups)
            assert relative_error(flat(stream_opd(groups, dtype, order, run_tokens)), expected) < BOUND[dtype]


@pytest.mark.parametrize("name", ["grpo", "opd"])
@examples
@given(batch=batches(min_size=2), run_tokens=st.sampled_from([1, 20, 1024]))
def test_direct(name, batch, run_tokens):
    groups, _ = batch
    dtype = torch.float32
    plain, objective = (plain_grpo, GRPO(prompts=len(groups))) if name == "grpo" else (plain_opd, OPD())
    if not anything_scored(groups):
        return
    stream = GradientStream(MODELS[dtype], objective, run_tokens=run_tokens)
    stream.open()
    for i, group in enumerate(groups):
        stream.add_group(i, group.prompt, [whole(member, teacher=name == "opd") for member in group.members])
    expected = plain(MODELS[dtype], groups)
    if expected.norm() > 1e-6:
        assert relative_error(flat(stream.close()), expected) < BOUND[dtype]


def test_opd_by_whole_trajectories_is_the_same_update():
    groups = [random_group(np.random.default_rng(5), 3)]
    stream = open_stream(OPD(), torch.float32, groups)
    for i, member in enumerate(groups[0].members):
        stream.add_trajectory(0, i, whole(member, teacher=True))
    stream.close_group(0)
    assert relative_error(flat(stream.close()), plain_opd(MODELS[torch.float32], groups)) < 2e-6


def test_dropping_the_replay_is_noticed():
    """The comparison can fail: without deferred adjoints a multi-turn gradient is off by far more than the bound."""
    groups = [random_group(np.random.default_rng(3), 3)]
    stream = open_stream(OPD(), torch.float32, groups)
    for i, member in enumerate(groups[0].members):
        for turn in turns_of(member):
            stream.add_turn(0, i, turn)
        stream._groups[0].chains[i]._pieces.clear()
        stream.close_trajectory(0, i)
    stream.close_group(0)
    assert relative_error(flat(stream.close()), plain_opd(MODELS[torch.float32], groups)) > 1e-3


@pytest.mark.parametrize("rewards", [[0.35] * 8, [0.0] * 8, [1.0] * 8])
def test_equal_rewards_give_exactly_zero(rewards):
    groups = [random_group(np.random.default_rng(1), 8, rewards)]
    assert not flat(stream_grpo(groups, torch.float32, np.random.default_rng(0))).any()


def test_nearly_equal_rewards_survive_fp32_sums():
    """7 x 0.35 and one 0.35001: without the shift the FP32 sums are off by about 1 %."""
    groups = [random_group(np.random.default_rng(1), 8, [0.35] * 7 + [0.35001])]
    expected = plain_grpo(MODELS[torch.float32], groups)
    assert relative_error(flat(stream_grpo(groups, torch.float32, np.random.default_rng(0))), expected) < 2e-6

    stream = GradientStream(MODELS[torch.float32], GRPO(prompts=1))
    stream.open()
    stream.open_group(0, size=8, prompt_ids=groups[0].prompt, shift=0.0)
    for i, member in enumerate(groups[0].members):
        stream.add_trajectory(0, i, whole(member))
    stream.close_group(0)
    assert relative_error(flat(stream.close()), expected) > 1e-4


def test_a_trajectory_without_scored_tokens_counts_through_its_reward_only():
    """D6 (a): rewards [1,0,0,1], the third has nothing to score; all finite, and the others keep their advantages."""
    group = random_group(np.random.default_rng(2), 4, [1.0, 0.0, 0.0, 1.0])
    ids, mask = group.members[2].turns[0]
    empty = type(group.members[2])(((ids, np.zeros_like(mask)),), 0.0, np.zeros(len(ids)))
    group = PlainGroup(group.prompt, (*group.members[:2], empty, group.members[3]))
    found = flat(stream_grpo([group], torch.float32, np.random.default_rng(0)))
    assert found.isfinite().all()
    assert relative_error(found, plain_grpo(MODELS[torch.float32], [group])) < 2e-6


def test_a_replay_in_the_recorded_order_repeats_the_bits():
    groups = [random_group(np.random.default_rng(4), 5)]
    stream = open_stream(GRPO(prompts=1), torch.float32, groups)
    for i in (3, 0, 4, 1, 2):
        stream.add_trajectory(0, i, whole(groups[0].members[i]))
    closure = stream.close_group(0)
    first = flat(stream.close())
    assert closure.folds == ((3, None), (0, None), (4, None), (1, None), (2, None))
    assert closure.shift == groups[0].members[3].reward

    replay = GradientStream(MODELS[torch.float32], GRPO(prompts=1))
    replay.open()
    replay.open_group(0, size=5, prompt_ids=groups[0].prompt, shift=closure.shift)
    for i, _ in closure.folds:
        replay.add_trajectory(0, i, whole(groups[0].members[i]))
    replay.close_group(0)
    assert torch.equal(flat(replay.close()), first)


def test_d5_any_split_over_ranks_gives_the_same_direction():
    """D5: each rank's unnormalised sums and token counts are added, and divided once."""
    groups = [random_group(np.random.default_rng(seed), 3) for seed in (1, 2)]
    total, tokens = 0.0, 0
    for group in groups:
        rank = open_stream(OPD(), torch.float32, [group])
        for i, member in enumerate(group.members):
            rank.add_trajectory(0, i, whole(member, teacher=True))
        rank.close_group(0)
        sums, scored = rank.close_sums()
        total, tokens = total + flat(sums), tokens + scored
    expected = plain_opd(MODELS[torch.float32], groups)
    assert relative_error(total / OPD().divisor(tokens), expected) < 2e-6


def test_frozen_parameters_are_left_out():
    """With only some parameters trainable (as with adapters) the direction covers exactly those."""
    model = tiny_model()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("q_proj" in name)
    group = random_group(np.random.default_rng(6), 3)
    stream = GradientStream(model, GRPO(prompts=1))
    stream.open()
    stream.open_group(0, size=3, prompt_ids=group.prompt)
    for i, member in enumerate(group.members):
        stream.add_trajectory(0, i, whole(member))
    stream.close_group(0)
    direction = stream.close()
    assert set(direction) == {name for name, p in model.named_parameters() if p.requires_grad}
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    names = [name for name, _ in model.named_parameters()]
    everything = dict(zip(names, _split(plain_grpo(model, [group]), model), strict=True))
    for name, tensor in direction.items():
        assert relative_error(tensor, everything[name]) < 1e-5


def _split(vector: torch.Tensor, model: torch.nn.Module) -> list[torch.Tensor]:
    parts = vector.split([p.numel() for p in model.parameters()])
    return [part.view_as(p) for part, p in zip(parts, model.parameters(), strict=True)]


def test_statistics_are_sums_over_scored_tokens():
    group = random_group(np.random.default_rng(8), 2, [0.0, 1.0])
    model = MODELS[torch.float32]
    gaps, entropies = [], []
    stream = open_stream(GRPO(prompts=1), torch.float32, [group])
    for i, member in enumerate(group.members):
        with torch.no_grad():
            learner = plain_logprobs(model, group.prompt, member.ids)[torch.as_tensor(member.scored)].numpy()
            full = torch.as_tensor(np.concatenate([group.prompt, member.ids]))[None]
            p = torch.softmax(model(input_ids=full).logits[0, len(group.prompt) - 1 : -1], -1)
            entropies.append((-(p * p.log()).sum(-1))[torch.as_tensor(member.scored)].numpy())
        rollout = learner + np.linspace(-0.1, 0.3, len(learner), dtype=np.float32)
        gaps.append(rollout - learner)
        source = Continuation(ids=member.ids, scored=member.scored, reward=member.reward, rollout_logprobs=rollout)
        stream.add_trajectory(0, i, source)
    gap, statistics = np.concatenate(gaps), stream.statistics
    assert statistics.scored_tokens == statistics.compared_tokens == len(gap)
    assert statistics.entropy == pytest.approx(np.concatenate(entropies).mean(), rel=1e-5)
    expected = {"max": np.abs(gap).max(), "mean": np.abs(gap).mean(), "kl": gap.mean()}
    assert statistics.mismatch == pytest.approx(expected, abs=1e-5)


def test_the_reference_itself_differentiates():
    """The plain gradient agrees with a finite difference of the loss along a random direction (FP64)."""
    model = tiny_model(seed=1, dtype=torch.float64)
    prompt, ids = np.array([1, 2, 3]), np.array([4, 5, 6, 7])

    def loss() -> torch.Tensor:
        return plain_logprobs(model, prompt, ids).sum()

    slope = gradient(model, loss())
    step = torch.randn(len(slope), dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 1e-3
    values = []
    for sign in (1, -2):
        for parameter, part in zip(model.parameters(), _split(step, model), strict=True):
            parameter.data.add_(part, alpha=sign)
        values.append(float(loss().detach()))
    assert (values[0] - values[1]) / 2 == pytest.approx(float(slope @ step), rel=1e-2)

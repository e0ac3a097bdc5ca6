"""Host memory of running sums: what the stream reports is what is alive, and stays within 4 (2k + 1 + u) P bytes."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch
from plain_gradients import random_group, tiny_model

from thundersync.objectives import GRPO, OPD
from thundersync.streaming import Continuation, GradientStream
from thundersync.streaming.exact_sums import ExactSums, Grid
from thundersync.streaming.host_memory import sums_bound
from thundersync.streaming.running_sums import RunningSums

GROUPS, SIZE = 3, 2


@pytest.fixture
def only_new_objects():
    """Takes what is alive already out of `gc.get_objects`: a session's worth of objects takes long to go through."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def live_buffers(numbers: int, wide: int = 4) -> int:
    """Bytes of all storages of that many FP32 (wide: int64 or FP64) numbers, found without asking the stream."""
    storages = {}
    for thing in gc.get_objects():
        if issubclass(type(thing), torch.Tensor) and thing.dtype.itemsize == wide:
            storage = thing.untyped_storage()
            if storage.nbytes() == wide * numbers:
                storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def add(stream: GradientStream, name: int, group, trajectory: int) -> None:
    member = group.members[trajectory]
    source = Continuation(
        ids=member.ids, scored=member.scored, reward=float(trajectory), teacher_logprobs=member.teacher[member.scored]
    )
    if stream.objective.source == "turn":
        for ids, scored in member.turns:
            teacher = np.full(int(scored.sum()), -1.0)
            stream.add_turn(name, trajectory, Continuation(ids=ids, scored=scored, teacher_logprobs=teacher))
        stream.close_trajectory(name, trajectory)
    else:
        stream.add_trajectory(name, trajectory, source)


@pytest.mark.parametrize("grid", [None, Grid()], ids=["fp32", "exact"])
@pytest.mark.parametrize("objective", [GRPO(prompts=GROUPS), OPD()], ids=lambda o: o.name)
@pytest.mark.parametrize("together", [1, 3], ids=lambda k: f"k={k}")
def test_measured_sums_are_those_of_the_formula(objective, together, grid, monkeypatch, only_new_objects):
    """`together` groups are open at a time; buffers are counted at rest and inside every fold, also while closing."""
    model = tiny_model()
    P = sum(p.numel() for p in model.parameters())
    rng = np.random.default_rng(0)
    groups = [random_group(rng, SIZE) for _ in range(GROUPS)]
    stream, seen, wide = GradientStream(model, objective, grid=grid), [], 4 if grid is None else 8
    sums = RunningSums if grid is None else ExactSums
    fold = sums.fold

    def watched(self, phi, gradients):
        seen.append(live_buffers(P, wide))
        fold(self, phi, gradients)

    monkeypatch.setattr(sums, "fold", watched)
    stream.open()
    for start in range(0, GROUPS, together):
        names = range(start, min(GROUPS, start + together))
        for name in names:
            stream.open_group(name, size=SIZE, prompt_ids=groups[name].prompt)
        for trajectory in range(SIZE):
            for name in names:
                add(stream, name, groups[name], trajectory)
                assert stream.memory.sums == live_buffers(P, wide)
        k = 0 if objective.scope == "source" else len(names)
        assert stream.memory.groups == k and stream.memory.sums == sums_bound(P, k, 0, wide)
        assert stream.memory.adjoints > 0
        for name in names:
            stream.close_group(name)
            assert stream.memory.sums == live_buffers(P, wide)
        assert (stream.memory.sums, stream.memory.adjoints, stream.memory.groups) == (wide * P, 0, 0)
    k = 0 if objective.scope == "source" else together
    bound = sums_bound(P, stream.memory.peak_groups, 0, wide)
    assert max(seen) == stream.memory.peak_sums == bound == wide * (2 * k + 1) * P
    stream.close()
    gc.collect()
    assert live_buffers(P, wide) == stream.memory.sums == 0


def held_bytes(shapes: list[torch.Size], own: set[int]) -> int:
    """Bytes of the storages in all sequences of tensors of these shapes, each with a storage of its own: views into
    running sums and the model itself are left out."""
    storages = {}
    for thing in gc.get_objects():
        if isinstance(thing, list | tuple) and len(thing) == len(shapes):
            if all(issubclass(type(t), torch.Tensor) and t.shape == s for t, s in zip(thing, shapes, strict=True)):
                found = [t.untyped_storage() for t in thing if t.untyped_storage().nbytes() == t.nbytes]
                storages |= {s.data_ptr(): s.nbytes() for s in found if s.data_ptr() not in own}
    return sum(storages.values())


@pytest.mark.parametrize("grid", [None, Grid()], ids=["fp32", "exact"])
def test_sources_that_wait_for_their_reward_are_within_the_formula(grid, only_new_objects):
    """u = 2 of three: each keeps 4 P bytes, whatever the sums take; the rest is 2k + 1 sums of 4 or of 8 P bytes."""
    model, group = tiny_model(), random_group(np.random.default_rng(2), 3)
    parameters = list(model.parameters())
    P, own = sum(p.numel() for p in parameters), {p.untyped_storage().data_ptr() for p in parameters}
    stream, wide = GradientStream(model, GRPO(prompts=1), grid=grid), 4 if grid is None else 8
    stream.open()
    stream.open_group(0, size=3, prompt_ids=group.prompt)
    sources = [Continuation(ids=m.ids, scored=m.scored) for m in group.members]
    for waiting, source in enumerate(sources[:2]):
        stream.add_content(0, waiting, source)
        assert held_bytes([p.shape for p in parameters], own) == 4 * (waiting + 1) * P
    assert stream.memory.sums == wide * P + 4 * 2 * P  # the group's own sums come with its first fold
    stream.bind_reward(0, 0, 1.0)
    assert stream.memory.sums == wide * 3 * P + 4 * P
    stream.bind_reward(0, 1, 0.0)
    assert held_bytes([p.shape for p in parameters], own) == 0 and stream.memory.sums == wide * 3 * P
    assert stream.memory.peak_sums <= sums_bound(P, 1, 2, bytes_per_number=wide)


def test_nothing_is_live_after_closing_or_aborting():
    rng = np.random.default_rng(1)
    for end in (GradientStream.close, GradientStream.abort):
        stream, group = GradientStream(tiny_model(), GRPO(prompts=1)), random_group(rng, SIZE)
        stream.open()
        stream.open_group(0, size=SIZE, prompt_ids=group.prompt)
        for trajectory in range(SIZE):
            add(stream, 0, group, trajectory)
        if end is GradientStream.close:
            stream.close_group(0)
        end(stream)
        assert (stream.memory.sums, stream.memory.adjoints, stream.memory.groups) == (0, 0, 0)
        assert stream.memory.peak_sums > 0


def test_the_bound():
    """By hand: two open groups, one waiting source, 10 parameters; FP32, and exact sums."""
    assert sums_bound(10, 2, 1) == 4 * (4 + 1 + 1) * 10 == 240
    assert sums_bound(10, 2, 1, bytes_per_number=8) == 480

"""Every release policy gives the plain gradient, whatever arrives when and however little memory graphs may take."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plain_gradients import DRAWN_FP32, flat, plain_grpo, plain_opd, random_group, relative_error, tiny_model
from test_exactness import anything_scored, turns_of, whole

from thundersync.objectives import GRPO, OPD
from thundersync.streaming import GradientStream, Grid, stream, turn_graph
from thundersync.streaming.turn_graph import GraphMemory, kept_longest_first

MODEL, WIDE = tiny_model(), tiny_model(dtype=torch.float64)
examples = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(autouse=True, scope="module")
def short_passes():
    """Trajectories here have few tokens: with passes as short as this, several of them make up a graph."""
    with pytest.MonkeyPatch.context() as patched:
        for module in (stream, turn_graph):
            patched.setattr(module, "PASS_TOKENS", 6)
        yield


def learn(name: str, release: str, groups, order: np.random.Generator, graph_bytes=None, grid=None):
    """Turns, contents and rewards in an order that could happen; returns the direction and the stream."""
    objective = GRPO(prompts=len(groups)) if name == "grpo" else OPD()
    stream = GradientStream(MODEL, objective, graph_bytes=graph_bytes, grid=grid)
    stream.open()
    for g, group in enumerate(groups):
        stream.open_group(g, size=len(group.members), prompt_ids=group.prompt)
    left = [len(group.members) for group in groups]
    steps = {(g, i): [*turns_of(m), "content", "reward"] for g, x in enumerate(groups) for i, m in enumerate(x.members)}
    while steps:
        g, i = list(steps)[order.integers(len(steps))]
        step, member = steps[g, i].pop(0), groups[g].members[i]
        if release == "content" and step == "content":
            add = stream.add_content if objective.needs_reward else stream.add_trajectory
            add(g, i, whole(member, teacher=name == "opd"))
        elif release == "content" and step == "reward" and objective.needs_reward:
            stream.bind_reward(g, i, member.reward)
        elif release == "turn_forward" and step == "reward":
            stream.close_trajectory(g, i, member.reward)
        elif release == "turn_forward" and step != "content":
            stream.forward_turn(g, i, step)
        if step == "reward":
            del steps[g, i]
            left[g] -= 1
            if not left[g]:
                stream.close_group(g)
    return stream.close(), stream


@pytest.mark.parametrize("release", ["content", "turn_forward"])
@pytest.mark.parametrize("name", ["grpo", "opd"])
@examples
@given(seed=st.integers(0, 2**32 - 1), graph_bytes=st.sampled_from([None, 0, 20_000]))
def test_the_release_policy_does_not_change_the_update(name, release, seed, graph_bytes):
    rng = np.random.default_rng(seed)
    # Rewards that are well apart: nearly equal ones divide by a small deviation, which enlarges any FP32 error.
    sizes = rng.integers(2, 4, 2)
    groups = [random_group(rng, size, rewards=list(rng.choice([0.0, 0.5, 1.0], size))) for size in sizes]
    if not anything_scored(groups):
        return
    expected = (plain_grpo if name == "grpo" else plain_opd)(WIDE, groups)
    direction, stream = learn(name, release, groups, rng, graph_bytes)
    if expected.norm() > 1e-6:
        assert relative_error(flat(direction), expected) < DRAWN_FP32
    scored = sum(int(member.scored.sum()) for group in groups for member in group.members)
    assert stream.statistics.scored_tokens == scored


def test_graphs_stay_within_their_memory_and_those_that_give_way_are_named():
    groups = [random_group(np.random.default_rng(4), 5)]
    _, free = learn("grpo", "turn_forward", groups, np.random.default_rng(0), 1 << 40)
    assert free.graphs.peak > 0 and not free.graphs.dropped
    budget = free.graphs.peak // 3
    _, tight = learn("grpo", "turn_forward", groups, np.random.default_rng(0), budget)
    assert tight.graphs.dropped and f"the {budget} bytes of graph_bytes" in tight.graphs.dropped[0]
    assert 0 < tight.graphs.peak <= budget


@pytest.mark.parametrize("name", ["grpo", "opd"])
def test_a_graph_that_gave_way_changes_no_bit(name):
    """Exact sums, so that only what each trajectory computes could differ."""
    groups = [random_group(np.random.default_rng(s), 4, rewards=[0.0, 1.0, 0.5, 0.5]) for s in (4, 5)]
    found = [
        learn(name, "turn_forward", groups, np.random.default_rng(order), graph_bytes, Grid())
        for order, graph_bytes in enumerate((None, 0, 20_000, 60_000))
    ]
    assert found[1][1].graphs.dropped and not found[0][1].graphs.dropped
    directions = [flat(direction) for direction, _ in found]
    assert directions[0].any() and all(torch.equal(direction, directions[0]) for direction in directions)


@given(
    graphs=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 99)), max_size=7, unique_by=lambda graph: graph[1]),
    budget=st.integers(0, 30),
)
def test_graphs_are_kept_so_that_the_longest_redo_is_shortest(graphs, budget):
    """Against every choice that fits: services to redo, longest first, compared like words in a dictionary."""
    needs, services = [need for need, _ in graphs], [service for _, service in graphs]
    places = set(range(len(graphs)))
    fit = [
        set(choice)
        for size in range(len(graphs) + 1)
        for choice in itertools.combinations(places, size)
        if sum(needs[i] for i in choice) <= budget
    ]
    best = min(fit, key=lambda choice: sorted((services[i] for i in places - choice), reverse=True))
    kept = kept_longest_first(needs, services, budget)
    assert kept in fit
    assert sorted(services[i] for i in places - kept) == sorted(services[i] for i in places - best)


def test_a_longer_trajectory_takes_the_room_of_shorter_ones():
    """By hand: 100 bytes, 10 a token; 4 and 3 tokens are kept, then a third trajectory grows to 7."""
    memory = GraphMemory(budget=100)
    graphs = {("g", i): Graph(tokens) for i, tokens in enumerate((4, 3, 2))}
    for key in graphs:
        memory.note(key, graphs)
    assert memory.peak == 90
    graphs["g", 2].due = 5
    assert memory.make_room(("g", 2), graphs)  # 7 tokens first, then 3 beside it; 4 no longer fit
    assert [graph.kept for graph in graphs.values()] == [False, True, True]
    assert memory.dropped == ["group g, trajectory 0: its graph would exceed the 100 bytes of graph_bytes"]
    graphs["g", 2], graphs["g", 3] = Graph(7), Graph(1, due=1)
    assert not memory.make_room(("g", 3), graphs)  # 2 tokens beside 7 and 3: the growing one gives way
    assert [graph.kept for graph in graphs.values()] == [False, True, True, False]


def test_a_first_pass_that_costs_more_than_the_budget_is_not_kept():
    """By hand: 40 bytes where 30 may be held; before it ran nobody knew what a token costs."""
    memory, graphs = GraphMemory(budget=30), {("g", 0): Graph(4)}
    memory.note(("g", 0), graphs)
    assert not graphs["g", 0].kept and memory.peak == 0
    assert memory.dropped == ["group g, trajectory 0: its graph would exceed the 30 bytes of graph_bytes"]


class Graph:
    def __init__(self, ran: int, due: int = 0) -> None:
        self.bytes, self.due, self.kept, self._ran = 10 * ran, due, True, ran

    @property
    def tokens(self) -> int:
        return self._ran + self.due

    def drop(self) -> None:
        self.bytes, self.kept = 0, False


def test_nothing_is_alive_after_the_batch():
    """Graphs hold their activations by reference only: with the batch closed, no tensor of the passes is left."""
    import gc

    def alive() -> int:
        gc.collect()
        return sum(isinstance(o, torch.Tensor) for o in gc.get_objects())

    groups = [random_group(np.random.default_rng(6), 3)]
    learn("opd", "turn_forward", groups, np.random.default_rng(0))
    before = alive()
    direction, _ = learn("opd", "turn_forward", groups, np.random.default_rng(0))
    assert alive() - before <= len(direction) + 1


def test_a_reward_before_its_content_and_a_content_twice_are_refused():
    group = random_group(np.random.default_rng(2), 2)
    stream = GradientStream(MODEL, GRPO(prompts=1))
    stream.open()
    stream.open_group(0, size=2, prompt_ids=group.prompt)
    with pytest.raises(ValueError, match="trajectory 0 has no gradient that waits for a reward"):
        stream.bind_reward(0, 0, 1.0)
    stream.add_content(0, 0, whole(group.members[0]))
    with pytest.raises(ValueError, match="waits for its reward already"):
        stream.add_content(0, 0, whole(group.members[0]))
    with pytest.raises(ValueError, match="waits for its reward already"):
        stream.add_trajectory(0, 0, replace(whole(group.members[0]), reward=1.0))
    with pytest.raises(RuntimeError, match=r"bind_reward\(\) is missing for trajectories \[0\]"):
        stream.close_group(0)


def test_content_of_an_objective_without_rewards_is_refused():
    """It would wait for ever, and its tokens would still be counted."""
    group = random_group(np.random.default_rng(2), 1)
    stream = GradientStream(MODEL, OPD())
    stream.open()
    stream.open_group(0, size=1, prompt_ids=group.prompt)
    with pytest.raises(ValueError, match="opd has no reward to wait for: use add_trajectory"):
        stream.add_content(0, 0, whole(group.members[0], teacher=True))
    assert stream.statistics.scored_tokens == 0

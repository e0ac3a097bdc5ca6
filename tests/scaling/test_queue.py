"""Equations 14 and 15 against hand-computed queues, each other, and a brute-force search over orders."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thundersync.scaling.queue import close_time, finish_times, last_finish, learner_time, step_time, sync_step_time

examples = settings(max_examples=40, deadline=None)
times = st.floats(0, 100, allow_subnormal=False)
sources = st.lists(st.tuples(times, times), min_size=1, max_size=12)


def test_a_queue_by_hand():
    """Ready at 1, 2, 10 with 3, 4, 1 of service: 1+3 = 4, then 4+4 = 8, idle until 10, 10+1 = 11."""
    assert finish_times([1, 2, 10], [3, 4, 1]).tolist() == [4, 8, 11]
    assert finish_times([10, 1, 2], [1, 3, 4]).tolist() == [11, 4, 8]  # input order does not matter
    assert last_finish([1, 2, 10], [3, 4, 1]) == 11
    assert step_time([1, 2, 10], [3, 4, 1], rollout=10, suffix=0.5) == 11.5
    assert step_time([1, 2, 10], [3, 4, 1], rollout=12, suffix=0.5) == 12.5
    assert sync_step_time([3, 4, 1], rollout=12, suffix=0.5) == 20.5


def test_each_rank_queues_for_itself_and_a_pooled_lane_would_miss_the_slow_one():
    """Rank a: 5 + 5 = 10 from 0. Rank b: 1. Shared evenly the two lanes would finish at 5.5."""
    ready, service, rank = [0, 0, 0], [5, 5, 1], ["a", "a", "b"]
    assert close_time(ready, service, rank) == 10
    assert learner_time(service, rank) == 10 and learner_time(service) == 11
    assert close_time(ready, service) == 11


@examples
@given(sources)
def test_equation_15_is_equation_14(pairs):
    tau, p = np.array(pairs).T
    assert last_finish(tau, p) == pytest.approx(finish_times(tau, p).max(), rel=1e-12)


@examples
@given(st.lists(st.tuples(times, times), min_size=1, max_size=5))
def test_no_order_finishes_earlier_than_readiness_order(pairs):
    """Appendix F.1: readiness order attains the minimum endpoint."""

    def endpoint(order):
        c = 0.0
        for tau, p in order:
            c = max(tau, c) + p
        return c

    best = min(endpoint(order) for order in permutations(pairs))
    assert close_time(*np.array(pairs).T) == pytest.approx(best, rel=1e-12)


@examples
@given(sources, st.lists(st.integers(0, 2), min_size=12, max_size=12))
def test_ranks_are_separate_queues(pairs, ranks):
    tau, p = np.array(pairs).T
    rank = np.array(ranks[: len(pairs)])
    alone = [finish_times(tau[rank == r], p[rank == r]).max() for r in set(rank.tolist())]
    assert close_time(tau, p, rank) == pytest.approx(max(alone), rel=1e-12)


def test_no_source_finishes_at_once():
    assert close_time([], []) == 0 and step_time([], [], rollout=3, suffix=1) == 4


@pytest.mark.parametrize(
    ("ready", "service", "rank", "words"),
    [
        ([1, 2], [1], None, "shapes"),
        ([1, float("nan")], [1, 1], None, r"ready\[1\] is nan"),
        ([1, 2], [1, -1], None, r"service\[1\] is -1"),
        ([1, 2], [1, 1], [0], "one rank per source"),
    ],
)
def test_bad_traces_are_refused_by_name(ready, service, rank, words):
    with pytest.raises(ValueError, match=words):
        close_time(ready, service, rank)

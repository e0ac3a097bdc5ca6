"""The checkpoint time axis against an example worked by hand, and against a plain loop."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.time_axis import (
    ScoredCheckpoint,
    cost_usd,
    device_hours,
    first_crossing,
    mean_step_function,
    replicates,
    step_curve,
    trailing_mean,
    value_at,
)


def points(*pairs, tasks=2):
    """(published_at, solved of 10 tasks) pairs."""
    return [
        ScoredCheckpoint(
            published_at=float(at),
            score_M=np.array([1.0] * solved + [0.0] * (10 - solved)),
            updates=10 * i,
            trajectories=100 * i,
            generated_tokens=1000 * i,
        )
        for i, (at, solved) in enumerate(pairs)
    ]


RUNS = [points((0, 2), (100, 5), (200, 4), (300, 8)), points((0, 2), (150, 4), (310, 6))]
"""Two seeds. On the union 0, 100, 150, 200, 300, 310 their scores are

    seed 1   20   50   50   40   80   80
    seed 2   20   20   40   40   40   60
    mean     20   35   45   40   60   70
"""


def test_hand_worked_example():
    curve = step_curve(RUNS)
    np.testing.assert_array_equal(curve.seconds_T, [0, 100, 150, 200, 300, 310])
    np.testing.assert_allclose(curve.percent_T, [20, 35, 45, 40, 60, 70])
    np.testing.assert_allclose(curve.updates_T, [0, 5, 10, 15, 20, 25])
    np.testing.assert_allclose(curve.generated_tokens_T, [0, 500, 1000, 1500, 2000, 2500])
    cross = lambda target, **kw: first_crossing(curve.seconds_T, curve.percent_T, target, **kw)  # noqa: E731
    assert cross(45) == 150  # reached exactly counts; that the mean falls back to 40 later does not matter
    assert cross(45.1) == 300
    assert cross(70) == 310 and cross(70, budget=309) is None and cross(70.1) is None
    assert value_at(curve.seconds_T, curve.percent_T, 200) == pytest.approx(40)
    assert value_at(curve.seconds_T, curve.percent_T, 299.9) == pytest.approx(40)  # no future checkpoint
    assert value_at(curve.seconds_T, curve.percent_T, 1e9) == pytest.approx(70)
    with pytest.raises(ValueError, match="no checkpoint of every run was published by -1 s"):
        value_at(curve.seconds_T, curve.percent_T, -1)


def test_the_curve_starts_when_every_run_has_a_checkpoint():
    curve = step_curve([points((5, 1), (9, 2)), points((7, 3))])
    np.testing.assert_array_equal(curve.seconds_T, [7, 9])
    np.testing.assert_allclose(curve.percent_T, [20, 25])
    with pytest.raises(ValueError, match="at least one evaluated checkpoint of each run"):
        step_curve([points((5, 1)), []])
    with pytest.raises(ValueError, match="in order of their publication"):
        step_curve([points((5, 1), (5, 2))])


run_lists = st.lists(
    st.dictionaries(st.integers(0, 30), st.integers(0, 10), min_size=1, max_size=6).map(
        lambda d: points(*sorted(d.items()))
    ),
    min_size=1,
    max_size=4,
)


@given(run_lists, st.integers(0, 100))
def test_curve_and_crossing_agree_with_a_plain_loop(runs, target):
    curve = step_curve(runs)
    first = None
    for t in sorted({c.published_at for run in runs for c in run}):
        published = [[c for c in run if c.published_at <= t] for run in runs]
        if not all(published):
            continue
        mean = sum(10 * p[-1].score_M.sum() for p in published) / len(runs)
        assert value_at(curve.seconds_T, curve.percent_T, t) == pytest.approx(mean)
        if first is None and mean >= target - 1e-9:
            first = t
    assert first_crossing(curve.seconds_T, curve.percent_T, target) == first


@given(run_lists)
def test_unresampled_weights_give_the_curve_back(runs):
    tasks, seeds = np.full((1, 10), 0.1), np.full((1, len(runs)), 1 / len(runs))
    np.testing.assert_allclose(replicates(runs, tasks, seeds)[0], step_curve(runs).percent_T, atol=1e-9)


def test_replicates_weigh_tasks_and_runs():
    only_task_3, only_seed_2 = np.eye(10)[[3]], np.array([[0.0, 1.0]])
    np.testing.assert_array_equal(replicates(RUNS, only_task_3, only_seed_2), [[0, 0, 100, 100, 100, 100]])


def test_device_hours_and_cost():
    """The paper: 128 GPU-hours are 16 hours on eight GPUs; a node-hour at 6.69 USD costs 53.52 USD."""
    assert device_hours(16 * 3600, 8) == 128
    assert cost_usd(3600, 8, 6.69) == pytest.approx(53.52)
    assert cost_usd(3600, 8, None) is None


def test_mean_step_function_and_trailing_mean():
    times, values = mean_step_function(
        [np.array([1.0, 3.0]), np.array([2.0, 3.0])], [np.array([10.0, 20.0]), np.array([0.0, 4.0])]
    )
    np.testing.assert_array_equal(times, [2, 3])
    np.testing.assert_array_equal(values, [5, 12])
    np.testing.assert_array_equal(trailing_mean(np.array([1.0, 3.0, 5.0, np.nan, 9.0]), 3), [1, 2, 3, 4, 7])
    assert np.isnan(trailing_mean(np.array([np.nan, 1.0]), 2)[0])

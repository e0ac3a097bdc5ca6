"""Step times, Equation 12 and Equation 17, against the paper's own numbers and small ones worked by hand."""

import pytest
import synthetic

from analysis import efficiency


def updates(steps, schedule="sync"):
    records, started = [], 0.0
    for k, step in enumerate(steps):
        records.append(synthetic.update_record(k, started, schedule, "p", 0.5, step))
        started += step + 100.0  # a checkpoint saved between two updates
    return records


def test_the_speedup_is_a_ratio_of_means_not_a_mean_of_ratios():
    sync, other = updates([2.0, 4.0]), updates([1.0, 4.0], "thundersync")
    assert efficiency.speedup(sync, other) == pytest.approx(6 / 5)  # the mean of ratios would be 1.5
    assert efficiency.mean_step_seconds(sync) == pytest.approx(3.0)  # pauses between updates are no part of a step


def test_phases_partition_the_step_and_bound_it():
    phases = efficiency.sync_phases(updates([2.0, 4.0]))  # made with R, L, P = 0.5, 0.45, 0.05 of the step
    assert (phases.rollout, phases.learner, phases.suffix) == pytest.approx((1.5, 1.35, 0.15))
    assert phases.bound == pytest.approx(3.0 / 1.65)
    with pytest.raises(ValueError, match="R, L and P come from a Sync run"):
        efficiency.sync_phases(updates([2.0], "thundersync"))


def test_the_bound_of_the_papers_grpo_step():
    """R 650.0, L 646.4, step 1313.6 s, so P 17.2: bound 1.969, and its ThunderSync reached 1313.6 / 687.7 = 1.910."""
    phases = efficiency.Phases(rollout=650.0, learner=646.4, suffix=1313.6 - 650.0 - 646.4)
    assert phases.bound == pytest.approx(1.9688, abs=1e-4)
    assert efficiency.Phases(rollout=1, learner=1, suffix=0).bound == 2


def test_summaries_over_seeds_use_the_sample_deviation():
    assert efficiency.over_seeds([1.0, 2.0, 4.0]).sd == pytest.approx((14 / 3 / 2) ** 0.5)
    assert efficiency.over_seeds([1.0]).sd is None


def test_lag_range():
    assert efficiency.lag_range(updates([1.0] * 5, "fully_async")) == (0, 2)

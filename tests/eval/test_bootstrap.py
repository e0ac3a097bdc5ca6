"""The bootstrap against scipy, and against what cluster and stratum mean."""

import numpy as np
import pytest
import scipy.stats

from eval.bootstrap import interval, weights


def test_percentile_interval_of_a_mean_agrees_with_scipy():
    values = np.random.default_rng(3).random(40) ** 2
    ours = interval(weights(range(40), replicates=20000, seed=1) @ values)
    theirs = scipy.stats.bootstrap(
        (values,), np.mean, n_resamples=20000, method="percentile", rng=2
    ).confidence_interval
    assert ours == pytest.approx((theirs.low, theirs.high), abs=0.004)  # Monte Carlo error of an end: about 0.002


def test_the_same_seed_gives_the_same_weights_and_rows_sum_to_one():
    a, b = (weights("abcdef", replicates=50, seed=7) for _ in range(2))
    assert (a == b).all() and (a != weights("abcdef", replicates=50, seed=8)).any()
    np.testing.assert_allclose(a.sum(axis=1), 1)


def test_members_of_a_cluster_are_drawn_together():
    w = weights(["r1", "r1", "r2", "r3", "r3", "r3"], replicates=200, seed=0)
    assert (w[:, 0] == w[:, 1]).all() and (w[:, 3] == w[:, 4]).all() and (w[:, 4] == w[:, 5]).all()
    assert (w[:, 0] != w[:, 2]).any()


def test_the_variance_of_clustered_means_matches_the_closed_form():
    """Two clusters of equal size: their mean is that of two draws, so its variance is that of the cluster means / 2."""
    values = np.array([0.0, 0.0, 1.0, 1.0])
    replicates = weights(["a", "a", "b", "b"], replicates=40000, seed=5) @ values
    assert replicates.var() == pytest.approx(0.25 / 2, rel=0.03)
    plain = weights(range(4), replicates=40000, seed=5) @ values
    assert plain.var() == pytest.approx(0.25 / 4, rel=0.03)


def test_strata_keep_their_share():
    w = weights(range(6), replicates=100, seed=0, strata=["x", "x", "y", "y", "y", "y"])
    np.testing.assert_allclose(w[:, :2].sum(axis=1), 2 / 6)
    with pytest.raises(ValueError, match="cluster 'r' lies in the strata"):
        weights(["r", "r"], replicates=1, seed=0, strata=["x", "y"])


def test_infinite_replicates_stay_infinite():
    values = np.concatenate([np.arange(90.0), np.full(10, np.inf)])
    low, high = interval(values)
    assert low == 2.0 and high == np.inf
    assert interval(np.arange(101.0), level=0.9) == (5.0, 95.0)

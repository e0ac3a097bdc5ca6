"""Equations 25, 26 and 28 against real traces of several waves through the learner's queue."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thundersync.scaling import queue, waves
from thundersync.scaling.speedup import overlap_limit
from thundersync.scaling.tail import released_before, tail

examples = settings(max_examples=40, deadline=None)
wave = st.lists(st.tuples(st.floats(0, 1, allow_subnormal=False), st.floats(0.01, 0.6)), min_size=1, max_size=6)


@examples
@given(wave, st.integers(1, 6), st.floats(0, 0.5))
def test_identical_waves_through_the_queue(pairs, w, kappa_w):
    """w copies of a wave, a window apart: the learner ends at Equation 25's largest, the speedup is Equation 26."""
    tau, p = np.array(pairs).T
    u, F = released_before(tau, p, 1.0)
    ready = np.concatenate([tau + i for i in range(w)])
    service = np.tile(p, w)
    endpoints = waves.wave_endpoints(u, F, p.sum(), w)
    assert endpoints.shape == (w, len(u))
    assert max(endpoints.max(), w) == pytest.approx(max(queue.close_time(ready, service), w))
    measured = queue.sync_step_time(service, w, kappa_w) / queue.step_time(ready, service, w, kappa_w)
    assert waves.wave_speedup(w, p.sum(), kappa_w, tail(u, F, p.sum())) == pytest.approx(measured)


def test_the_last_wave_decides_when_learning_is_short_and_the_first_when_it_is_long():
    u, F = np.array([0.0, 1.0]), np.array([0.0, 0.5])
    for rho_w, decisive in ((0.8, 4), (1.5, 1)):
        endpoints = waves.wave_endpoints(u, F, rho_w, 4)
        assert 1 + np.argmax(endpoints.max(axis=1)) == decisive


@examples
@given(st.floats(0.1, 5), st.floats(0, 1), st.floats(0, 1))
def test_more_waves_approach_the_full_overlap_limit(rho_w, kappa_w, extra):
    lambda_w = max(rho_w - 1, 0) + extra
    few, many = (waves.wave_speedup(w, rho_w, kappa_w, lambda_w) for w in (2, 1e6))
    assert many == pytest.approx(overlap_limit(rho_w), rel=1e-5)
    assert few <= many + 1e-9


def test_waves_of_a_batch():
    """Equation 28 at Q = 128: half a wave keeps the window and halves the work; three half-waves more extend it."""
    assert [float(x) for x in waves.waves_of_batch(64, 1, 128)] == [1, 0.5]
    assert [float(x) for x in waves.waves_of_batch(128, 2, 128)] == [1, 0.5]
    assert [float(x) for x in waves.waves_of_batch(320, 0.5, 128)] == [2.5, 2]


def test_a_surface_is_its_points():
    u = np.linspace(0, 1, 101)
    batches, ratios = np.array([[64.0], [256.0]]), np.array([0.5, 1, 2])
    given_ = {"capacity": 128, "kappa_w": 0.05}
    surface = waves.predicted_speedup(u, u**2, batch=batches, ratio=ratios, **given_)
    assert surface.shape == (2, 3)
    w, rho_w = 2, 1 / 0.5  # batch 256 at ratio 0.5
    lambda_w = max(u + rho_w * (1 - u**2)) - 1
    assert surface[1, 0] == pytest.approx((2 * 3 + 0.05) / (2 * 2 + 0.05 - 1 + lambda_w))
    assert waves.wave_speedup(w, rho_w, 0.05, lambda_w) == pytest.approx(surface[1, 0])
    found = waves.best_ratio(u, u**2, batch=256, ratios=ratios, **given_)
    assert found == (ratios[np.argmax(surface[1])], surface[1].max())

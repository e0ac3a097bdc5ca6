"""Release laws against sums by hand, their limits, and traces drawn event by event."""

import numpy as np
import pytest
import sampled_traces
from hypothesis import given, settings
from hypothesis import strategies as st

from thundersync.scaling import release_laws as laws
from thundersync.scaling.queue import close_time
from thundersync.scaling.tail import grid, release_lag, released_before, tail

examples = settings(max_examples=40, deadline=None)
GAMMA, BETA, M, DELTA = 0.49, 0.02, 8, 0.45  # Appendix F.5
exponents = st.one_of(st.just(0.0), st.floats(0.02, 2))
shares, horizons = st.floats(0, 1), st.integers(1, 40)


def test_laws_by_hand():
    """gamma = 0. GRPO, m = 2, beta = 1/2, u = 1/2: 1/2 * 1/2 + 1/2 * 1/4. OPD, two turns, delta = 1/2, u = 1/4:
    turn 1 is out if U <= 1/2, turn 2 if U <= 1/4: (1/2)/2 * (1/2 + 1/4) + 1/2 * 1/4."""
    assert laws.grpo(0.5, m=2, beta=0.5, gamma=0) == 0.375
    assert laws.opd(0.25, turns=2, delta=0.5, gamma=0) == 0.3125
    # content, v = 1/2: tokens are final at U/2, all by u = 1/2; the closure share as above.
    assert laws.content(0.5, verification=0.5, m=2, beta=0.5, gamma=0) == 0.5 * 1 + 0.5 * 0.25
    # turn_forward, f = 1/2, two turns: as OPD with half deferred.
    assert laws.turn_forward(0.25, turns=2, forward=0.5, gamma=0) == 0.3125


@examples
@given(horizons, shares, exponents, shares)
def test_equation_24_term_by_term(a, delta, gamma, u):
    blocks = sum(min(1, a * u / j) ** (gamma + 1) for j in range(1, a + 1))
    expected = (1 - delta) / a * blocks + delta * u ** (gamma + 1)
    assert laws.opd(u, turns=a, delta=delta, gamma=gamma) == pytest.approx(expected, abs=1e-12)


@examples
@given(st.integers(1, 12), st.floats(0, 0.4), exponents, horizons, st.floats(0, 0.6), st.floats(0, 0.9))
def test_every_law_rises_from_nothing_to_all_of_the_work(m, beta, gamma, a, forward, verification):
    u = grid(501)
    group = {"m": m, "beta": beta, "gamma": gamma}
    for F in (
        laws.grpo(u, **group),
        laws.opd(u, turns=a, delta=beta, gamma=gamma),
        laws.opd_limit(u, gamma=gamma),
        laws.content(u, verification=verification, **group),
        laws.turn_forward(u, turns=a, forward=forward, verification=verification, **group),
    ):
        assert F[0] == 0 and F[-1] == pytest.approx(1) and np.all(np.diff(F) >= -1e-12)


@pytest.mark.parametrize("gamma", [0.0, 0.49, 1.0])
def test_endless_turns_without_deferred_work_leave_no_lag(gamma):
    u = grid(2001)
    limit = laws.opd_limit(u, gamma=gamma)
    assert np.max(np.abs(laws.opd(u, turns=20_000, delta=0, gamma=gamma) - limit)) < 5e-4
    assert release_lag(u, limit) <= 1e-12
    assert tail(u, limit, [0.5, 1, 3]) == pytest.approx([0, 0, 2], abs=1e-12)
    assert np.all(laws.opd(u, turns=7, delta=1, gamma=gamma) == u ** (gamma + 1))


@examples
@given(st.floats(0.1, 5), st.integers(1, 16), st.floats(0, 0.5), exponents)
def test_equation_23_gives_the_tail_that_the_grid_finds(rho, m, beta, gamma):
    u = grid()
    found = tail(u, laws.grpo(u, m=m, beta=beta, gamma=gamma), rho)
    exact = laws.grpo_tail(rho, m=m, beta=beta, gamma=gamma)
    assert found - 1e-12 <= exact <= found + 1e-4 and exact == pytest.approx(found, abs=1e-5)
    point = laws.grpo_stationary_point(rho, m=m, beta=beta, gamma=gamma)
    if rho * (gamma + 1 + beta * (m - 1)) <= 1:
        assert point is None and exact == 0
    elif point is not None:
        slope = (1 - beta) * (gamma + 1) * point**gamma + beta * (gamma + m) * point ** (gamma + m - 1)
        assert slope == pytest.approx(1 / rho)


@examples
@given(st.floats(0.1, 4), st.floats(0, 0.8), exponents)
def test_content_sees_a_rollout_window_that_is_shorter_by_the_verification(rho, v, gamma):
    """beta = 0: 1 + lambda = max(1, (1 - v)(1 + lambda_0)), lambda_0 at rho / (1 - v)."""
    u = grid(50_001)
    window = (1 - v) * (1 + laws.grpo_tail(rho / (1 - v), m=1, beta=0, gamma=gamma))
    found = tail(u, laws.content(u, verification=v, m=1, beta=0, gamma=gamma), rho)
    assert found == pytest.approx(max(1, window) - 1, abs=3e-5)


def test_our_laws_are_the_papers_where_they_should_be():
    u = grid(501)
    group = {"m": M, "beta": BETA, "gamma": GAMMA}
    grpo = laws.grpo(u, **group)
    assert np.allclose(laws.content(u, verification=0, **group), grpo, atol=1e-15)
    assert np.allclose(laws.turn_forward(u, turns=12, forward=0, **group), grpo, atol=1e-15)
    opd = laws.opd(u, turns=12, delta=0.65, gamma=GAMMA)
    assert np.allclose(laws.turn_forward(u, turns=12, forward=0.35, gamma=GAMMA), opd, atol=1e-15)


GROUP = {"m": M, "beta": 0.1, "gamma": GAMMA}  # a closure share large enough to be seen
CASES = {
    "grpo": (lambda u: laws.grpo(u, **GROUP), lambda rng, n: sampled_traces.trajectory(rng, n, **GROUP)),
    "opd": (
        lambda u: laws.opd(u, turns=6, delta=DELTA, gamma=GAMMA),
        lambda rng, n: sampled_traces.turns(rng, n, turns=6, late=DELTA, gamma=GAMMA),
    ),
    "content": (
        lambda u: laws.content(u, verification=0.3, **GROUP),
        lambda rng, n: sampled_traces.trajectory(rng, n, verification=0.3, **GROUP),
    ),
    "turn_forward, OPD": (
        lambda u: laws.turn_forward(u, turns=6, forward=0.33, gamma=GAMMA),
        lambda rng, n: sampled_traces.turns(rng, n, turns=6, late=0.67, gamma=GAMMA),
    ),
    "turn_forward, GRPO": (
        lambda u: laws.turn_forward(u, turns=6, forward=0.33, verification=0.3, **GROUP),
        lambda rng, n: sampled_traces.turns(rng, n, turns=6, late=0.57, verification=0.3, **GROUP),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_long_trace_drawn_event_by_event_follows_its_law(name):
    """24,000 trajectories: F within 0.015 of the law everywhere, the queue's tail within Equation 27 of the law's."""
    law, draw = CASES[name]
    ready, service = draw(np.random.default_rng(0), 24_000)
    u, F = released_before(ready, service, 1.0)
    apart = np.max(np.abs(F - law(u)))
    assert apart < 0.015
    for rho in (0.5, 1.0, 2.0):
        from_queue = max(close_time(ready, rho * service) - 1, 0)
        assert abs(from_queue - tail(grid(), law(grid()), rho)) <= rho * apart + 1e-4

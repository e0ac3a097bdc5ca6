"""Equations 16 to 20 and 27 on traces of all shapes, against the recurrence of Equation 14 and sums by hand."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thundersync.scaling import queue, speedup, tail

examples = settings(max_examples=40, deadline=None)
ROLLOUT = 10.0
coarse = st.integers(0, 10).map(float)  # many sources ready at the same instant
ready_times = st.one_of(coarse, st.floats(0, ROLLOUT, allow_subnormal=False))
traces = st.lists(st.tuples(ready_times, st.floats(0.01, 5)), min_size=1, max_size=12).map(
    lambda pairs: np.array(pairs).T
)
work = st.floats(0.1, 4)


def fraction(tau, p, u, side):
    """Equation 18 summed directly, `side` before u (strictly) or up to and including it."""
    at = tau / ROLLOUT  # as the code divides: 3.4445 / 10 * 10 is more than 3.4445
    return sum(p[at < u] if side == "before" else p[at <= u]) / sum(p)


def test_a_release_distribution_by_hand():
    """Half of the work at 0.5, a quarter at 0.75, a quarter at 1. At 0.5 nothing is out *before* it."""
    u, F = tail.released_before([5, 7.5, 10], [2, 1, 1], rollout=10)
    assert u.tolist() == [0, 0.5, 0.75, 1, 1] and F.tolist() == [0, 0, 0.5, 0.75, 0.75]
    # rho = 0.4: 0.5 + 0.4 = 0.9, 0.75 + 0.2 = 0.95, 1 + 0.1 = 1.1 -> the last source is left over: lambda = 0.1
    assert tail.tail(u, F, 0.4) == pytest.approx(0.1)
    assert tail.release_lag(u, F) == 0.5


def test_the_fraction_is_strict_because_work_released_at_one_instant_lies_ahead():
    """Two sources at 0.5 with half a window of work each end at 1.5; an inclusive fraction would see no tail at all."""
    u, F = tail.released_before([5, 5], [5, 5], rollout=10)
    assert tail.tail(u, F, 1.0) == 0.5
    assert queue.close_time([5, 5], [5, 5]) == 15


@examples
@given(traces)
def test_equation_19_is_the_recurrence_on_any_finite_trace(trace):
    tau, p = trace
    u, F = tail.released_before(tau, p, ROLLOUT)
    expected = speedup.normalized_tail(queue.finish_times(tau, p).max(), ROLLOUT)
    assert tail.tail(u, F, p.sum() / ROLLOUT) == pytest.approx(expected, abs=1e-12)


@examples
@given(traces, st.lists(work, min_size=1, max_size=4))
def test_one_work_or_many(trace, rho):
    u, F = tail.released_before(*trace, ROLLOUT)
    assert tail.tail(u, F, rho) == pytest.approx([float(tail.tail(u, F, one)) for one in rho])


@examples
@given(traces, work)
def test_equation_20_bounds_the_tail_of_any_trace(trace, rho):
    u, F = tail.released_before(*trace, ROLLOUT)
    lag = tail.release_lag(u, F)
    assert lag == pytest.approx(max(at - fraction(*trace, at, "before") for at in u), abs=1e-12)
    lower, upper = tail.tail_bounds(rho, lag)
    assert lower - 1e-12 <= tail.tail(u, F, rho) <= upper + 1e-12
    assert tail.tail(u, F, 1.0) == pytest.approx(lag, abs=1e-12)


@examples
@given(traces, traces, work)
def test_equation_27_bounds_what_a_wrong_release_distribution_costs(first, second, rho):
    at = np.unique(np.concatenate([first[0], second[0], [0.0, ROLLOUT]])) / ROLLOUT
    both = [[fraction(*trace, u, side) for u in at for side in ("before", "up to")] for trace in (first, second)]
    bound = tail.tail_difference_bound(*both, rho)
    tails = [tail.tail(*tail.released_before(*trace, ROLLOUT), rho) for trace in (first, second)]
    assert abs(tails[0] - tails[1]) <= bound + 1e-9


@examples
@given(traces, traces, work)
def test_the_mean_release_distribution_is_optimistic(first, second, rho):
    """Appendix F.4: the endpoint is convex in F, so the tail of the mean is at most the mean of the tails."""
    at = np.unique(np.concatenate([first[0], second[0], [0.0, ROLLOUT]])) / ROLLOUT
    F, G = (np.array([fraction(*trace, u, "before") for u in at]) for trace in (first, second))
    assert tail.tail(at, (F + G) / 2, rho) <= (tail.tail(at, F, rho) + tail.tail(at, G, rho)) / 2 + 1e-12


@examples
@given(st.integers(1, 60), st.floats(0, 1.5), work)
def test_atoms_at_the_midpoint_quantiles_miss_a_law_by_half_an_atom(n, gamma, rho):
    """Appendix F.4, for H(u) = u^(gamma+1), whose quantile q lies at q^(1/(gamma+1))."""
    quantiles = ((np.arange(n) + 0.5) / n) ** (1 / (gamma + 1))
    atoms = tail.tail(*tail.released_before(quantiles, np.ones(n), 1.0), rho)
    grid = tail.grid()
    assert abs(atoms - tail.tail(grid, grid ** (gamma + 1), rho)) <= tail.atoms_tail_error(n, rho) + 1e-4


@examples
@given(st.floats(0.1, 50), st.floats(0.1, 50), st.floats(0, 10), st.floats(0, 60))
def test_equations_16_and_17_in_seconds(R, L, P, left):
    """The speedup is a ratio of step times, and no tail, not even the shortest possible, beats the limit."""
    tail_seconds = max(L - R, 0) + left
    S = speedup.speedup(L / R, tail_seconds / R, P / R)
    assert S == pytest.approx((R + L + P) / (R + tail_seconds + P))
    limit = speedup.overlap_limit(L / R, P / R)
    assert S <= limit + 1e-9 and limit == pytest.approx((R + L + P) / (max(R, L) + P)) and limit <= 2 + 1e-12
    assert speedup.share_limit(speedup.training_share(R, L)) == pytest.approx((R + L) / max(R, L))


def test_equal_stages_no_suffix_and_no_tail_double_the_speed():
    assert speedup.speedup(1, 0) == speedup.overlap_limit(1) == speedup.share_limit(speedup.training_share(3, 3)) == 2
    assert speedup.overlap_limit([0.25, 4]).tolist() == [1.25, 1.25]  # symmetric in log rho
    # Nine tenths of a turn_eager-like policy's extra work: rho 1.9 against Sync's 1, tail 0.9: (1 + 1) / 1.9.
    assert speedup.speedup(1.9, 0.9, rho_sync=1.0) == pytest.approx(2 / 1.9)


def test_traces_that_the_laws_do_not_cover_are_refused():
    with pytest.raises(ValueError, match=r"ready\[1\] is 11.0, after rollout closed at 10"):
        tail.released_before([1, 11], [1, 1], rollout=10)
    with pytest.raises(ValueError, match="sum to 0"):
        tail.released_before([1], [0], rollout=10)


def test_the_example_of_the_readme_computes_what_its_comments_say():
    text = (Path(__file__).parents[2] / "thundersync" / "scaling" / "README.md").read_text()
    names: dict = {}
    exec(text.split("```python\n")[1].split("```")[0], names)
    assert (names["sync"], names["streamed"]) == (19.5, 12.5)
    assert names["left"] == pytest.approx(0.2) and names["gain"] == pytest.approx(names["sync"] / names["streamed"])
    assert names["predicted"] == pytest.approx(1.95 / 1.05)

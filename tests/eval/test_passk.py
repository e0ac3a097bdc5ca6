"""pass@k against enumeration of subsets, Equation 13, and case D10."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval.passk import estimate, pass_at_k, per_task


@pytest.mark.parametrize(("n", "c", "k", "value"), [(5, 2, 3, 0.9), (5, 1, 1, 0.2), (5, 1, 5, 1.0), (5, 0, 5, 0.0)])
def test_d10_values(n, c, k, value):
    assert estimate(n, c, k) == pytest.approx(value, abs=1e-15)


@pytest.mark.parametrize(("n", "c", "k"), [(2, 0, 5), (2, 2, 3), (0, 0, 1), (3, 1, 0)])
def test_d10_fewer_attempts_than_k_are_refused(n, c, k):
    with pytest.raises(ValueError, match="needs at least"):
        estimate(n, c, k)


def test_d10_a_mean_names_the_task_that_lacks_attempts():
    outcomes = np.array([[1, 0, 0, 0, 0], [0, 0, 1, 1, 0], [1, 1, 1, np.nan, np.nan]])
    with pytest.raises(ValueError, match=r"third: pass@5 needs at least 5 graded attempts, found 3"):
        pass_at_k(outcomes, 5, ["first", "second", "third"])
    assert pass_at_k(outcomes, 3) == pytest.approx(100 * (0.6 + 0.9 + 1.0) / 3)


@given(
    st.integers(1, 7).flatmap(lambda n: st.tuples(st.lists(st.booleans(), min_size=n, max_size=n), st.integers(1, n)))
)
def test_the_estimator_is_the_share_of_subsets_with_a_success(case):
    row, k = case
    subsets = list(combinations(row, k))
    expected = sum(any(subset) for subset in subsets) / len(subsets)
    assert per_task(np.array([row]), k)[0] == pytest.approx(expected, abs=1e-12)


@given(st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=1, max_size=20))
def test_pass_at_3_of_three_attempts_is_any_of_three(rows):
    solved = sum(1 for row in rows if row[0] or row[1] or row[2])
    assert pass_at_k(np.array(rows), 3) == pytest.approx(100 * solved / len(rows))


def test_outcomes_that_are_not_a_table_of_zeros_and_ones_are_refused():
    with pytest.raises(ValueError, match="tasks x attempts"):
        pass_at_k(np.zeros(3), 1)
    with pytest.raises(ValueError, match="must be 0 or 1"):
        pass_at_k(np.array([[0.5, 1, 0]]), 1)
    with pytest.raises(ValueError, match="cannot have succeeded"):
        estimate(3, 4, 1)

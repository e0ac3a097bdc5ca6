"""OPD's weights and divisor: the reported faults D1, D5, D6b and D9."""

from __future__ import annotations

import numpy as np
import pytest

from thundersync.objectives import OPD, Objective


def test_d1_global_token_mean():
    """D1: values [2,2,2,2,2] and [10] give 20/6; the mean of sequence means would give 6."""
    values = [[2.0] * 5, [10.0]]
    total = sum(map(sum, values))
    assert total / OPD().divisor(sum(map(len, values))) == pytest.approx(20 / 6)


def test_d5_sums_of_ranks_are_divided_once():
    """D5: rank A has 5 tokens of gradient 1, rank B one of 7: 12/6 = 2, not (1 + 7)/2."""
    sums, tokens = [5 * 1.0, 1 * 7.0], [5, 1]
    assert sum(sums) / OPD().divisor(sum(tokens)) == 2.0


def test_d6_a_batch_with_nothing_scored_is_refused():
    with pytest.raises(ValueError, match="no scored token"):
        OPD().divisor(0)


def test_d9_teacher_scores_are_not_shifted():
    """D9: token t of the teacher belongs to token t of the student."""
    student = np.array([-1.5, -1.5, -1.5])
    teacher = np.array([-1.0, -2.0, -3.0])
    np.testing.assert_array_equal(OPD().token_weights(student, teacher), [0.5, -0.5, -1.5])
    np.testing.assert_array_equal(OPD().token_weights(student[:1], teacher[:1]), [0.5])


@pytest.mark.parametrize("length", [2, 4])
def test_d9_a_length_mismatch_is_refused(length):
    with pytest.raises(ValueError, match=f"{length} teacher log-probabilities for 3 scored tokens"):
        OPD().token_weights(np.zeros(3), np.zeros(length))


def test_each_source_is_complete_when_it_is_ready():
    opd = OPD()
    assert isinstance(opd, Objective)
    assert (opd.scope, opd.bases, opd.phi(None, 0.0), opd.beta([], 0.0)) == ("source", 1, (1.0,), (1.0,))
    with pytest.raises(ValueError, match="at least 1 trajectory"):
        opd.check_group_size(0, "a")

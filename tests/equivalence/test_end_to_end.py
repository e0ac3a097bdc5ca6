"""Grade 3 from records: what is compared, and that each condition can fail."""

from __future__ import annotations

from dataclasses import replace

import pytest

from thundersync.equivalence.end_to_end import EndToEnd

GOOD = EndToEnd(
    updates=20,
    hashes_equal=20,
    hashes_distinct=20,
    groups=80,
    nonuniform_groups=40,
    orders_differ=3,
    sources=320,
    sources_before_close=160,
)


def test_all_conditions_hold():
    assert GOOD.holds and all(GOOD.conditions.values())


@pytest.mark.parametrize(
    "change",
    [
        {"hashes_equal": 19},
        {"updates": 19, "hashes_equal": 19, "hashes_distinct": 19},
        {"hashes_distinct": 19},
        {"nonuniform_groups": 39},
        {"orders_differ": 0},
        {"sources_before_close": 159},
    ],
)
def test_each_condition_can_fail(change):
    assert not replace(GOOD, **change).holds

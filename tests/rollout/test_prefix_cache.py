"""The prefix cache against a plain search over all entries."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from thundersync.rollout.prefix_cache import BLOCK, PrefixCache


def states(ids: np.ndarray) -> torch.Tensor:
    """Fake states that say which ids they belong to: [1, 1, 1, P, 1]."""
    return torch.from_numpy(ids.astype(np.float32))[None, None, None, :, None]


sequences = st.lists(
    st.builds(
        lambda head, tail: np.array([0] * head + tail, np.int32),
        st.integers(0, 20),
        st.lists(st.integers(0, 2), max_size=20),
    ),
    max_size=8,
)


@settings(deadline=None)
@given(held=sequences, query=sequences.filter(bool).map(lambda s: s[0]))
def test_what_is_found_is_a_true_prefix_and_as_long_as_whole_blocks_allow(held, query):
    cache = PrefixCache(max_tokens=10_000)
    for ids in held:
        cache.insert(ids, states(ids), 0)
    length, found = cache.longest(query, 0)
    if length:
        np.testing.assert_array_equal(found[0, 0, 0, :length, 0], query[:length])
    best = max((_common(ids, query) for ids in held), default=0)
    assert best // BLOCK * BLOCK <= length <= best


def _common(a, b):
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    return n


def test_bounded_and_least_recently_used_goes_first():
    cache = PrefixCache(max_tokens=32)
    a, b, c = (np.full(16, value, np.int32) for value in (1, 2, 3))
    cache.insert(a, states(a), 0)
    cache.insert(b, states(b), 0)
    assert cache.longest(a, 0)[0] == 16  # a is now the younger one
    cache.insert(c, states(c), 0)
    assert cache.tokens == 32
    assert cache.longest(b, 0) == (0, None)
    assert cache.longest(a, 0)[0] == 16 and cache.longest(c, 0)[0] == 16
    long = np.zeros(33, np.int32)
    cache.insert(long, states(long), 0)
    assert cache.tokens == 32


def test_entries_of_another_version_are_never_used():
    cache = PrefixCache(max_tokens=100)
    ids = np.arange(20, dtype=np.int32)
    cache.insert(ids, states(ids), 3)
    assert cache.longest(ids, 4) == (0, None)
    assert cache.versions() == {3}
    cache.insert(ids, states(ids + 1), 4)
    assert cache.longest(ids, 4)[1][0, 0, 0, 0, 0] == 1
    cache.clear()
    assert cache.tokens == 0 and cache.longest(ids, 4) == (0, None)

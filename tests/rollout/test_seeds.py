"""Seeds are a function of identity, not of arrival."""

import hashlib

import numpy as np

from thundersync.rollout.seeds import sampling_seed, sampling_uniforms


def test_a_seed_is_the_stated_hash():
    expected = int(hashlib.sha256(b"42\x003\x00task\x005\x001").hexdigest()[:16], 16) // 2
    assert sampling_seed(run_seed=42, update=3, task_id="task", trajectory=5, turn=1) == expected


def test_every_part_matters():
    base = dict(run_seed=1, update=2, task_id="a", trajectory=3, turn=4)
    seeds = {sampling_seed(**base)}
    for name, value in dict(run_seed=2, update=3, task_id="b", trajectory=4, turn=5).items():
        seeds.add(sampling_seed(**(base | {name: value})))
    assert len(seeds) == 6


def test_uniforms_are_philox_and_a_longer_turn_only_adds():
    expected = np.random.Generator(np.random.Philox(key=7)).random(10)
    np.testing.assert_array_equal(sampling_uniforms(7, 10), expected)
    np.testing.assert_array_equal(sampling_uniforms(7, 4), expected[:4])

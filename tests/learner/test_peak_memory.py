"""Peak memory of an update: it sees what was held and let go in between, and each update begins anew."""

import numpy as np
import pytest
import torch
from learner_parts import make_batch, make_events, make_rank

from thundersync.learner.peak_memory import STATUS, PeakMemory
from thundersync.ports import RewardReady

pytestmark = pytest.mark.skipif(not STATUS.exists(), reason="the resident set is read from Linux' /proc")
MIB = 1 << 20


def test_the_peak_is_of_what_was_held_since_the_reset():
    memory = PeakMemory(torch.device("cpu"))
    memory.reset()
    before = memory.read()[1]
    held = np.ones(256 * MIB, np.uint8)
    del held
    counter, peak = memory.read()
    assert counter == "resident_set" and peak - before > 200 * MIB
    memory.reset()
    assert memory.read()[1] < peak - 150 * MIB


def test_a_step_reports_it():
    rank = make_rank()
    rank.open(make_batch(0))
    for event in make_events(0):
        if isinstance(event, RewardReady):
            rank.learn_trajectory(event)
    for plan in make_batch(0).groups:
        rank.close_group(plan.key)
    counter, peak = rank.step().peak_memory
    assert counter == "resident_set" and peak > 50 * MIB  # torch alone is more

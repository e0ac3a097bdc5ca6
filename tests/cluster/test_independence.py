"""The probe of the two cores, on one core that stands in for both: each can keep half of its speed at most."""

from __future__ import annotations

import os

from thundersync.cluster.independence import core_independence
from thundersync.cluster.placement import Placement


def test_two_processes_on_one_core_share_it():
    core = (min(os.sched_getaffinity(0)),)
    assert 0.2 < core_independence(Placement(rollout_cores=core, learner_cores=core), seconds=0.5) < 0.75

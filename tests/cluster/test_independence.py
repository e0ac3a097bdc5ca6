"""Which cores processes take; and the probe of two, on one core that stands in for both: each keeps half at most."""

from __future__ import annotations

import os

from thundersync.cluster.independence import core_independence
from thundersync.cluster.placement import Placement, place


def test_two_processes_on_one_core_share_it():
    core = (min(os.sched_getaffinity(0)),)
    assert 0.2 < core_independence(Placement(rollout_cores=core, learner_cores=core), seconds=0.5) < 0.75


def test_learner_ranks_have_a_core_each_while_they_last(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {4, 7, 5})
    one, two, five = place(), place(2), place(5)
    assert (one.rollout_cores, one.learner_cores) == ((4,), (5,))
    assert [two.of_rank(r) for r in range(2)] == [(5,), (7,)] and two.shortage(2) == ""
    assert [five.of_rank(r) for r in range(5)] == [(5,), (7,), (5,), (7,), (5,)]
    together = place(apart=False)
    assert (together.rollout_cores, together.learner_cores, together.devices(1)) == ((4, 5), (5,), 2)
    assert five.shortage(5) == "5 learner ranks share 2 cores" and (two.devices(1), five.devices(5)) == (2, 3)

"""The job of the peers: every way computes one gradient, and its rewards leave no group uniform."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch

from experiments.bench_peers import reduce
from experiments.peers import job, learner_throughput
from thundersync.environments import load_workload
from thundersync.learner.policy import load_policy
from thundersync.streaming import Continuation


def test_all_ways_compute_the_same_gradient(tmp_path):
    model = load_policy(job.make_policy(tmp_path))
    rng = np.random.default_rng(0)
    n = learner_throughput.CONTINUATION
    prompt = rng.integers(5, model.config.vocab_size, 20)
    ids = rng.integers(5, model.config.vocab_size, (4, n))
    group = [Continuation(ids=row, scored=np.ones(n, bool), reward=i % 2) for i, row in enumerate(ids)]
    plain = learner_throughput.plain_loop(model, prompt, group)
    for way in (learner_throughput.plain_batch, learner_throughput.streamed):
        other = way(model, prompt, group)
        for name, gradient in plain.items():
            torch.testing.assert_close(other[name], gradient, rtol=1e-4, atol=1e-6, msg=f"{way.__name__}: {name}")


def test_a_workload_of_the_users_own_is_found_by_module_and_function(tmp_path):
    workload = load_workload("experiments.peers.job:build", root=tmp_path)

    async def rewards():
        return [(await (await workload.open("job-0")).verify()).reward for _ in range(4)]

    assert asyncio.run(rewards()) == [0.0, 1.0, 0.0, 1.0]
    assert len(workload.training) >= job.PROMPTS


def test_ratios_are_taken_within_rounds():
    rows = [
        {"trainer": trainer, "round": number, "seconds": seconds, "tokens": 10}
        for number, factor in enumerate((1.0, 3.0))
        for trainer, seconds in (("trl", 4.0 * factor), ("sync", 2.0 * factor), ("thundersync", 1.0 * factor))
    ]
    report = reduce(rows)
    assert report["thundersync"]["by_round"] == [4.0, 4.0]
    assert report["sync"]["times_faster_than_trl"] == pytest.approx(2.0)
    assert report["trl"]["generated_tokens_per_s"] == pytest.approx(20 / 16)

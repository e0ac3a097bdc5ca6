"""Records to metrics (Appendix B), on records small enough to work by hand."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import timeline_records as made
from hypothesis import given
from hypothesis import strategies as st

from analysis import busy, mfu
from analysis.load import Run, load_details
from analysis.profile import PARTS, parts, pooled
from analysis.window import Window, choose, complete_cycles
from thundersync.learner.flop_ledger import Lora
from thundersync.learner.settings import QWEN_TARGETS
from thundersync.records import CheckpointRecord, Mean, RunDirectory

CONFIG = {
    "model_type": "qwen3",
    "hidden_size": 4,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 4,
    "vocab_size": 10,
}


def checkpoint(update: int, reason: str) -> CheckpointRecord:
    digest = "0" * 64
    return CheckpointRecord(
        seed=1, update=update, reason=reason, policy_hash="p", published_at=0.0, trajectories=0, generated_tokens=0,
        path="checkpoints/0", tokenizer_digest=digest, workload_digest=digest, settings_digest=digest,
    )  # fmt: skip


def a_run(schedule: str, updates: int, path=None, checkpoints=(), lag=0) -> Run:
    own = [made.update(k, k, k + 0.5, k, (k + 0.8, k + 0.9), k + 1.0, lag_max=lag) for k in range(updates)]
    return Run(path=path, record=made.run(schedule), updates=tuple(own), checkpoints=tuple(checkpoints))


def test_parts_partition_the_step_in_every_schedule():
    sync = parts(made.update(0, 1.0, 4.0, 4.0, (6.0, 6.5), 7.0))
    assert sync == {"rollout": 3.0, "learner": 2.0, "step": 0.5, "publication": 0.5}
    # Async: the step was over at 2.5, the next batch closed at 4.0, and only then was the policy published
    hidden = parts(made.update(0, 1.0, 4.0, 1.0, (2.0, 2.5), 4.25))
    assert hidden == {"rollout": 3.0, "learner": 0.0, "step": 0.0, "publication": 0.25}
    tail = parts(made.update(0, 1.0, 4.0, 1.0, (4.5, 4.75), 5.0))
    assert tail == {"rollout": 3.0, "learner": 0.5, "step": 0.25, "publication": 0.25} and tuple(tail) == PARTS


def test_the_window_is_the_papers_where_runs_are_long_enough():
    runs = {s: a_run(s, 45, lag=int(s == "async")) for s in ("sync", "async", "fully_async", "thundersync")}
    window = choose(runs)
    assert window == Window(warmup=4, size=36) and window.is_the_papers
    assert [u.update for u in window.of(runs["sync"])] == list(range(4, 40))
    assert choose(runs, warmup=1, size=3).of(runs["async"])[0].update == 1
    with pytest.raises(ValueError, match="short has 4 complete update cycles after 2 of warm-up, 9 are asked for"):
        choose(runs | {"short": a_run("sync", 6)}, warmup=2, size=9)


def test_async_counts_complete_cycles_only():
    """The first update fills the pipeline, and so does the one after a resumption at update 3."""
    resumed = a_run("fully_async", 6, checkpoints=[checkpoint(0, "start"), checkpoint(3, "interrupt")])
    assert [u.update for u in complete_cycles(resumed)] == [1, 2, 4, 5]
    assert [u.update for u in Window(warmup=0, size=3).of(resumed)] == [1, 2, 4]
    assert len(complete_cycles(a_run("thundersync", 6))) == 6
    assert len(complete_cycles(a_run("async", 1))) == 1  # a smoke run, drawn all the same
    # A crash leaves no such checkpoint, but a batch of lag 0 tells.
    crashed = a_run("async", 4, lag=1)
    updates = [u if u.update != 2 else u.model_copy(update={"lag_max": 0}) for u in crashed.updates]
    assert [
        u.update for u in complete_cycles(Run(path=None, record=crashed.record, updates=updates, checkpoints=()))
    ] == [1, 3]


def test_active_mfu_by_hand(tmp_path):
    """One layer: 160 weights a token. Prompt of 4 shared tokens: forward 1280 + 128, backward of keys and values 512.

    Each trajectory of 10 tokens: 9600 for its weights, attention 3 * 8 * 10 * (10 + 2 * 4), vocabulary 3 * 80 * 6.
    """
    directory = RunDirectory.create(tmp_path / "run", made.run("thundersync"))
    for record in (made.UPDATE, *made.TRAJECTORIES, *made.SOURCES):
        directory.append(record)
    directory.close()
    run = Run(
        path=directory.path, record=directory.run(), updates=(made.UPDATE,), checkpoints=(checkpoint(0, "start"),)
    )
    with pytest.raises(ValueError, match="config.json is missing: without the policy's configuration"):
        mfu.policy_shape(run)
    (run.path / "checkpoints" / "0").mkdir(parents=True)
    (run.path / "checkpoints" / "0" / "config.json").write_text(json.dumps(CONFIG))
    work = mfu.learner_work(run, load_details(run), run.updates, mfu.policy_shape(run))
    flops = 2 * (1280 + 128 + 512 + 2 * (9600 + 4320 + 1440))
    assert work[0].useful.total == flops and work[0].recomputed.total == 0
    assert mfu.adapters(run) is None
    config = run.record.config | {"model": {"lora": {"rank": 8, "targets": None}}}
    adapted = replace(run, record=run.record.model_copy(update={"config": config}))
    assert mfu.adapters(adapted) == Lora(rank=8, targets=frozenset(QWEN_TARGETS))
    share = mfu.active_mfu(run, work, run.updates, mfu.Peak(flops=1e6, origin="made up"))
    assert share.count == 1 and share.value == pytest.approx(flops / (6.6 * 1e6))  # from 0.4 to 7.0


def test_peaks_are_named_for_what_they_are():
    record = made.run("sync")
    measured = mfu.peak_of(record, lambda: 5.0)
    assert measured.flops == 5.0 and "measured FP32 peak" in measured.origin and "recorded none" in measured.origin
    assert mfu.peak_of(record.model_copy(update={"learner_peak_flops": 7.0}), lambda: 5.0).flops == 7.0
    assert mfu.peak_of(record.model_copy(update={"device_name": "NVIDIA H200"}), lambda: 5.0).flops == 989.5e12


def test_means_of_two_parts_are_the_mean_of_the_whole():
    """Not the mean of the means, and not the last one."""
    seconds = [1.0, 2.0, 9.0]
    updates = [made.update(0, 0.0, s / 2, s / 2, (s, s), s) for s in seconds]
    whole = pooled(updates, lambda u: u.step_seconds)
    assert pooled(updates[:1], lambda u: u.step_seconds) + pooled(updates[1:], lambda u: u.step_seconds) == whole
    assert whole == Mean(sum=12.0, count=3) and whole.value == 4.0


def test_learner_idle_and_rollout_slots_by_hand():
    """Learner busy from 3.1 to 5.7 and 6.0 to 6.8 of the update from 0.4 to 7.0; rollout holds 3, 3, 2, 1, 0 slots."""
    run = Run(path=None, record=made.run("thundersync"), updates=(made.UPDATE,), checkpoints=())
    details = type("Details", (), {"trajectories": made.TRAJECTORIES, "sources": made.SOURCES})
    assert busy.learner_idle(run, details, run.updates) == pytest.approx(1 - (2.6 + 0.8) / 6.6)
    use = busy.utilisation(run, details, np.array([0.5, 3.0, 4.5, 5.0, 6.0, 7.0]))
    assert use.rollout_T == pytest.approx([1, 1, 2 / 3, 1 / 3, 0]) and use.starts_recorded
    assert use.learner_T == pytest.approx([0, 1.4 / 1.5, 1, 0.7, 0.8])


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), max_size=8),
    st.lists(st.integers(1, 9), min_size=1, max_size=6),
)
def test_occupancy_and_union_against_counting_seconds(spans, widths):
    intervals = [(float(start), float(start + length)) for start, length in spans]
    edges = np.cumsum([0, *widths]).astype(float)
    counts = [sum(start <= second < end for start, end in intervals) for second in range(60)]
    busy_T = [np.mean(counts[int(a) : int(b)]) for a, b in zip(edges, edges[1:], strict=False)]
    any_T = [np.mean([c > 0 for c in counts[int(a) : int(b)]]) for a, b in zip(edges, edges[1:], strict=False)]
    np.testing.assert_allclose(busy.occupancy(intervals, edges), busy_T)
    np.testing.assert_allclose(busy.occupancy(busy.union(intervals), edges), any_T)

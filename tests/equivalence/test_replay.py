"""Replays of recorded batches: every release takes Sync's update; exact sums to the bit; and the check can fail."""

from __future__ import annotations

import argparse
import json
import os
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from experiments.equivalence import summary
from paper_figures import common
from paper_figures.equivalence_report import text
from thundersync.batch import GroupKey, GroupPlan, LogicalBatch, Task, Trajectory, TrajectoryKey, Turn
from thundersync.equivalence import compare
from thundersync.equivalence import replay as replay_module
from thundersync.equivalence.check import Subject, check, replayed_updates, start_replays
from thundersync.equivalence.end_to_end import EndToEnd
from thundersync.equivalence.replay import Recording, Replay, Variant, reordered, replay
from thundersync.equivalence.workers import NICENESS, Job, Workers, taken
from thundersync.learner.optimizer import AdamWSettings
from thundersync.objectives import GRPO, OPD
from thundersync.ports import ContentReady, RewardReady, TurnReady
from thundersync.records import batch_event_record, read_lines, recorded_batches
from thundersync.records.batches import BatchEventRecord
from thundersync.records.files import to_line

VOCAB, GROUPS, SIZE, UPDATES = 31, 2, 3, 3
SETTINGS = AdamWSettings(learning_rate=1e-3)
RELEASES = {"grpo": ("trajectory", "content", "turn_forward"), "opd": ("turn_eager", "content", "turn_forward")}


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = Qwen3Config(
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        vocab_size=VOCAB,
        tie_word_embeddings=True,
        initializer_range=0.15,
    )
    path = tmp_path_factory.mktemp("policy")
    AutoModelForCausalLM.from_config(config).save_pretrained(path)
    return path


def batches():
    """Logical batches whose trajectories take turns in becoming ready."""
    made = []
    for update in range(UPDATES):
        rng = np.random.default_rng(update)
        prompts = [rng.integers(0, VOCAB, 6).astype(np.int32) for _ in range(GROUPS)]
        queues = [_events(TrajectoryKey(update, g, i), prompts[g], rng) for g in range(GROUPS) for i in range(SIZE)]
        events = []
        while queues := [q for q in queues if q]:
            events.append(queues[rng.integers(len(queues))].pop(0))
        events = [replace(event, at=float(at)) for at, event in enumerate(events)]
        task = Task(task_id="t", split_group="", instruction="")
        plans = tuple(GroupPlan(key=GroupKey(update, g), task=task, size=SIZE) for g in range(GROUPS))
        made.append((LogicalBatch(update=update, groups=plans), events))
    return made


def _events(key: TrajectoryKey, prompt, rng) -> list:
    turns, events = [], []
    for t in range(int(rng.integers(1, 4))):
        action = rng.integers(0, VOCAB, int(rng.integers(1, 6))).astype(np.int32)
        context = rng.integers(0, VOCAB, 3 if t else 0).astype(np.int32)
        logprobs = -rng.random(len(action)).astype(np.float32)
        versions = np.full(len(action), key.update, np.int32)
        turns.append(Turn(context_ids_C=context, action_ids_A=action, logprobs_A=logprobs, versions_A=versions))
        scores = -rng.random(len(action)).astype(np.float32)
        events.append(
            TurnReady(key=key.turn(t), prompt_ids_P=prompt, turn=turns[-1], teacher_logprobs_A=scores, at=0.0)
        )
    whole = Trajectory(
        key=key, task_id="t", prompt_ids_P=prompt, turns=tuple(turns), reward=None, success=None, outcome="submitted"
    )
    reward = float(rng.integers(0, 4)) / 3
    graded = replace(whole, reward=reward, success=reward == 1)
    return [*events, ContentReady(trajectory=whole, at=0.0), RewardReady(trajectory=graded, at=0.0)]


def recording(policy, name: str) -> Recording:
    objective = GRPO(prompts=GROUPS) if name == "grpo" else OPD()
    return Recording(policy=policy, objective=objective, settings=SETTINGS, batches=batches())


def subject(policy, name: str) -> Subject:
    return Subject(
        recording=recording(policy, name),
        releases=RELEASES[name],
        exact_exponent=-44,
    )


@pytest.fixture(scope="module")
def checked(policy) -> dict:
    """Objective -> findings and the updates that were counted on the way."""
    found = {}
    with closing(Workers()) as workers:
        for name in RELEASES:
            counted = []
            mine = subject(policy, name)
            found[name] = check(mine, start_replays(mine, workers), on_updates=counted.append), sum(counted)
    return found


@pytest.mark.parametrize("name", RELEASES)
def test_the_whole_check_holds_for_every_release(policy, checked, name):
    findings, counted = checked[name]
    assert counted == replayed_updates(subject(policy, name))
    assert findings.broken() == []
    assert set(findings.fp32) == set(findings.fp64) == set(RELEASES[name])
    assert all(c.relative_error < 1e-12 for c in findings.fp64.values())
    assert 1e-3 < findings.bf16_sync.relative_error < 0.2  # BF16 keeps 8 bits: it is really run in BF16
    assert len(findings.bf16_gaps) == UPDATES and all(findings.exact.values())
    assert findings.exact_others == dict.fromkeys(RELEASES[name][1:], True)
    assert findings.bf16_others.keys() == findings.exact_others.keys()
    assert all(1e-3 < error < 0.2 for error in findings.bf16_others.values())
    assert 0 < findings.ranks.relative_error < 2e-6 and findings.ranks_exact  # other sums, so other bits in FP32
    assert findings.exact_memory == 2 and findings.exact_cost > 0
    assert 1e-8 < findings.fp32_rounding < 2e-6 and findings.fp32_bound == 2e-6


def test_workers_take_the_cores_of_their_beginning_at_low_priority():
    everywhere = os.sched_getaffinity(0)
    one = {max(everywhere)}
    try:
        os.sched_setaffinity(0, one)
        workers = Workers()
    finally:
        os.sched_setaffinity(0, everywhere)
    with closing(workers):
        assert workers._pool.submit(os.sched_getaffinity, 0).result() == one
        assert workers._pool.submit(os.getpriority, os.PRIO_PROCESS, 0).result() == os.nice(0) + NICENESS


def test_what_exact_sums_cost_is_a_ratio_of_turns(monkeypatch):
    """Hand-computed: exact replays took 3, 5 and 4 seconds, the FP32 ones between them 2, 4 and 2."""
    taken, seconds = [], iter([3.0, 2.0, 5.0, 4.0, 4.0, 2.0])

    def timed(recording, variant, bits_only):
        taken.append(variant.exact_exponent)
        return Replay(start_P=torch.empty(0), learner_s=next(seconds))

    monkeypatch.setattr(replay_module, "replay", timed)
    plain = Variant(schedule="thundersync", release="trajectory")
    exact = replace(plain, exact_exponent=-44)
    assert replay_module.learner_time_ratio(None, exact, plain, rounds=3) == 12 / 8
    assert taken == [-44, None] * 3


def test_a_pretrained_model_is_held_to_its_own_rounding(checked):
    assert [compare.direction_bound(rounding) for rounding in (1e-7, 2e-6, 6e-6)] == [2e-6, 2e-6, 6e-6]
    good = checked["opd"][0]
    off = replace(good, fp32={"r": replace(good.ranks, relative_error=5e-6)}, ranks=good.ranks)
    (complaint,) = off.broken()
    assert "5.00e-06, threshold 2e-06" in complaint
    assert replace(off, fp32_bound=compare.direction_bound(6e-6)).broken() == []


@pytest.mark.parametrize(
    ("field", "words"),
    [("fp32", "first direction"), ("fp64", "FP64"), ("ranks", "two ranks"), ("ranks_exact", "two ranks ended"),
     ("exact", "random order 1 ended"), ("exact_others", "release content ended")],
)  # fmt: skip
def test_each_finding_can_break(checked, field, words):
    good = checked["opd"][0]
    bad = replace(good.ranks, relative_error=1e-5)
    broken = {"fp32": {"r": bad}, "fp64": {"r": bad}, "ranks": bad, "ranks_exact": False}
    broken |= {"exact": good.exact | {"random order 1": False}, "exact_others": {"content": False}}
    (complaint,) = replace(good, **{field: broken[field]}).broken()
    assert words in complaint


def test_the_report_has_its_rows_and_names_what_broke(checked):
    """The keys that readers of report.json rely on; the table names the ranks, and a broken one is in words."""
    whole = EndToEnd(
        updates=20,
        hashes_equal=20,
        hashes_distinct=20,
        groups=80,
        nonuniform_groups=40,
        orders_differ=3,
        sources=320,
        sources_before_close=160,
    )
    arguments = argparse.Namespace(batches=UPDATES, model="embedded", overrides=[])
    findings = {name: found for name, (found, _) in checked.items()}
    report = summary(arguments, findings, whole)
    assert {"fp32", "bf16", "fp64", "exact_permutations", "end_to_end", "ranks"} <= report.keys()
    assert report["broken"] == [] and report["ranks"]["opd"]["ranks"] == 2
    assert json.loads(json.dumps(report))["end_to_end"]["holds"] is True
    report["paper"] = json.loads(common.REFERENCE.read_text(encoding="utf-8"))["equivalence"]
    assert "with exact sums the same bits after every update" in text(report)
    findings["opd"] = replace(findings["opd"], ranks_exact=False)
    broken = summary(arguments, findings, replace(whole, hashes_equal=19))
    assert broken["broken"] == [
        "opd, exact sums: two ranks ended in other bits than Sync",
        "end to end: 19 of 20 hashes equal; conditions that do not hold: none",
    ]


def test_a_gradient_that_is_off_is_noticed(policy, monkeypatch):
    """Dropping what the continuations owe to the prompt must break the check."""
    from thundersync.streaming.open_group import OpenGroup

    one = recording(policy, "grpo")
    reference = replay(one, Variant(schedule="sync", release="trajectory"))
    monkeypatch.setattr(OpenGroup, "_backward_through_prompt", lambda self, *beta: None)
    ours = replay(one, Variant(schedule="thundersync", release="trajectory"))
    assert any("first direction" in words for words in compare.broken_fp32(compare.compare(ours, reference)))


def test_fp32_sums_end_in_other_bits_in_another_order(policy):
    """So the exact comparison can fail."""
    one = recording(policy, "grpo")
    variant = Variant(schedule="thundersync", release="trajectory")
    shuffled = replace(one, batches=reordered(one.batches, torch.Generator().manual_seed(1)))
    hashes = [replay(r, variant).hashes for r in (one, shuffled)]
    assert hashes[0] != hashes[1]


def test_with_scarce_memory_every_job_has_a_process_of_its_own_and_the_same_bits(policy):
    """More jobs than workers, two ranks among them."""
    one = replace(recording(policy, "grpo"), batches=batches()[:1])
    job = Job(recording=one, variant=Variant(schedule="thundersync", release="trajectory", exact_exponent=-44))
    expected = replay(one, job.variant).hashes
    with closing(Workers(scarce_memory=True)) as workers:
        futures = [workers.submit(job), *workers.submit_ranks(job), workers.submit(job)]
        assert [taken(future).hashes for future in futures] == [expected] * 4


def test_a_recording_survives_the_file(policy, tmp_path):
    path = tmp_path / BatchEventRecord.FILE
    original = batches()
    path.write_text("".join(to_line(batch_event_record(e)) + "\n" for _, events in original for e in events))
    restored = recorded_batches(read_lines(path, BatchEventRecord))
    one = recording(policy, "opd")
    variant = Variant(schedule="thundersync", release="turn_eager")
    hashes = [replay(replace(one, batches=b), variant).hashes for b in (original, restored)]
    assert hashes[0] == hashes[1] and len(set(hashes[0])) == UPDATES


def test_a_reordering_keeps_each_trajectory_in_sequence():
    original = batches()
    for (_, before), (_, after) in zip(original, reordered(original, torch.Generator().manual_seed(3)), strict=True):
        assert before != after
        for key in {event.key[:3] for event in before}:
            assert [e.at for e in after if e.key[:3] == key] == [e.at for e in before if e.key[:3] == key]


def test_distances_by_hand():
    start, ours, reference = (torch.tensor(v, dtype=torch.float64) for v in ([0.0, 0.0], [3.0, 4.5], [3.0, 4.0]))
    assert compare.parameter_gap(ours, reference, start) == pytest.approx(0.1)  # 0.5 / 5
    assert compare.relative_error(ours, reference) == pytest.approx(0.1)
    cosine = (9 + 18) / (5 * (9 + 20.25) ** 0.5)
    assert compare.one_minus_cosine(ours, reference) == pytest.approx(1 - cosine)


def test_shipped_thresholds_are_those_of_the_design():
    assert (compare.DIRECTION_FP64, compare.DIRECTION_FP32) == (1e-12, 2e-6)
    assert (compare.GAP_FP32, compare.GAP_FP32_TENTH) == (5e-4, 1e-4)
    good = compare.Comparison(relative_error=1e-6, one_minus_cosine=0.0, gaps=(4e-4,) * 9 + (9e-5,))
    assert compare.broken_fp32(good) == []
    assert compare.broken_fp32(replace(good, relative_error=3e-6)) and compare.broken_fp32(
        replace(good, gaps=(4e-4,) * 10)
    )
    assert compare.broken_fp32(replace(good, relative_error=float("nan")))
    assert compare.broken_fp64(replace(good, relative_error=2e-12))

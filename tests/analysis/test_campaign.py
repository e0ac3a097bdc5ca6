"""Campaigns: what is incomplete, unlike or dated wrongly is refused by name."""

import json
import shutil
from datetime import timedelta

import numpy as np
import pytest
import synthetic

from analysis.campaign import IncompleteCampaign, load_cell, scored_checkpoints
from analysis.compare import Resampling, compare, matches
from analysis.load import Attempts, load_run, sources_frame, updates_frame
from thundersync.records import CheckpointRecord, Incomplete, RecordError, RunDirectory


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    root = tmp_path_factory.mktemp("campaign")
    synthetic.write_pilot(root, "grpo", "micro_swe")
    for schedule in synthetic.STEP:
        for seed in (42, 43):
            synthetic.write_run(root, "grpo", "micro_swe", schedule, seed)
    return root


@pytest.fixture
def root(pristine, tmp_path):
    return shutil.copytree(pristine, tmp_path / "runs")


def load(root, seeds=(42, 43), partial=False):
    return load_cell(root, "grpo", "micro_swe", seeds=seeds, partial=partial)


def any_of(outcomes_TA):
    return outcomes_TA.any(axis=1)


def plain(cell):
    tasks, seeds = len(synthetic.TASKS), len(cell.seeds)
    return Resampling(tasks_BM=np.full((1, tasks), 1 / tasks), runs_BR=np.full((1, seeds), 1 / seeds))


def drop_lines(path, keep):
    path.write_text("".join(line for line in path.read_text().splitlines(keepends=True) if keep(json.loads(line))))


def test_a_missing_run_is_named_and_partial_seeds_go_on_without_it(root):
    with pytest.raises(IncompleteCampaign, match="grpo-micro_swe-sync-seed44 has not started"):
        load(root, seeds=(42, 43, 44))
    cell = load(root, seeds=(42, 43, 44), partial=True)
    assert cell.seeds == (42, 43)
    assert len(cell.pending) == 4 and "grpo-micro_swe-thundersync-seed44 has not started" in cell.pending
    with pytest.raises(IncompleteCampaign, match="seed44"):
        load(root, seeds=(44,), partial=True)


def test_an_unfinished_run_is_pending(root):
    (root / "grpo-micro_swe-async-seed43" / "end.json").unlink()
    assert load(root, partial=True).pending == ("grpo-micro_swe-async-seed43 has not finished",)


def test_a_checkpoint_without_evaluation_is_named(root):
    run = root / "grpo-micro_swe-async-seed43"
    victim = RunDirectory(run).read(CheckpointRecord)[2]
    drop_lines(run / "attempts.jsonl", lambda line: line["policy_hash"] != victim.policy_hash)
    with pytest.raises(
        IncompleteCampaign, match=r"async-seed43, checkpoint after update 10 is incomplete: coverage 0/72"
    ):
        load(root)


def test_a_checkpoint_that_is_not_needed_needs_no_evaluation(root):
    """One past the budget, and one that only an interruption left behind."""
    path = root / "grpo-micro_swe-async-seed43"
    run = load_run(path)
    last = run.checkpoints[-1]
    assert last.published_at > run.record.budget_seconds
    drop_lines(path / "attempts.jsonl", lambda line: line["policy_hash"] != last.policy_hash)
    extra = last.model_copy(update={"update": 7, "published_at": 7.7, "policy_hash": "left", "reason": "interrupt"})
    with RunDirectory(path) as directory:
        directory.append(extra)
    before = [
        c.updates for c in scored_checkpoints(run, Attempts([path, root / "grpo-micro_swe-pilot-seed41"]), any_of)
    ]
    assert load(root).seeds == (42, 43) and 7 not in before and last.update not in before
    cadence = extra.model_copy(update={"reason": "cadence"})
    with RunDirectory(path) as directory:
        directory.append(cadence)
    with pytest.raises(IncompleteCampaign, match="checkpoint after update 7 is incomplete: coverage 0/72"):
        load(root)


def test_the_shared_warm_start_needs_one_evaluation_only(root):
    for path in root.glob("grpo-micro_swe-*/attempts.jsonl"):
        if "pilot" not in path.parent.name:
            drop_lines(path, lambda line: line["policy_hash"] != synthetic.hash_of("warm start"))
    cell = load(root)
    assert scored_checkpoints(cell.runs["sync"][1], cell.attempts, any_of)[0].updates == 0


def test_an_interrupted_evaluation_gives_way_to_a_complete_one(root):
    names = [root / f"grpo-micro_swe-sync-seed{seed}" for seed in (42, 43)]
    shared = synthetic.hash_of("warm start")
    drop_lines(names[0] / "attempts.jsonl", lambda line: line["policy_hash"] != shared or line["attempt"] == 0)
    assert len(Attempts(names).of(names[0].name, shared)) == 72


def test_a_run_prefers_its_own_evaluation(root):
    names = [root / f"grpo-micro_swe-sync-seed{seed}" for seed in (42, 43)]
    shared = synthetic.hash_of("warm start")
    lines = [json.loads(line) for line in (names[0] / "attempts.jsonl").read_text().splitlines()]
    flipped = [line | {"success": not line["success"]} if line["policy_hash"] == shared else line for line in lines]
    (names[0] / "attempts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in flipped))
    attempts = Attempts(names)
    own, other = (attempts.of(path.name, shared) for path in names)
    assert [r.success for r in own] == [not r.success for r in other]
    assert attempts.of("elsewhere", shared) == own  # the first run by name
    assert attempts.of("elsewhere", "unknown") == []


def test_runs_that_cannot_be_compared_are_refused(root, tmp_path_factory):
    other = tmp_path_factory.mktemp("unlike")
    synthetic.write_pilot(other, "grpo", "micro_swe")
    for schedule in synthetic.STEP:
        synthetic.write_run(other, "grpo", "micro_swe", schedule, 42, devices=4 if schedule == "async" else 2)
    with pytest.raises(IncompleteCampaign, match="async-seed42 and grpo-micro_swe-sync-seed42 differ in devices"):
        load(other, seeds=(42,))


def test_a_target_younger_than_a_compared_run_is_refused(tmp_path):
    synthetic.write_pilot(tmp_path, "grpo", "micro_swe", at=synthetic.EPOCH + timedelta(hours=1))
    for schedule in synthetic.STEP:
        synthetic.write_run(tmp_path, "grpo", "micro_swe", schedule, 42)
    with pytest.raises(RecordError, match="was written after grpo-micro_swe-.*-seed42 started"):
        load(tmp_path, seeds=(42,))
    (tmp_path / "targets" / "grpo-micro_swe.json").unlink()
    with pytest.raises(RecordError, match=r"grpo-micro_swe\.json is missing"):
        load(tmp_path, seeds=(42,))


def test_a_target_that_its_attempts_do_not_give_is_refused(root):
    path = root / "targets" / "grpo-micro_swe.json"
    raw = json.loads(path.read_text())
    path.write_text(json.dumps(raw | {"pilot_pass3": raw["pilot_pass3"] + 2, "target": raw["target"] + 1}))
    cell = load(root)
    with pytest.raises(RecordError, match="was not made from these records"):
        compare(cell, score=any_of, resampling=plain(cell), warmup=4)
    path.write_text(json.dumps(raw | {"target": raw["target"] + 1}))
    with pytest.raises(RecordError, match="target is not the midpoint"):
        load(root)


def test_a_damaged_record_stops_even_a_partial_campaign(root):
    with (root / "grpo-micro_swe-async-seed43" / "updates.jsonl").open("a") as file:
        file.write('{"schema": "upd')
    with pytest.raises(RecordError, match=r"updates\.jsonl, line 56: torn record"):
        load(root, partial=True)


def test_comparison_against_numbers_counted_from_the_files(root):
    cell = load(root)
    result = compare(cell, score=any_of, resampling=plain(cell), warmup=4)
    own = result.schedules["sync"]
    assert own.step_seconds.mean == pytest.approx((2.0 + 2.02) / 2)
    assert result.schedules["thundersync"].speedup.mean == pytest.approx(2.0 / 1.05)
    assert result.bound.mean == pytest.approx(1 / 0.55)
    assert result.window == min(len(run.updates) for runs in cell.runs.values() for run in runs) - 4
    # pass@3 of the latest checkpoint at 60 s, counted from the lines: Sync publishes every 10 s (10.1 s for seed 43)
    counted = []
    for run, last in zip(cell.runs["sync"], (30, 25), strict=True):
        assert [c.published_at <= 60 for c in run.checkpoints if c.update in (last, last + 5)][0]
        counted.append(synthetic.pass3(run.path, synthetic.hash_of(run.name, last)))
    assert own.pass3_at_budget.value == pytest.approx(sum(counted) / 2)
    assert own.pass3_at_budget.replicates_B[0] == pytest.approx(own.pass3_at_budget.value)
    assert own.seconds_to_target.replicates_B[0] == own.seconds_to_target.value
    assert result.schedules["thundersync"].delta_at_budget.value == 0


def test_an_unreached_target_has_no_time_and_no_ratio(tmp_path):
    synthetic.write_pilot(tmp_path, "grpo", "micro_swe", gain=0.9)
    for schedule in synthetic.STEP:
        synthetic.write_run(tmp_path, "grpo", "micro_swe", schedule, 42, gain=0.0)
    cell = load(tmp_path, seeds=(42,))
    result = compare(cell, score=any_of, resampling=plain(cell), warmup=4)
    sync = result.schedules["sync"].seconds_to_target
    assert sync.value is None and np.isinf(sync.replicates_B).all()
    assert result.time_ratio.value is None and len(result.time_ratio.replicates_B) == 0


def test_arrows_start_at_new_bests_of_sync_only(root):
    cell = load(root)
    result = compare(cell, score=any_of, resampling=plain(cell), warmup=4)
    curves = result.schedules["sync"].curve, result.schedules["thundersync"].curve
    found = matches(*curves, budget=60.0)
    assert found and [m.percent for m in found] == sorted({m.percent for m in found})
    for match in found:
        earlier = curves[1].percent_T[curves[1].seconds_T < match.thundersync_seconds]
        assert earlier.max() < match.percent - 1e-6
        assert match.ratio == match.sync_seconds / match.thundersync_seconds


def test_frames_have_a_row_per_record(root):
    run = load_run(root / "grpo-micro_swe-sync-seed42")
    frame = updates_frame(run)
    assert len(frame) == 31 and frame["tokens.generated"].iloc[0] == 32 * 40
    assert frame["step_seconds"].iloc[3] == pytest.approx(2.0)
    assert frame["mean_reward"].between(0, 1.5).all()
    with pytest.raises(RecordError, match=r"sources\.jsonl is missing"):
        sources_frame(run)


def test_incomplete_says_what_is_missing():
    error = Incomplete("x", 1, 9, [f"t{i} attempt 0" for i in range(8)])
    assert str(error).startswith("evaluation of x is incomplete: coverage 1/9, missing t0 attempt 0, t1 attempt 0")
    assert "and 5 more" in str(error)

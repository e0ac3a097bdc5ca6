"""Figures 3 and 4 and Tables 1, 2 and 7 on a made-up campaign: what they write, and that sources stay apart."""

from __future__ import annotations

import csv
import json

import pytest
import synthetic

from paper_figures import (
    common,
    efficiency,
    efficiency_tables,
    fig03_pipeline_bubbles,
    fig04_step_time_mfu,
    table01_models,
    table02_platforms,
    table07_lora,
)
from thundersync.records import RunDirectory, SourceRecord, TrajectoryRecord, UpdateRecord

POLICY = {
    "model_type": "qwen3", "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 4, "vocab_size": 20,
}  # fmt: skip
CONFIG = {
    "objective": {"release": "trajectory"},
    "generation": {"concurrent_episodes_per_replica": 8},
    "scale": {"replicas": 1},
}


@pytest.fixture(scope="module")
def campaign(tmp_path_factory):
    root = tmp_path_factory.mktemp("campaign")
    for objective in ("grpo", "opd"):
        synthetic.write_pilot(root, objective, "micro_swe")
        for schedule in synthetic.STEP:
            for seed in (42, 43):
                path = synthetic.write_run(
                    root, objective, "micro_swe", schedule, seed, updates=12, config=CONFIG, learner_peak_flops=1e6
                )
                add_details(path, schedule)
    return root


def add_details(path, schedule):
    """Eight trajectories of 20 tokens an update, learnt at once or as they come."""
    (path / "checkpoints" / "0").mkdir(parents=True)
    (path / "checkpoints" / "0" / "config.json").write_text(json.dumps(POLICY))
    directory = RunDirectory(path)
    for u in directory.read(UpdateRecord):
        for group in u.groups:
            for i in range(2):
                key = f"{group}/trajectory={i}"
                directory.append(trajectory(key, u))
                if schedule == "thundersync":
                    directory.append(source(key, "source", u))
            directory.append(source(group, "group" if schedule == "thundersync" else "direct", u, tokens=5))
    directory.close()


def trajectory(key, u) -> TrajectoryRecord:
    tokens = synthetic.tokens(1).model_copy(update={"prompt": 6, "context": 10, "generated": 10, "scored": 10})
    return TrajectoryRecord(
        key=key, task_id="t", reward=1.0, success=True, outcome="submitted", turns=1, tokens=tokens,
        oldest_version=u.update, newest_version=u.update, content_at=u.rollout_closed_at, reward_at=u.rollout_closed_at,
    )  # fmt: skip


def source(key, kind, u, tokens=20) -> SourceRecord:
    return SourceRecord(
        key=key, kind=kind, update=u.update, ready_at=u.learner_started_at, started_at=u.learner_started_at,
        ended_at=u.step_started_at, tokens=tokens, rank=0, deferred="",
    )  # fmt: skip


def draw(script, campaign, results, *extra, files=common.FIGURE_FILES, objectives=("grpo", "opd")):
    options = ["--runs", str(campaign), "--results", str(results), "--seeds", "42,43", *extra]
    assert common.main(script.draw, efficiency.arguments("x", objectives=objectives), options, files=files) == 0
    assert {path.name for path in results.iterdir()} == set(files.split(", "))
    return json.loads((results / "report.json").read_text())


def test_figure_4_keeps_measured_predicted_and_the_papers_numbers_apart(campaign, tmp_path):
    report = draw(fig04_step_time_mfu, campaign, tmp_path / "fig4")
    rows = {(row["objective"], row["schedule"]): row for row in report["measured"]}
    sync, ours = rows["grpo", "sync"], rows["grpo", "thundersync"]
    assert sync["step_seconds"]["mean"] == pytest.approx(2.01) and ours["speedup"]["mean"] == pytest.approx(2.0 / 1.05)
    assert sync["parts_seconds"]["learner"]["mean"] == pytest.approx(0.45 * 2.01)  # made with R, L, P = 0.5, 0.45, 0.05
    assert report["predicted"][0]["step_seconds"] == pytest.approx(0.55 * 2.01)
    assert report["predicted"][0]["speedup"] == pytest.approx(1 / 0.55)
    assert report["paper"]["grpo"]["sync"] == 1313.6 and "embedded" in report["numbers"]["measured"]
    # MFU is FLOPs over time: at equal work it rises as the step shrinks
    assert ours["mfu_percent"]["mean"] * 1.05 / ours["learner_gflop_per_update"] == pytest.approx(
        sync["mfu_percent"]["mean"] * 2.0 / sync["learner_gflop_per_update"]
    )
    with (tmp_path / "fig4" / "data.csv").open() as file:
        assert {row["source"] for row in csv.DictReader(file)} == {"measured", "predicted", "paper"}


def test_figure_3_shows_idle_shares_and_says_what_was_derived(campaign, tmp_path):
    report = draw(fig03_pipeline_bubbles, campaign, tmp_path / "fig3", objectives=("grpo",))
    idle = {row["schedule"]: row["learner_idle_percent"]["mean"] for row in report["measured"]}
    assert idle["sync"] == pytest.approx(100 - 45 - 2)  # 45 % gradients, 2 % step
    assert idle["thundersync"] == pytest.approx(100 - 85 - 2)
    assert (
        report["paper"]["sync_learner_idle_percent"] == 49.5 and report["paper"]["optimizer_steps"]["thundersync"] == 15
    )


@pytest.mark.parametrize(
    ("script", "rows"), [(table01_models, (4, 1, 8)), (table02_platforms, (4, 1, 8)), (table07_lora, (0, 2, 8))]
)
def test_tables_name_the_source_of_every_row(campaign, tmp_path, script, rows):
    report = draw(script, campaign, tmp_path / "table", files=efficiency_tables.FILES)
    with (tmp_path / "table" / "data.csv").open() as file:
        data = list(csv.DictReader(file))
    assert tuple(sum(row["source"] == s for row in data) for s in ("measured", "predicted", "paper")) == rows
    table = (tmp_path / "table" / "table.md").read_text()
    assert all(f"| {source} |" in table for source in {row["source"] for row in data})
    assert "8 complete update cycles after 3 of warm-up" in table or "9 complete update cycles after 3" in table
    for row in report["measured"]:
        assert row["peak_memory"] == "not recorded"  # nothing is made up where the runs kept nothing
    if script is table07_lora:
        share = report["predicted"][0]["learner_flops_over_full_fine_tuning"]
        # Adapters of rank 32 on a policy of width 8 multiply more than they spare.
        assert share > 1 and "Not measured" in table


def test_a_run_too_short_for_the_window_is_refused_by_name(campaign, tmp_path, capsys):
    options = ["--runs", str(campaign), "--results", str(tmp_path / "x"), "--seeds", "42", "--window", "36"]
    assert common.main(fig04_step_time_mfu.draw, efficiency.arguments("x"), options) == 1
    assert "complete update cycles after 3 of warm-up, 36 are asked for" in capsys.readouterr().err

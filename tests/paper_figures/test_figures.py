"""Figure scripts on a made-up campaign: what they write, and what they refuse."""

import csv
import json
import shutil
import subprocess

import pytest
import synthetic

from analysis.campaign import SCHEDULES
from paper_figures import common, curves, fig01_cost_swe, fig05_matched_performance, fig06_cost_terminal
from paper_figures.publish import publish
from paper_figures.style import LOOKS, time_unit

FILES = {"figure.png", "figure.pdf", "data.csv", "report.md", "report.json"}


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    root = tmp_path_factory.mktemp("campaign")
    return synthetic.write_campaign(root, seeds=(42, 43))


def figure5(runs, results, *extra):
    options = ["--runs", str(runs), "--results", str(results), *extra]
    return common.main(fig05_matched_performance.draw, fig05_matched_performance.parser(), options)


@pytest.fixture(scope="module")
def drawn(pristine, tmp_path_factory):
    results = tmp_path_factory.mktemp("results") / "fig5"
    assert figure5(pristine, results, "--partial-seeds") == 0
    return results


def report_of(folder):
    return json.loads((folder / "report.json").read_text())


def test_figure_5_writes_everything_a_reader_needs(drawn):
    assert {path.name for path in drawn.iterdir()} == FILES
    assert (drawn / "figure.png").read_bytes().startswith(b"\x89PNG") and (drawn / "figure.png").stat().st_size > 50_000
    report = report_of(drawn)
    assert [(r["objective"], r["workload"], r["schedule"]) for r in report["schedules"]] == [
        (o, w, s) for o in ("grpo", "opd") for w in ("micro_swe", "micro_terminal") for s in SCHEDULES
    ]
    sync, _, fully, thunder = report["schedules"][:4]
    assert sync["seeds"] == [42, 43] and sync["updates"] == [31, 30]
    assert sync["step_seconds"]["mean"] == pytest.approx(2.01)
    assert thunder["speedup_over_sync"] == pytest.approx({"mean": 2.0 / 1.05, "sd_over_seeds": 0.0})
    assert thunder["speedup_bound"]["mean"] == pytest.approx(1 / 0.55)
    assert (thunder["policy_lag"], fully["policy_lag"]) == ({"min": 0, "max": 0}, {"min": 0, "max": 2})
    assert thunder["delta_pass3_vs_thundersync"]["value"] == 0
    low, high = sync["pass3_at_budget"]["interval_95"]
    assert low < sync["pass3_at_budget"]["value"] < high


def test_figure_5_names_pending_seeds_and_the_papers_values_as_the_papers(drawn):
    report, text = report_of(drawn), (drawn / "report.md").read_text()
    pending = report["cells"][0]["pending"]
    assert len(pending) == 4 and all("seed44 has not started" in sentence for sentence in pending)
    assert pending[0] in text
    assert "2 training seeds" in report["intervals"] and "the paper's, at another scale" in report["numbers"]["paper"]
    assert "233.5 / 121.3 to 74.01 %" in text and "27B policy on 8 x B200" in text
    assert report["cells"][0]["price_usd_per_device_hour"] is None
    with (drawn / "data.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 16 and {row["source"] for row in rows} == {"measured"}
    for row, expected in zip(rows, report["schedules"], strict=True):
        assert float(row["pass3_at_budget"]) == pytest.approx(expected["pass3_at_budget"]["value"])


def test_a_campaign_that_lacks_a_run_is_refused_by_name(pristine, tmp_path, capsys):
    assert figure5(pristine, tmp_path / "out") == 1
    complaint = capsys.readouterr().err
    assert "grpo-micro_swe-sync-seed44 has not started" in complaint and complaint.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_one_seed_is_enough_and_says_so(pristine, tmp_path):
    assert figure5(pristine, tmp_path, "--seeds", "42", "--objectives", "opd", "--workloads", "micro_swe") == 0
    report = report_of(tmp_path)
    assert "One seed" in report["intervals"] and len(report["schedules"]) == 4
    assert report["schedules"][0]["step_seconds"] == {"mean": pytest.approx(2.0), "sd_over_seeds": None}


def test_an_unreached_target_is_reported_and_drawn_as_such(tmp_path):
    runs = tmp_path / "runs"
    synthetic.write_pilot(runs, "grpo", "micro_swe", gain=0.9)
    for schedule in SCHEDULES:
        gain = 0.9 if schedule == "thundersync" else 0.0
        synthetic.write_run(runs, "grpo", "micro_swe", schedule, 42, gain=gain)
    narrow = ["--seeds", "42", "--objectives", "grpo", "--workloads", "micro_swe"]
    assert figure5(runs, tmp_path / "out", *narrow) == 0
    report = report_of(tmp_path / "out")
    rows = {row["schedule"]: row for row in report["schedules"]}
    assert rows["sync"]["seconds_to_target"]["value"] == rows["sync"]["device_hours_to_target"] == "unreached"
    reached = rows["thundersync"]["seconds_to_target"]["value"]
    assert reached < 60 and report["cells"][0]["time_ratio_sync_over_thundersync"]["value"] == "no ratio"
    args = fig05_matched_performance.parser().parse_args(["--runs", str(runs), "--results", "x", *narrow])
    comparison = common.load(args, ["micro_swe"])[0]
    assert fig05_matched_performance.ratio_words(comparison) == f"more than {60 / reached:.2f}× faster"
    fig = fig05_matched_performance.draw_figure({"grpo": [comparison]}, json.loads(common.REFERENCE.read_text()))
    bars = [p for p in fig.axes[0].patches if p.get_width() > 0]
    open_bar = next(p for p in bars if p.get_facecolor()[3] == 0)
    assert open_bar.get_hatch() == "////" and open_bar.get_width() == 60.0
    assert "unreached" in [t.get_text() for t in fig.axes[0].texts]


def test_a_smoke_campaign_is_drawn_too(tmp_path):
    """Three updates, a pilot that learnt nothing: the step window shrinks and says so, the target is called empty."""
    runs = tmp_path / "runs"
    target = synthetic.write_pilot(runs, "grpo", "micro_swe", gain=-1.2, updates=3)
    assert target.pilot_pass3 <= target.warm_start_pass3
    for schedule in SCHEDULES:
        synthetic.write_run(runs, "grpo", "micro_swe", schedule, 42, updates=3)
    narrow = ["--seeds", "42", "--objectives", "grpo", "--workloads", "micro_swe"]
    assert figure5(runs, tmp_path / "out", *narrow) == 0
    cell = report_of(tmp_path / "out")["cells"][0]
    assert cell["step_window"] == {"warmup_updates": 0, "updates": 2}  # Async's first one fills its pipeline
    assert cell["time_ratio_sync_over_thundersync"]["value"] == "no ratio"
    text = (tmp_path / "out" / "report.md").read_text()
    assert "met without training and tells nothing" in text and "over 2 updates after 0 of warm-up" in text


def test_figures_1_and_6_draw_their_own_workload_and_cost_only_with_a_price(pristine, tmp_path):
    for number, script in ((1, fig01_cost_swe), (6, fig06_cost_terminal)):
        out = tmp_path / str(number)
        options = ["--runs", str(pristine), "--results", str(out), "--partial-seeds", "--objectives", "grpo"]
        assert common.main(script.draw, common.arguments(script.TITLE), options) == 0
        assert {path.name for path in out.iterdir()} == FILES
        report = report_of(out)
        assert report["figure"] == str(number)
        assert {row["workload"] for row in report["schedules"]} == {("micro_swe", "micro_terminal")[number == 6]}
        assert "No cost axis" in (out / "report.md").read_text()
        for arrow in report["arrows"]:
            assert arrow["ratio"] == pytest.approx(arrow["sync_seconds"] / arrow["thundersync_seconds"])
        with (out / "data.csv").open() as file:
            rows = list(csv.DictReader(file))
        warm = [row for row in rows if row["curve"] == "pass3" and float(row["seconds"]) == 0]
        assert len(warm) == 4 and len({row["value"] for row in warm}) == 1  # all start from the same policy
        assert {row["cost_usd"] for row in rows} == {""}


def test_a_configured_price_gives_a_cost_axis(tmp_path):
    runs = tmp_path / "runs"
    synthetic.write_pilot(runs, "grpo", "micro_swe")
    for schedule in SCHEDULES:
        synthetic.write_run(runs, "grpo", "micro_swe", schedule, 42, price_usd_per_device_hour=6.69)
    args = common.arguments("").parse_args(
        ["--runs", str(runs), "--results", "x", "--seeds", "42", "--objectives", "grpo"]
    )
    comparisons = common.load(args, ["micro_swe"])
    fig = curves.draw_figure(comparisons)
    top = fig.axes[0].child_axes[0]
    assert top.get_xlabel() == "Training cost (USD, 2 devices at 6.69 per hour)"
    fig.canvas.draw()
    assert top.get_xlim()[1] == pytest.approx(60 * 2 / 3600 * 6.69)
    last = curves.data_rows(comparisons).query("curve == 'pass3' and schedule == 'sync'").iloc[-1]
    assert last.cost_usd == pytest.approx(last.seconds * 2 / 3600 * 6.69)


def test_a_damaged_record_is_one_sentence_and_no_figure(pristine, tmp_path, capsys):
    runs = shutil.copytree(pristine, tmp_path / "runs")
    with (runs / "opd-micro_terminal-sync-seed42" / "updates.jsonl").open("a") as file:
        file.write("{}\n")
    assert figure5(runs, tmp_path / "out", "--seeds", "42") == 1
    complaint = capsys.readouterr().err
    assert "updates.jsonl, line 32: schema None version None found, 'update' version 1 expected" in complaint
    assert not (tmp_path / "out").exists()


def test_a_published_picture_carries_the_digest_of_its_report(drawn, tmp_path):
    picture = publish(drawn, tmp_path)
    assert picture.read_bytes() == (drawn / "figure.png").read_bytes()
    digest, name = (tmp_path / "fig5.sha256").read_text().split()
    done = subprocess.run(["sha256sum", drawn / "report.json"], capture_output=True, text=True, check=True)
    assert digest == done.stdout.split()[0] and name == "results/fig5/report.json"
    with pytest.raises(FileNotFoundError, match=r"report\.json"):
        publish(tmp_path / "nothing", tmp_path)


def test_the_papers_numbers_agree_with_each_other():
    """Ratio labels of Figure 5 are its hours divided; a mistyped digit would show."""
    reference = json.loads(common.REFERENCE.read_text())
    for objective in ("grpo", "opd"):
        for workload in ("swe_bench_verified", "terminal_bench_4"):
            times = reference["matched_performance"][objective][workload]
            assert round(times["sync"] / times["thundersync"], 1) == times["ratio"]
        step = reference["step_time_s"][objective]
        assert round(step["sync"] / step["thundersync"], 2) == step["speedup"]


def test_schedules_are_told_apart_without_colour():
    for field in ("marker", "line", "hatch", "colour"):
        assert len({getattr(look, field) for look in LOOKS.values()}) == 4


def test_time_unit_reads_well():
    assert time_unit(60, 2).of(60) == 60
    hours = time_unit(16 * 3600, 8)
    assert (hours.label, hours.of(16 * 3600)) == ("Device-hours", pytest.approx(128))

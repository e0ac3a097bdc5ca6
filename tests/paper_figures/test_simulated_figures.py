"""Figure 2 and the report of `make simulate`, on simulations small enough for a test."""

from __future__ import annotations

import json
import math

import pytest

from analysis import simulated
from paper_figures import common, fig02_schedules, simulation_report
from thundersync.simulation.histories import run_history


@pytest.fixture(scope="module")
def reference():
    return json.loads(common.REFERENCE.read_text(encoding="utf-8"))


def test_figure_2_is_written_and_its_panels_keep_what_they_say(tmp_path):
    assert common.main(fig02_schedules.draw, fig02_schedules.parser(), ["--results", str(tmp_path)]) == 0
    assert {f.name for f in tmp_path.iterdir()} >= {"figure.png", "figure.pdf", "data.csv", "report.json"}
    panels = json.loads((tmp_path / "report.json").read_text())["panels"]
    steps = {(p["objective"], p["schedule"]): p["optimizer_steps"] for p in panels}
    lags = {(p["schedule"]): (p["lag_min"], p["lag_max"]) for p in panels}
    assert lags["sync"] == lags["thundersync"] == (0, 0) and lags["async"] == (0, 1) and lags["fully_async"][1] <= 2
    for objective in ("grpo", "opd"):
        assert steps[objective, "sync"] == 3
        assert steps[objective, "fully_async"] >= steps[objective, "thundersync"] >= 3


@pytest.mark.parametrize("objective", ["grpo", "opd"])
def test_bars_of_figure_2_respect_the_barrier_only_where_there_is_one(objective):
    def batch_0(schedule):
        found = [
            b for b in fig02_schedules.bars(fig02_schedules.run(objective, schedule, 3), objective) if b.batch == 0
        ]
        rollout = max(b.end for b in found if b.kind == "rollout")
        return rollout, min(b.start for b in found if b.kind == "learner")

    closed, learner = batch_0("sync")
    assert learner >= closed - 1e-9
    closed, learner = batch_0("thundersync")
    assert learner < closed


def test_the_reference_cases_are_the_papers_rows(reference):
    cases = list(simulated.cases(reference))
    assert len(cases) == 10 and sum(case.implied for case in cases) == 8
    given = next(case for case in cases if case.objective == "grpo" and not case.implied)
    assert given.stages.rollout + given.stages.learner + given.stages.suffix == pytest.approx(1313.6)


def test_implied_stages_give_back_the_speedup_they_came_from(reference):
    """Equation 16 with the tail of the row whose times are known: 687.7 - 650 - 17.2 = 20.5 s for GRPO."""
    for case in simulated.cases(reference):
        if case.implied and case.objective == "grpo":
            stages = case.stages
            longer = max(stages.rollout, stages.learner)
            whole = stages.rollout + stages.learner + stages.suffix
            assert whole / (longer + 20.5 + stages.suffix) == pytest.approx(case.paper["thundersync"], rel=1e-9)
            assert (longer == stages.learner) == (case.row == "qwen_h200")


def test_growth_exponent_of_a_power_law():
    rows = [{"n": n, "cpu_s": 3e-6 * n**1.25} for n in (100, 1000, 10_000)]
    assert simulated.growth_exponent(rows) == pytest.approx(1.25)


def test_the_report_separates_simulated_from_paper(reference):
    small = reference["allocation"] | {"grpo": {"prompts": 4, "group_size": 2, "replicas": 1}, "slots_per_replica": 4}
    small["opd"] = small["grpo"]
    rows = [
        row
        for case in simulated.cases(reference)
        if not case.implied
        for row in simulated.reference_rows(case, small, {"uniform": simulated.uniform}, [1])
    ]
    sync = [row for row in rows if row["schedule"] == "sync"]
    assert [row["simulated_speedup"] for row in sync] == [1, 1]
    costs = [simulated.cost(kind, trajectories=n, turns=3, updates=1) for kind in simulated.COSTED for n in (8, 16)]
    report = {
        "cost": {
            "rows": costs,
            "growth_exponent": {
                k: simulated.growth_exponent([c for c in costs if c["kind"] == k]) for k in simulated.COSTED
            },
        },
        "reference": rows,
        "recorded": {"root": "nowhere", "cells": [], "rows": []},
        "histories": {"count": 30} | simulated.tally(run_history(seed) for seed in range(30)),
    }
    json.dumps(report, allow_nan=False)
    text = simulation_report.text(report)
    assert "simulated s | paper s" in text and "1313.6" in text and "none broke an invariant" in text
    assert len(simulation_report.data_frame(report)) == len(costs) + len(rows)
    assert all(math.isfinite(c["ns_per_n_log2_n"]) for c in costs)
    assert simulation_report.draw(report) is not None
    report["histories"]["wrong"] = [{"seed": 7, "wrong": ["update=0 was learned 2 times"]}]
    assert "1 BROKE AN INVARIANT" in simulation_report.text(report) and "- seed 7:" in simulation_report.text(report)

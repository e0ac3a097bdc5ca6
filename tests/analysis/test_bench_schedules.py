"""The paired benchmark of the schedules, reduced and drawn from steps worked by hand."""

from __future__ import annotations

import pytest
import synthetic

from experiments.bench_schedules import reduce
from paper_figures.schedules_report import draw, frame, text


def updates(step: float, schedule: str) -> list:
    return [synthetic.update_record(k, k * step, schedule, "p", 0.5, step) for k in range(2)]


@pytest.fixture
def report() -> dict:
    """Sync takes 8 and 10 s a step, half of it rollout, 9/20 learner, 1/20 publication; ThunderSync 5 and 6.25 s."""
    steps = {"sync": (8.0, 10.0), "thundersync": (5.0, 6.25), "async": (4.0, 5.0), "fully_async": (4.0, 4.0)}
    measured = reduce({name: [updates(step, name) for step in both] for name, both in steps.items()})
    facts = {"objective": "grpo", "workload": "micro_swe", "trajectories_per_update": 32, "active_sequences": 8}
    facts |= {"rounds": 2, "updates_per_round": 2, "core_independence": 0.9, "policy_width": 6144}
    return measured | facts


def test_a_round_is_compared_with_its_own_sync_run(report):
    assert (report["sync_rollout_s"], report["sync_learner_s"]) == pytest.approx((4.5, 4.05))
    assert report["bound"] == pytest.approx(1 / 0.55)
    ours = report["schedules"]["thundersync"]
    assert ours["step_s"] == pytest.approx(5.625) and ours["speedup_by_round"] == pytest.approx([1.6, 1.6])
    assert ours["speedup"] == pytest.approx(1.6) and ours["share_of_bound"] == pytest.approx(1.6 * 0.55)


def test_what_is_written_is_what_was_reduced(report):
    rows = frame(report)
    assert rows[rows.schedule == "thundersync"]["step_s"].tolist() == pytest.approx([5.0, 6.25])
    assert "| 1.60 (1.60, 1.60) | 88% | 0 to 0 |" in text(report)
    _, speedups = draw(report).axes
    assert [bar.get_height() for bar in speedups.patches] == pytest.approx([1.6, 2.0, 2.25])

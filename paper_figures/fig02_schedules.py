"""Figure 2: the four schedules for GRPO (a) and OPD (b), drawn from simulated runs of the schedule files themselves.

Four trajectories a batch on four slots, one learner; durations are drawn, the same for every schedule. Each panel ends
when Sync has published its third update, so that the steps within it can be counted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from matplotlib.patches import Patch

from paper_figures import common, style
from thundersync.simulation import Generated, Outcome, Setting, simulate
from thundersync.simulation.reference import Stages, calibrated

SCHEDULES = ("sync", "async", "fully_async", "thundersync")
SAID = {
    "sync": "zero staleness, batch barrier",
    "async": "one-step staleness",
    "fully_async": "variable staleness, in-flight updates",
    "thundersync": "zero staleness, start when ready",
}
COLOURS = {"rollout": "#9ecae1", "teacher": "#c1578f", "learner": "#e69f00", "update": "#3a3a3a"}
NAMES = {
    "rollout": "Rollout",
    "teacher": "Teacher score",
    "learner": "Learner gradient",
    "update": "Optimizer update and publication",
}
SLOTS, UPDATES, SCORING = 4, 8, 0.2
"""Slots; updates simulated, more than any panel shows; the teacher's share of a turn, drawn at its end."""
STAGES = Stages(rollout=10.0, learner=9.0, suffix=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A piece of work on a lane, in virtual seconds; lanes count from the top of a panel."""

    kind: str
    lane: int
    start: float
    end: float
    batch: int | None
    """The batch that it was drawn for (rollout, teacher) or trained for (learner, update)."""


def run(objective: str, schedule: str, seed: int) -> Outcome:
    base = Setting(schedule="sync", prompts=2, group_size=2, updates=UPDATES, slots=SLOTS, lag_bound=2)
    opd = objective == "opd"
    model = Generated(
        seed=seed,
        group_size=2,
        trajectory_s=1.0,
        service_s=1.0,
        turns=4 if opd else 1,
        gamma=0.49,
        closure=0.0 if opd else 0.05,
        deferred=0.3 if opd else 0.0,
    )
    durations = calibrated(base, model, STAGES).durations()
    release = {"release": "turn_eager", "needs_reward": False} if opd else {}
    setting = Setting(
        schedule=schedule,
        prompts=2,
        group_size=2,
        updates=UPDATES,
        slots=SLOTS,
        lag_bound=2,
        turn_events=True,
        **release,
    )
    return simulate(setting, durations)


def bars(outcome: Outcome, objective: str) -> list[Bar]:
    """Rollout slots, then the teacher where there is one, the learner, and updates."""
    found, free = [], [0.0] * SLOTS
    teacher, learner = SLOTS, SLOTS + (objective == "opd")
    for flight in sorted(outcome.flights, key=lambda flight: flight.started):
        slot = next(i for i, at in enumerate(free) if at <= flight.started + 1e-6)
        free[slot] = flight.reward_at
        batch = flight.key.update
        found.append(Bar(kind="rollout", lane=slot, start=flight.started, end=flight.reward_at, batch=batch))
        if objective == "opd":
            ends = flight.turn_ends_T()
            spent = SCORING * flight.times.seconds / len(ends)
            found += [Bar(kind="teacher", lane=teacher, start=e - spent, end=e, batch=batch) for e in ends]
    for receipt in outcome.receipts:
        if receipt.ended_at > receipt.started_at:
            found.append(
                Bar(kind="learner", lane=learner, start=receipt.started_at, end=receipt.ended_at, batch=receipt.update)
            )
    for update in outcome.published:
        # Async publishes when its rollout has closed too.
        start = update.published_at - STAGES.suffix
        found.append(
            Bar(kind="update", lane=learner + 1, start=start, end=update.published_at, batch=update.batch.update)
        )
    return found


def draw_panel(axis, found: Sequence[Bar], until: float, objective: str) -> None:
    for bar in found:
        if bar.start >= until:
            continue
        axis.barh(
            bar.lane,
            min(bar.end, until) - bar.start,
            left=bar.start,
            height=0.72,
            color=COLOURS[bar.kind],
            alpha=1.0 if (bar.batch or 0) % 2 == 0 else 0.55,
            edgecolor="white",
            lw=0.5,
        )
        if bar.kind == "update" and bar.end <= until:
            axis.axvline(bar.end, color="#3a3a3a", lw=0.6, ls=":", zorder=0)
    lanes = ["", "Rollout", "", ""] + (["Teacher"] if objective == "opd" else []) + ["Learner", "Update"]
    axis.set_yticks(range(len(lanes)), lanes, fontsize=7)
    axis.tick_params(axis="y", length=0)
    axis.set(xlim=(0, until), ylim=(len(lanes) - 0.4, -0.6))
    axis.grid(False)


def draw(args: argparse.Namespace) -> None:
    figure, axes = style.figure(len(SCHEDULES), 2, figsize=(11.5, 8.2), sharex="col")
    rows, panels = [], []
    for column, objective in enumerate(("grpo", "opd")):
        outcomes = {schedule: run(objective, schedule, args.seed) for schedule in SCHEDULES}
        until = outcomes["sync"].published[2].published_at
        for axis, (schedule, outcome) in zip(axes[:, column], outcomes.items(), strict=True):
            found = bars(outcome, objective)
            draw_panel(axis, found, until, objective)
            done = [update for update in outcome.published if update.published_at <= until + 1e-9]
            lags = [u.learner_version - t.oldest_version for u in done for t in u.trajectories]
            letter = f"({'ab'[column]}) {style.OBJECTIVES[objective]}: " if schedule == "sync" else ""
            axis.set_title(f"{letter}{style.LOOKS[schedule].label}, {SAID[schedule]}: {len(done)} steps", loc="left")
            rows += [
                {"objective": objective, "schedule": schedule, "kind": b.kind, "lane": b.lane, "batch": b.batch,
                 "start_s": b.start, "end_s": b.end} for b in found if b.start < until
            ]  # fmt: skip
            panels.append(
                {"objective": objective, "schedule": schedule, "window_s": until, "optimizer_steps": len(done),
                 "lag_min": min(lags), "lag_max": max(lags)}
            )  # fmt: skip
        axes[-1, column].set_xlabel("virtual seconds; shades alternate between batches, dotted lines are publications")
    handles = [Patch(color=colour, label=NAMES[kind]) for kind, colour in COLOURS.items()]
    figure.legend(handles=handles, loc="lower center", ncols=4, fontsize=8)
    figure.tight_layout(rect=(0, 0.03, 1, 1))
    report = {
        "figure": 2,
        "kind": "simulated: the schedule files on virtual time, durations drawn; nothing here is measured",
        "seed": args.seed,
        "stages_of_sync_s": {"rollout": STAGES.rollout, "learner": STAGES.learner, "suffix": STAGES.suffix},
        "panels": panels,
        "paper": "a schematic without numbers",
    }
    common.write_results(args.results, figure, pd.DataFrame(rows), report, text(panels))


def text(panels: Sequence[dict]) -> str:
    lines = [
        "# Figure 2, simulated",
        "",
        "| objective | schedule | optimizer steps | lag |",
        "| --- | --- | --- | --- |",
    ]
    for p in panels:
        lag = f"{p['lag_min']} to {p['lag_max']}"
        lines.append(f"| {p['objective']} | {p['schedule']} | {p['optimizer_steps']} | {lag} |")
    return "\n".join(lines) + "\n"


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description="Figure 2: the four schedules, drawn from simulated runs")
    result.add_argument("--results", type=Path, default=Path("results/fig2"))
    result.add_argument("--seed", type=int, default=3)
    return result


if __name__ == "__main__":
    sys.exit(common.main(draw, parser()))

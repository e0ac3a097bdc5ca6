"""Figure 3: busy and idle shares of the rollout and learner devices over time, ThunderSync above Sync.

python -m paper_figures.fig03_pipeline_bubbles --runs runs/fig5/embedded --results results/fig3
"""

from __future__ import annotations

import argparse
import json
import sys

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from analysis.busy import Utilisation, utilisation
from analysis.campaign import SCHEDULES
from analysis.profile import CellProfile, Profile
from analysis.time_axis import device_hours
from paper_figures import common, efficiency
from paper_figures.style import LOOKS, TimeUnit, figure, time_unit

TITLE = "Figure 3: pipeline bubbles in synchronous agentic RL (GRPO)"
SHOWN = ("thundersync", "sync")
BINS = 240
ROLLOUT, LEARNER = "#5b8db8", "#0b3c66"


def shown_seconds(profile: CellProfile) -> float:
    """As far as every shown run has completed updates."""
    return min(run.run.updates[-1].published_at for s in SHOWN for run in profile.runs[s])


def steps_within(run: Profile, seconds: float) -> int:
    return sum(u.published_at <= seconds for u in run.run.updates)


def draw_panel(axes: Axes, schedule: str, use: Utilisation, steps: int, unit: TimeUnit) -> None:
    edges = unit.of(use.edges_T1)
    for sign, share_T, colour in ((1, use.rollout_T, ROLLOUT), (-1, use.learner_T, LEARNER)):
        axes.stairs(
            np.full(len(share_T), 100.0 * sign), edges, fill=True, fc="white", ec="#b0b0b0", hatch="/////", lw=0
        )
        axes.stairs(100 * sign * share_T, edges, fill=True, color=colour)
    axes.axhline(0, color="black", lw=0.8)
    axes.set_ylim(-108, 108)
    axes.set_yticks([-100, -50, 0, 50, 100], ["100", "50", "0", "50", "100"])
    axes.set_xlim(0, edges[-1])
    axes.set_ylabel("Busy (%)\nlearner    rollout")
    axes.set_title(f"{LOOKS[schedule].label}: {steps} optimizer steps", loc="left")
    axes.grid(visible=False)


def draw_figure(profile: CellProfile) -> tuple[Figure, pd.DataFrame]:
    seconds = shown_seconds(profile)
    record = profile.cell.reference.record
    unit = time_unit(seconds, record.devices)
    edges_T1 = np.linspace(0, seconds, BINS + 1)
    fig, axes = figure(2, 1, figsize=(10, 5.4), sharex=True, layout="constrained")
    rows, derived = [], False
    for panel, schedule in zip(axes, SHOWN, strict=True):
        run = profile.runs[schedule][0]
        use = utilisation(run.run, run.details, edges_T1)
        derived = derived or not use.starts_recorded
        draw_panel(panel, schedule, use, steps_within(run, seconds), unit)
        rows.append(
            pd.DataFrame(
                {
                    "source": "measured",
                    "schedule": schedule,
                    "seed": run.run.record.seed,
                    "from_s": edges_T1[:-1],
                    "to_s": edges_T1[1:],
                    "rollout_busy": use.rollout_T,
                    "learner_busy": use.learner_T,
                }
            )
        )
    axes[-1].set_xlabel(f"{unit.label}, GRPO on {profile.cell.workload}, embedded scale, one run each")
    fig.legend(
        handles=[
            Patch(color=ROLLOUT, label="rollout busy (share of slots)"),
            Patch(color=LEARNER, label="learner busy"),
            Patch(fc="white", ec="#b0b0b0", hatch="/////", label="pipeline bubble (idle)"),
        ],
        loc="outside upper center",
        ncols=3,
    )
    if derived:
        words = "Starts of trajectories were not recorded: they are derived from the order in which slots are taken."
        fig.supxlabel(words, fontsize=8, color="#444444", x=0.01, ha="left")
    return fig, pd.concat(rows)


def predictions(profile: CellProfile) -> dict:
    """ThunderSync with perfect overlap: idle share, and Sync's steps times the bound."""
    idle = [100 * (1 - p.learner / (max(p.rollout, p.learner) + p.suffix)) for p in profile.phases]
    steps = [steps_within(run, shown_seconds(profile)) for run in profile.runs["sync"]]
    bounds = [p.bound for p in profile.phases]
    return {
        "source": "predicted",
        "schedule": "thundersync",
        "how": "perfect overlap, from Sync's R, L and P (Equation 17); the step counts as idle",
        "learner_idle_percent": sum(idle) / len(idle),
        "optimizer_steps": sum(n * b for n, b in zip(steps, bounds, strict=True)) / len(steps),
    }


def measurements(profile: CellProfile) -> list[dict]:
    seconds = shown_seconds(profile)
    return [
        {
            "source": "measured",
            "schedule": s,
            "learner_idle_percent": efficiency.spread(profile.over_seeds(s, lambda run: 100 * run.learner_idle)),
            "optimizer_steps": [steps_within(run, seconds) for run in profile.runs[s]],
        }
        for s in SCHEDULES
    ]


def text(report: dict) -> str:
    paper = report["paper"]
    lines = [
        f"# {TITLE}",
        "",
        efficiency.SCALE,
        "",
        "| schedule | learner idle (%) | optimizer steps shown |",
        "|---|---|---|",
    ]
    for row in report["measured"]:
        idle, steps = row["learner_idle_percent"]["mean"], ", ".join(map(str, row["optimizer_steps"]))
        lines.append(f"| {LOOKS[row['schedule']].label} | {idle:.1f} | {steps} |")
    predicted = report["predicted"]
    lines += [
        "",
        f"Predicted for ThunderSync, {predicted['how']}: learner idle {predicted['learner_idle_percent']:.1f} %, "
        f"{predicted['optimizer_steps']:.1f} steps in the same time.",
        "",
        f"The paper ({paper['source']}): Sync's learner idle {paper['sync_learner_idle_percent']} %; in "
        f"{paper['gpu_hours']} GPU-hours {paper['optimizer_steps']['sync']} steps of Sync and "
        f"{paper['optimizer_steps']['thundersync']} of ThunderSync.",
        "",
        f"Shown: {report['shown_seconds']:.1f} s = {report['shown_device_hours']:.3g} device-hours.",
    ]
    return "\n".join(lines + efficiency.pending_lines(report)) + "\n"


def draw(args: argparse.Namespace) -> None:
    reference = json.loads(args.reference.read_text(encoding="utf-8"))
    profiles = efficiency.load(args)
    profile = next(iter(profiles.values()))
    fig, data = draw_figure(profile)
    seconds = shown_seconds(profile)
    report = efficiency.head("figure 3", profiles) | {
        "shown_seconds": seconds,
        "shown_device_hours": device_hours(seconds, profile.cell.reference.record.devices),
        "measured": measurements(profile),
        "predicted": predictions(profile),
        "paper": reference["figure3"],
    }
    common.write_results(args.results, fig, data, report, text(report))


if __name__ == "__main__":
    sys.exit(common.main(draw, efficiency.arguments(TITLE, objectives=["grpo"])))

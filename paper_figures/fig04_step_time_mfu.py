"""Figure 4: step wall time by schedule and its parts (left), trainer active MFU by policy step (right).

python -m paper_figures.fig04_step_time_mfu --runs runs/fig5/embedded --results results/fig4
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

from analysis.campaign import SCHEDULES
from analysis.profile import PARTS, CellProfile
from paper_figures import common, efficiency
from paper_figures.style import LOOKS, OBJECTIVES, figure

TITLE = "Figure 4: step wall time and trainer active MFU"
LABELS = {
    "rollout": "rollout + verification",
    "learner": "residual learner work",
    "step": "optimizer step",
    "publication": "publication",
}
BACK = {"fc": "white", "ec": "none", "pad": 0.6}
"""Behind words that may lie on the line of the perfect overlap."""
FILLS = {"rollout": "#cfd6dd", "learner": "#0a5fa3", "step": "#c1473f", "publication": "#333333"}


def draw_steps(axes: Axes, profile: CellProfile, paper: dict) -> None:
    rows = [efficiency.measured_row(profile, schedule) for schedule in SCHEDULES]
    top = max(row["step_seconds"]["mean"] for row in rows)
    for x, (schedule, row) in enumerate(zip(SCHEDULES, rows, strict=True)):
        base = 0.0
        for part in PARTS:
            height = row["parts_seconds"][part]["mean"]
            axes.bar(x, height, bottom=base, width=0.62, color=FILLS[part], edgecolor="white", lw=0.4)
            base += height
        if row["step_seconds"]["sd_over_seeds"] is not None:
            axes.errorbar(x, base, row["step_seconds"]["sd_over_seeds"], color="black", capsize=3, lw=1)
        theirs = paper["sync"] / paper[schedule]
        words = "" if schedule == "sync" else f"\n{row['speedup']['mean']:.2f}× (paper {theirs:.2f}×)"
        axes.text(x, base + 0.02 * top, f"{base:.2f} s{words}", ha="center", va="bottom", fontsize=8, bbox=BACK)
    predicted = efficiency.predicted_row(profile)
    axes.axhline(predicted["step_seconds"], color=LOOKS["thundersync"].colour, ls=(0, (4, 2)), lw=1.1)
    axes.text(
        3.98,
        predicted["step_seconds"],
        f" perfect overlap\n {predicted['step_seconds']:.2f} s, {predicted['speedup']:.2f}×",
        va="center",
        fontsize=7.5,
        color=LOOKS["thundersync"].colour,
    )
    axes.set_xticks(range(4), [LOOKS[s].label for s in SCHEDULES])
    axes.set_xlim(-0.5, 3.95)
    axes.set_ylim(0, 1.24 * top)
    axes.set_ylabel("Step wall time (s)")
    axes.grid(axis="x", visible=False)


def draw_mfu(axes: Axes, profile: CellProfile) -> None:
    for schedule in SCHEDULES:
        look = LOOKS[schedule]
        series = [run.mfu_by_update for run in profile.runs[schedule]]
        steps = sorted(set.intersection(*(set(one) for one in series)))
        values = [100 * np.mean([one[k] for one in series]) for k in steps]
        axes.plot(
            [k + 1 for k in steps], values, color=look.colour, marker=look.marker, ls=look.line, ms=4, label=look.label
        )
    axes.axvline(profile.window.warmup + 0.5, color="#777777", lw=0.8, ls=":")
    axes.text(profile.window.warmup + 0.55, axes.get_ylim()[1], " window", fontsize=7.5, va="top", color="#555555")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("Policy step")
    axes.set_ylabel("Trainer active MFU (%)")


def draw_figure(profiles: dict[str, CellProfile], reference: dict) -> Figure:
    rows = len(profiles)
    fig, axes = figure(
        rows, 2, figsize=(11, 3.3 * rows + 0.9), squeeze=False, layout="constrained", width_ratios=(1.5, 1)
    )
    for (left, right), (objective, profile) in zip(axes, profiles.items(), strict=True):
        draw_steps(left, profile, reference["step_time_s"][objective])
        draw_mfu(right, profile)
        left.set_title(f"{OBJECTIVES[objective]}: step wall time", loc="left")
        right.set_title(f"{OBJECTIVES[objective]}: MFU of the measured peak", loc="left")
    handles = [Patch(color=FILLS[part], label=LABELS[part]) for part in PARTS]
    handles += axes[0][1].get_legend_handles_labels()[0]
    fig.legend(handles=handles, loc="outside upper center", ncols=8, fontsize=8, columnspacing=1.2, handletextpad=0.5)
    first = next(iter(profiles.values()))
    fig.supxlabel(
        f"Embedded scale, {first.cell.workload}, seeds {', '.join(map(str, first.cell.seeds))}. Fully Async has no "
        "barrier: its wait for complete groups stands as rollout.",
        fontsize=8,
        color="#444444",
        x=0.01,
        ha="left",
    )
    return fig


def data(profiles: dict[str, CellProfile], reference: dict) -> pd.DataFrame:
    rows = []
    for row in efficiency.measured_rows(profiles):
        parts = {f"{part}_s": row["parts_seconds"][part]["mean"] for part in PARTS}
        common_fields = {key: row[key] for key in ("source", "objective", "schedule")}
        values = {"step_s": row["step_seconds"]["mean"], "speedup": row["speedup"]["mean"]}
        rows.append(common_fields | values | parts | {"mfu_percent": row["mfu_percent"]["mean"]})
    for objective, profile in profiles.items():
        row = efficiency.predicted_row(profile)
        rows.append(
            {key: row[key] for key in ("source", "objective", "schedule", "speedup", "mfu_percent")}
            | {"step_s": row["step_seconds"]}
        )
        paper = reference["step_time_s"][objective]
        rows += [
            {
                "source": "paper",
                "objective": objective,
                "schedule": s,
                "step_s": paper[s],
                "speedup": paper["sync"] / paper[s],
            }
            for s in SCHEDULES
        ]
    for objective, profile in profiles.items():
        rows += [
            {"source": "measured", "objective": objective, "schedule": s, "seed": run.run.record.seed, "update": k,
             "mfu_percent": 100 * value}
            for s in SCHEDULES for run in profile.runs[s] for k, value in run.mfu_by_update.items()
        ]  # fmt: skip
    return pd.DataFrame(rows)


def text(report: dict) -> str:
    lines = [f"# {TITLE}", "", efficiency.SCALE, ""]
    lines += [
        "| objective | schedule | step (s) | speedup | rollout | learner | step | publication | MFU (%) | idle (%) |"
    ]
    lines += ["|" + "---|" * 10]
    for row in report["measured"]:
        seconds = [f"{row['parts_seconds'][part]['mean']:.3f}" for part in PARTS]
        cells = [OBJECTIVES[row["objective"]], LOOKS[row["schedule"]].label, f"{row['step_seconds']['mean']:.3f}"]
        cells += [f"{row['speedup']['mean']:.3f}", *seconds, f"{row['mfu_percent']['mean']:.2f}"]
        lines.append("| " + " | ".join([*cells, f"{row['learner_idle_percent']['mean']:.1f}"]) + " |")
    for row in report["predicted"]:
        lines += ["", f"Predicted, {OBJECTIVES[row['objective']]}: {row['how']}: {row['step_seconds']:.3f} s, "
                  f"{row['speedup']:.3f} times, MFU {row['mfu_percent']:.2f} %."]  # fmt: skip
    lines += efficiency.peak_lines(report) + efficiency.pending_lines(report)
    return "\n".join(lines) + "\n"


def draw(args: argparse.Namespace) -> None:
    reference = json.loads(args.reference.read_text(encoding="utf-8"))
    profiles = efficiency.load(args)
    report = efficiency.head("figure 4", profiles) | {
        "measured": efficiency.measured_rows(profiles),
        "predicted": [efficiency.predicted_row(profile) for profile in profiles.values()],
        "paper": {o: reference["step_time_s"][o] for o in profiles} | {"source": reference["step_time_s"]["source"]},
    }
    common.write_results(
        args.results, draw_figure(profiles, reference), data(profiles, reference), report, text(report)
    )


if __name__ == "__main__":
    sys.exit(common.main(draw, efficiency.arguments(TITLE)))

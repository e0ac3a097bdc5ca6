"""Paired step times of the schedules as a figure, a table and a CSV, from the report of the benchmark."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from paper_figures import style


def frame(report: dict) -> pd.DataFrame:
    """One row per schedule and round."""
    rows = []
    for schedule, found in report["schedules"].items():
        for number, (step, speedup) in enumerate(zip(found["step_s_by_round"], found["speedup_by_round"], strict=True)):
            rows.append({"schedule": schedule, "round": number, "step_s": step, "speedup": speedup})
    return pd.DataFrame(rows)


def draw(report: dict) -> Figure:
    """Left: what a Sync step is made of. Right: speedup over Sync, rounds as dots, beside the bound of overlap."""
    figure, (parts, speedups) = style.figure(1, 2, figsize=(8.5, 2.9), width_ratios=(1, 1.6))
    bottom = 0.0
    for key, colour in (("rollout", "#9fb8cc"), ("learner", "#e69f00"), ("publication", "#8a8a8a")):
        seconds = report[f"sync_{key}_s"]
        parts.bar([0], [seconds], bottom=bottom, color=colour, width=0.5, label=f"{key} {seconds:.1f} s")
        bottom += seconds
    parts.set(xticks=[], xlim=(-0.4, 1.6), ylabel="seconds", title="A Sync step")
    parts.legend(fontsize=8, loc="upper right")
    names = [name for name in report["schedules"] if name != "sync"]
    for x, name in enumerate(names):
        found, look = report["schedules"][name], style.LOOKS[name]
        speedups.bar([x], [found["speedup"]], color=look.colour, width=0.55)
        rounds = found["speedup_by_round"]
        speedups.plot([x] * len(rounds), rounds, "o", color="white", mec="black", ms=4)
    speedups.axhline(
        report["bound"], color="black", lw=0.9, ls="--", label=f"bound of exact overlap {report['bound']:.2f}"
    )
    speedups.axhline(1.0, color="#8a8a8a", lw=0.8)
    speedups.set_xticks(range(len(names)), [style.LOOKS[name].label for name in names])
    most = max(max(found["speedup_by_round"]) for found in report["schedules"].values())
    speedups.set(ylabel="speedup over Sync", ylim=(0, 1.25 * most), title="Paired step times")
    speedups.legend(fontsize=8, loc="upper left")
    figure.tight_layout()
    return figure


def text(report: dict) -> str:
    """report.md."""
    slots, width, kept = report["active_sequences"], report["policy_width"], report["core_independence"]
    rollout, learner, suffix = (report[f"sync_{part}_s"] for part in ("rollout", "learner", "publication"))
    lines = [
        "# Step times of the schedules",
        "",
        f"{report['objective']} on {report['workload']}: {report['trajectories_per_update']} trajectories a step"
        f" through {slots} slots, policy MLPs of {width} units; {report['rounds']} rounds of"
        f" {report['updates_per_round']} updates. While both cores were busy one kept {kept:.0%} of its speed.",
        "",
        f"Sync: rollout {rollout:.2f} s, learner {learner:.2f} s, step and publication {suffix:.2f} s, so that exact"
        f" overlap can gain {report['bound']:.2f} (Equation 17).",
        "",
        "| schedule | step, s | speedup (by round) | share of the bound | policy lag |",
        "|---|---|---|---|---|",
    ]
    for name, found in report["schedules"].items():
        rounds = ", ".join(f"{speedup:.2f}" for speedup in found["speedup_by_round"])
        low, high = found["lag"]
        lines.append(
            f"| {style.LOOKS[name].label} | {found['step_s']:.2f} | {found['speedup']:.2f} ({rounds})"
            f" | {found['share_of_bound']:.0%} | {low} to {high} |"
        )
    lines += ["", "Async and Fully Async train on older policies: the bound is not theirs."]
    return "\n".join(lines) + "\n"

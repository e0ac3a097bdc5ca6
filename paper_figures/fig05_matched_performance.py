"""Figure 5. Left: time to matched pass@3, ThunderSync and Sync. Right: Async and Fully Async against ThunderSync at
the fixed budget. GRPO and OPD, both workloads.

    python -m paper_figures.fig05_matched_performance --runs runs/fig5/embedded --results results/fig5
"""

from __future__ import annotations

import argparse
import json
import math
import sys

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from analysis.compare import Comparison
from paper_figures import common, report
from paper_figures.style import LOOKS, OBJECTIVES, PAPER, TimeUnit, figure, time_unit

TIMED = ("thundersync", "sync")
STALE = ("async", "fully_async")
BACK = {"fc": "white", "ec": "none", "pad": 1.5}
"""Behind a label that may lie on a line."""


def draw_times(axes: Axes, comparisons: list[Comparison], papers: list[dict], unit: TimeUnit) -> None:
    """Horizontal bars, a pair for each workload; an unreached target is an open hatched bar up to the budget."""
    budget = unit.of(max(c.budget_seconds for c in comparisons))
    ticks = []
    for i, (comparison, paper) in enumerate(zip(comparisons, papers, strict=True)):
        base = 3.2 * i
        for j, schedule in enumerate(TIMED):
            _time_bar(axes, base + j, schedule, comparison, unit)
        theirs = paper["gpu_hours_to_target"]["ratio"]
        axes.text(
            0.01 * budget,
            base + 1.83,
            f"Target {comparison.target:.1f} %: {ratio_words(comparison)}   (paper {theirs:.1f}×)",
            va="center",
            fontsize=8.5,
        )
        ticks.append((base + 0.5, comparison.cell.workload))
    axes.axvline(budget, color="black", lw=0.8, ls=(0, (4, 3)))
    axes.text(budget * 1.01, -0.62, "budget", fontsize=8, va="center")
    axes.set_yticks([t for t, _ in ticks], [name for _, name in ticks], rotation=90, va="center")
    axes.set_ylim(3.2 * len(comparisons) - 0.9, -0.8)
    axes.set_xlim(0, budget * 1.22)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(f"{unit.label} to the target pass@3")


def ratio_words(comparison: Comparison) -> str:
    """What the pair of bars says; a Sync that never arrives gives a lower bound only."""
    ratio, own = comparison.time_ratio.value, comparison.schedules["thundersync"].seconds_to_target.value
    if ratio is not None:
        return f"{ratio:.2f}× faster" if ratio >= 1 else f"{ratio:.2f}× (slower)"
    if own is None:
        return "ThunderSync does not reach it"
    if own == 0:
        return "met at the start, no ratio"
    return f"more than {comparison.budget_seconds / own:.2f}× faster"


def _time_bar(axes: Axes, y: float, schedule: str, comparison: Comparison, unit: TimeUnit) -> None:
    look, seconds = LOOKS[schedule], comparison.schedules[schedule].seconds_to_target
    budget = comparison.budget_seconds
    if seconds.value is None:
        axes.barh(y, unit.of(budget), height=0.8, facecolor="none", edgecolor=look.colour, hatch="////", lw=1.2)
        label = {"x": unit.of(budget) * 0.5, "s": "unreached", "ha": "center"}
        axes.text(y=y, va="center", fontsize=8.5, bbox=BACK, **label)
        return
    at = unit.of(seconds.value)
    axes.barh(y, at, height=0.8, color=look.colour, hatch=look.hatch, edgecolor="white", lw=0)
    low, high = (min(end, budget) for end in common.interval(seconds))
    axes.plot([unit.of(low), unit.of(high)], [y, y], color="black", lw=1.1, zorder=4)
    for end, open_ended in ((low, False), (high, math.isinf(common.interval(seconds)[1]))):
        axes.plot(
            unit.of(end), y, color="black", marker=">" if open_ended else "|", ms=5 if open_ended else 7, zorder=4
        )
    axes.text(
        max(at, unit.of(high)) + 0.015 * unit.of(budget),
        y,
        f"{at:.3g} {unit.short}",
        va="center",
        fontsize=8.5,
        bbox=BACK,
    )


def draw_deltas(axes: Axes, comparisons: list[Comparison], papers: list[dict]) -> None:
    """Points behind (or ahead of) ThunderSync, with the paper's values as open diamonds beside the bars."""
    ends = [0.0]
    for i, (comparison, paper) in enumerate(zip(comparisons, papers, strict=True)):
        for j, schedule in enumerate(STALE):
            look, delta = LOOKS[schedule], comparison.schedules[schedule].delta_at_budget
            x, (low, high) = 2.6 * i + j, common.interval(delta)
            axes.bar(x, delta.value, width=0.62, color=look.colour, hatch=look.hatch, edgecolor="white", lw=0)
            axes.errorbar(
                x, delta.value, [[delta.value - low], [high - delta.value]], color="black", capsize=3, lw=1.1, zorder=4
            )
            axes.plot(x + 0.42, paper["at_128_gpu_hours"][schedule], **PAPER)
            ends += [low, high, paper["at_128_gpu_hours"][schedule]]
            axes.annotate(
                f"{delta.value:+.1f}",
                (x, max(high, 0)),
                xytext=(0, 3),
                textcoords="offset points",
                ha="center",
                fontsize=8.5,
            )
    axes.axhline(0, color=LOOKS["thundersync"].colour, lw=1.6)
    span = max(ends) - min(ends) or 1.0
    axes.set_ylim(min(ends) - 0.08 * span, max(ends) + 0.16 * span)
    names = [
        f"{c.cell.workload}\nThunderSync {c.schedules['thundersync'].pass3_at_budget.value:.1f} %" for c in comparisons
    ]
    axes.set_xticks([2.6 * i + 0.5 for i in range(len(names))], names)
    axes.set_xlim(-0.8, 2.6 * len(names) - 0.8)
    axes.grid(axis="x", visible=False)
    axes.set_ylabel("Δ pass@3 against ThunderSync (points)")


def draw_figure(by_objective: dict[str, list[Comparison]], reference: dict) -> Figure:
    everything = [c for group in by_objective.values() for c in group]
    unit = time_unit(max(c.budget_seconds for c in everything), everything[0].devices)
    rows = len(by_objective)
    fig, axes = figure(
        rows, 2, figsize=(10.5, 3.3 * rows + 1.1), squeeze=False, layout="constrained", width_ratios=(1.25, 1)
    )
    for (left, right), (objective, comparisons) in zip(axes, by_objective.items(), strict=True):
        papers = [common.paper_values(reference, c) for c in comparisons]
        draw_times(left, comparisons, papers, unit)
        draw_deltas(right, comparisons, papers)
        left.set_title(f"{OBJECTIVES[objective]}: time to matched performance", loc="left")
        right.set_title(f"{OBJECTIVES[objective]}: pass@3 at the budget", loc="left")
    handles = [
        Patch(facecolor=LOOKS[s].colour, hatch=LOOKS[s].hatch, edgecolor="white", label=LOOKS[s].label)
        for s in (*TIMED, *STALE)
    ]
    handles += [
        Line2D([], [], color="black", marker="|", ms=7, lw=1.1, label="95 % interval"),
        Line2D([], [], label="paper's value (27B, 128 GPU-hours)", **PAPER),
    ]
    fig.legend(handles=handles, loc="outside upper center", ncols=6, columnspacing=1.4, handletextpad=0.6)
    fig.supxlabel(common.seeds_sentence(everything), fontsize=8, color="#444444", x=0.01, ha="left")
    return fig


def data_rows(comparisons: list[Comparison]) -> pd.DataFrame:
    """Every bar of the figure, as drawn."""
    rows = []
    for row in (row for c in comparisons for row in report.rows(c)):
        flat = {key: row[key] for key in ("objective", "workload", "schedule", "device_hours_to_target")}
        for name in ("seconds_to_target", "pass3_at_budget", "delta_pass3_vs_thundersync"):
            flat |= {name: row[name]["value"]}
            flat |= {f"{name}_{end}": row[name]["interval_95"][i] for i, end in enumerate(("low", "high"))}
        rows.append(flat | {"seeds": " ".join(map(str, row["seeds"])), "source": "measured"})
    return pd.DataFrame(rows)


def report_text(content: dict, papers: list[dict]) -> str:
    lines = ["# Figure 5: time to matched pass@3, and pass@3 at a fixed budget", "", content["scale_note"], ""]
    lines += [content["intervals"], "", "## Measured", "", *report.measured_table(content), ""]
    lines += ["Lag is derived from the version stamped on each token. An unreached target is reported as such.", ""]
    lines += [*report.cell_lines(content), "", "## Ours beside the paper's", ""]
    lines += [
        "| objective | ours on | Sync / ThunderSync time, ours | the paper on | the paper's ratio | its GPU-hours "
        "| Async, ours | Async, paper | Fully Async, ours | Fully Async, paper |",
        "|" + "---|" * 10,
    ]
    rows = {(r["objective"], r["workload"], r["schedule"]): r for r in content["schedules"]}
    for cell, paper in zip(content["cells"], papers, strict=True):
        times = paper["gpu_hours_to_target"]
        stale = []
        for schedule in STALE:
            own = rows[cell["objective"], cell["workload"], schedule]["delta_pass3_vs_thundersync"]
            stale += [report.ranged(own), f"{paper['at_128_gpu_hours'][schedule]:+.2f}"]
        entries = [
            OBJECTIVES[cell["objective"]],
            cell["workload"],
            report.ranged(cell["time_ratio_sync_over_thundersync"], 2),
            paper["title"],
            f"{times['ratio']:.1f}",
            f"{times['sync']} / {times['thundersync']} to {times['target']} %",
            *stale,
        ]
        lines.append("| " + " | ".join(entries) + " |")
    return "\n".join(lines) + "\n"


def draw(args: argparse.Namespace) -> None:
    reference = json.loads(args.reference.read_text(encoding="utf-8"))
    comparisons = common.load(args, args.workloads)
    papers = [common.paper_values(reference, c) for c in comparisons]
    by_objective = {o: [c for c in comparisons if c.cell.objective == o] for o in args.objectives}
    content = report.report("5", comparisons, papers)
    fig = draw_figure(by_objective, reference)
    common.write_results(args.results, fig, data_rows(comparisons), content, report_text(content, papers))


def parser() -> argparse.ArgumentParser:
    result = common.arguments("Figure 5: time to matched pass@3, and pass@3 at a fixed budget")
    result.add_argument("--workloads", nargs="+", default=["micro_swe", "micro_terminal"])
    return result


if __name__ == "__main__":
    sys.exit(common.main(draw, parser()))

"""Figures 1 and 6 are one drawing on two workloads: pass@3 and mean training reward along the training clock."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke

from analysis.campaign import SCHEDULES
from analysis.compare import Comparison, Match, matches
from analysis.time_axis import cost_usd, device_hours, mean_step_function, trailing_mean
from paper_figures import common, report
from paper_figures.style import LOOKS, OBJECTIVES, TimeUnit, figure, time_unit

REWARD_WINDOW = 5
"""Updates in the trailing mean of the training reward."""


def arrows(comparison: Comparison) -> list[Match]:
    """The middle and the last of the Sync bests that ThunderSync reaches: few enough to read."""
    curves = comparison.schedules
    found = matches(curves["sync"].curve, curves["thundersync"].curve, budget=comparison.budget_seconds)
    return found if len(found) < 2 else [found[(len(found) - 1) // 2], found[-1]]


def draw_pass3(axes: Axes, comparison: Comparison, unit: TimeUnit) -> None:
    for schedule in SCHEDULES:
        look, curve = LOOKS[schedule], comparison.schedules[schedule].curve
        within = curve.seconds_T <= comparison.budget_seconds
        seconds = np.append(curve.seconds_T[within], comparison.budget_seconds)
        percent = np.append(curve.percent_T[within], curve.percent_T[within][-1])
        axes.step(unit.of(seconds), percent, where="post", color=look.colour, ls=look.line, lw=1.6)
        every = max(1, len(seconds) // 10)
        axes.plot(
            unit.of(seconds[:-1][::every]), percent[:-1][::every], color=look.colour, marker=look.marker, ms=4, ls=""
        )
    for match in arrows(comparison):
        draw_arrow(axes, match, unit)
    price = comparison.price_usd_per_device_hour
    if price is not None:
        per_unit = cost_usd(1.0, comparison.devices, price) / unit.per_second
        top = axes.secondary_xaxis("top", functions=(lambda x: x * per_unit, lambda x: x / per_unit))
        top.set_xlabel(f"Training cost (USD, {comparison.devices} devices at {price:g} per hour)")
    axes.set_ylabel(f"{comparison.cell.workload} pass@3 (%)")


def draw_arrow(axes: Axes, match: Match, unit: TimeUnit) -> None:
    """From the Sync checkpoint to where ThunderSync has its score, labelled with the ratio of the times."""
    head, tail = unit.of(match.thundersync_seconds), unit.of(match.sync_seconds)
    look = {"arrowstyle": "-|>", "lw": 1.4, "color": "black", "shrinkA": 0, "shrinkB": 1}
    axes.annotate("", (head, match.percent), (tail, match.percent), arrowprops=look, zorder=6)
    axes.annotate(
        f"{match.ratio:.1f}×",
        ((head + tail) / 2, match.percent),
        xytext=(0, 4),
        textcoords="offset points",
        ha="center",
        weight="bold",
        zorder=7,
        path_effects=[withStroke(linewidth=3, foreground="white")],
    )


def draw_reward(axes: Axes, comparison: Comparison, unit: TimeUnit) -> None:
    for schedule in SCHEDULES:
        look = LOOKS[schedule]
        seconds, reward = reward_curve(comparison, schedule)
        every = max(1, len(seconds) // 8)
        drawn = {"color": look.colour, "ls": look.line, "lw": 1.4, "marker": look.marker, "ms": 3.5}
        axes.plot(unit.of(seconds), reward, markevery=every, **drawn)
    axes.set_ylabel("Mean training reward")


def reward_curve(comparison: Comparison, schedule: str) -> tuple[np.ndarray, np.ndarray]:
    """Trailing mean per seed, then the mean over seeds, up to the budget."""
    own = comparison.schedules[schedule]
    smooth = [trailing_mean(values, REWARD_WINDOW) for values in own.reward_mean]
    seconds, reward = mean_step_function(own.reward_seconds, smooth)
    within = seconds <= comparison.budget_seconds
    return seconds[within], reward[within]


def draw_figure(comparisons: Sequence[Comparison]) -> Figure:
    first = comparisons[0]
    unit = time_unit(first.budget_seconds, first.devices)
    rows = len(comparisons)
    fig, axes = figure(rows, 2, figsize=(10, 3.4 * rows + 0.7), squeeze=False, layout="constrained")
    for (left, right), comparison in zip(axes, comparisons, strict=True):
        draw_pass3(left, comparison, unit)
        draw_reward(right, comparison, unit)
        for axis in (left, right):
            axis.set_title(OBJECTIVES[comparison.cell.objective])
            axis.set_xlabel(unit.label)
            axis.set_xlim(0, unit.of(comparison.budget_seconds))
            axis.margins(y=0.12)
    handles = [
        Line2D([], [], color=LOOKS[s].colour, ls=LOOKS[s].line, marker=LOOKS[s].marker, ms=5, label=LOOKS[s].label)
        for s in SCHEDULES
    ]
    fig.legend(handles=handles, loc="outside upper center", ncols=4)
    note = (
        "Arrows: where ThunderSync reaches the score of a Sync checkpoint, with the ratio of their times. "
        f"Reward: mean of {REWARD_WINDOW} updates. Seeds: {', '.join(map(str, first.cell.seeds))}."
    )
    fig.supxlabel(note, fontsize=8, color="#444444", x=0.01, ha="left")
    return fig


def data_rows(comparisons: Sequence[Comparison]) -> pd.DataFrame:
    """Every point of every curve: pass@3 with its interval and the work behind it, and the reward."""
    rows = []
    for comparison in comparisons:
        cell, price = comparison.cell, comparison.price_usd_per_device_hour
        for schedule in SCHEDULES:
            head = {"objective": cell.objective, "workload": cell.workload, "schedule": schedule, "source": "measured"}
            curve = comparison.schedules[schedule].curve
            points = [("mean_training_reward", t, {"value": v}) for t, v in zip(*reward_curve(comparison, schedule))]  # noqa: B905
            for t, seconds in enumerate(curve.seconds_T):
                work = {
                    "value": curve.percent_T[t],
                    **{f"seed{s}": v for s, v in zip(cell.seeds, curve.percent_RT[:, t], strict=True)},
                    "updates": curve.updates_T[t],
                    "trajectories": curve.trajectories_T[t],
                    "generated_tokens": curve.generated_tokens_T[t],
                }
                points.append(("pass3", seconds, work))
            for curve_name, seconds, values in points:
                hours = device_hours(seconds, comparison.devices)
                cost = cost_usd(seconds, comparison.devices, price)
                place = {"curve": curve_name, "seconds": seconds, "device_hours": hours, "cost_usd": cost}
                rows.append(head | place | values)
    return pd.DataFrame(rows)


def arrow_rows(comparisons: Sequence[Comparison]) -> list[dict]:
    return [
        {
            "objective": comparison.cell.objective,
            "workload": comparison.cell.workload,
            "pass3": match.percent,
            "sync_seconds": match.sync_seconds,
            "thundersync_seconds": match.thundersync_seconds,
            "ratio": match.ratio,
        }
        for comparison in comparisons
        for match in arrows(comparison)
    ]


def report_text(title: str, content: dict) -> str:
    lines = [f"# {title}", "", content["scale_note"], "", content["intervals"], "", "## Measured", ""]
    lines += [*report.measured_table(content), "", *report.cell_lines(content), "", "## Arrows (measured)", ""]
    for row in content["arrows"]:
        lines.append(
            f"- {OBJECTIVES[row['objective']]}: {row['pass3']:.1f} % after {row['sync_seconds']:.1f} s with Sync, "
            f"{row['thundersync_seconds']:.1f} s with ThunderSync: {row['ratio']:.2f} times."
        )
    if not content["arrows"]:
        lines.append("- none: ThunderSync reached no improved Sync checkpoint's score within the budget.")
    times = [entry["gpu_hours_to_target"] for entry in content["paper"]]
    ratios = ", ".join(
        f"{o['objective'].upper()} {t['ratio']:.1f}" for o, t in zip(content["paper"], times, strict=True)
    )
    lines += [
        "",
        f"The paper's ratios at its targets ({content['paper'][0]['title']}): {ratios}; its arrows read 1.6 to 1.9.",
    ]
    if all(cell["price_usd_per_device_hour"] is None for cell in content["cells"]):
        lines += ["", "No cost axis: no price per device-hour is configured."]
    return "\n".join(lines) + "\n"


def draw(args: argparse.Namespace, *, number: str, workload: str, title: str) -> None:
    reference = json.loads(args.reference.read_text(encoding="utf-8"))
    comparisons = common.load(args, [workload])
    content = report.report(number, comparisons, [common.paper_values(reference, c) for c in comparisons])
    content["arrows"] = arrow_rows(comparisons)
    common.write_results(
        args.results, draw_figure(comparisons), data_rows(comparisons), content, report_text(title, content)
    )

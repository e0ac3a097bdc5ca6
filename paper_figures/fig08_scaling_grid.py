"""Figure 8: speedup over Sync across batch size and horizon, the law beside traces and wall clock.

    python -m paper_figures.fig08_scaling_grid --runs runs/scaling/embedded --scale embedded --results results/fig8

Contours: the analytical law with parameters from calibration cells. Dots on them: where cells were measured. Scatter:
the law's prediction against the prediction from the cell's release trace (open) and the measured speedup (filled).
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from analysis import scaling_cells
from analysis.scaling_cells import Law
from analysis.scaling_plan import BATCH, CAPACITY, GRIDS, GROUP, TURNS
from paper_figures import common, style, surfaces
from paper_figures.style import OBJECTIVES

TITLE = "Figure 8: predicted and measured speedup over Sync, embedded scale"
SWEEPS = {"batch": ("Trajectories per step", f"turns = {TURNS}"), "horizon": ("Turns per trajectory", f"B = {BATCH}")}
Y = {"batch": "batch", "horizon": "turns"}
LEVELS = np.linspace(1.0, 2.0, 21)


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=TITLE)
    found.add_argument("--runs", type=Path, required=True, help="folder of the cells, as runs/scaling/embedded")
    found.add_argument("--scale", choices=sorted(GRIDS), required=True, help="whose cells are expected")
    found.add_argument("--results", type=Path, required=True, help="folder for the figure, data and reports")
    found.add_argument("--reference", type=Path, default=common.REFERENCE, help="the paper's numbers")
    return found


def draw(args: argparse.Namespace) -> None:
    grid = GRIDS[args.scale]
    cells = grid.cells()
    measured = scaling_cells.measured_rows(args.runs, cells)
    if measured.empty:
        raise ValueError(f"{args.runs} holds no complete cell: measure them with python -m experiments.scaling")
    laws = scaling_cells.calibrate(measured)
    rows = scaling_cells.predicted(measured, laws)
    found = {
        "figure": "8",
        "numbers": {
            "measured": f"f, d and every time: {args.scale} scale, two CPU cores; never B200 rows",
            "predicted": "s by the law, o from the traces of the same cells",
            "paper": "Appendix F.5, 588 configurations on 8 x B200",
        },
        "capacity": CAPACITY,
        "group_size": GROUP,
        "laws": {objective: asdict(law) for objective, law in laws.items()},
        "calibration_cells": int((measured["sweep"] == "calibration").sum()),
        "updates_per_run": grid.updates,
        "core_independence": scaling_cells.core_independence(args.runs, cells),
        "summary": scaling_cells.summary(rows),
        "missing": scaling_cells.missing(args.runs, cells),
        "paper": surfaces.reference(args.reference)["differences_percent"],
    }
    common.write_results(args.results, picture(rows, laws), rows, found, text(found))
    for name in found["missing"]:
        print(f"missing: {name}")


def picture(rows: pd.DataFrame, laws: dict[str, Law]) -> Figure:
    """Contours, batch above horizon, and at their right the scatter of both, for each objective."""
    figure, axes = style.figure(2, 2 * len(laws), figsize=(4.9 * len(laws), 5.6), layout="constrained", squeeze=False)
    for i, (objective, law) in enumerate(laws.items()):
        own = rows[rows["objective"] == objective]
        for row, sweep in enumerate(SWEEPS):
            chosen = own[own["sweep"] == sweep]
            if chosen.empty:
                axes[row, 2 * i].text(0.5, 0.5, f"{sweep}: missing", ha="center")
            else:
                _contour(axes[row, 2 * i], chosen, law, sweep)
            axes[row, 2 * i].set_title(f"{OBJECTIVES[objective]}, {SWEEPS[sweep][1]}", loc="left", fontsize=9)
        places = axes[0, 2 * i + 1].get_gridspec()[:, 2 * i + 1]  # one scatter for both sweeps
        for panel in axes[:, 2 * i + 1]:
            panel.remove()
        _scatter(figure.add_subplot(places), own[own["sweep"].isin(SWEEPS)], OBJECTIVES[objective], legend=i == 0)
    surfaces.colour_bar(figure, figure.axes, low=1.0)
    figure.suptitle(TITLE, fontsize=10, fontweight="bold")
    return figure


def _contour(axes: Axes, cells: pd.DataFrame, law: Law, sweep: str) -> None:
    """The law on (ratio, B or turns) at the cells' mean suffix, and the places of the cells."""
    low, high = min(0.3, cells["ratio"].min() / 1.1), max(4.0, cells["ratio"].max() * 1.1)
    ratios = np.geomspace(low, high, 81)
    least, most = cells[Y[sweep]].min(), cells[Y[sweep]].max()
    heights = np.geomspace(least / 1.1, most * 1.1, 41)
    kappa_w = float(cells["kappa_w"].mean())
    if sweep == "batch":
        surface = law.speedup(batch=heights[:, None], turns=TURNS, ratio=ratios, kappa_w=kappa_w)
    else:
        heights = np.arange(least, max(most, least + 1) + 1)
        surface = np.array([law.speedup(batch=BATCH, turns=int(a), ratio=ratios, kappa_w=kappa_w) for a in heights])
    axes.contourf(ratios, heights, surface, levels=LEVELS, cmap=surfaces.COLOURS)
    axes.contour(ratios, heights, surface, levels=surfaces.LINES, colors="white", linewidths=0.8)
    axes.plot(cells["ratio"], cells[Y[sweep]], ".", color="white", mec="black", mew=0.5, ms=6, clip_on=False)
    axes.set(xscale="log", yscale="log", xlabel="$T_{rollout}$ / $T_{train}$", ylabel=SWEEPS[sweep][0])
    axes.grid(visible=False)
    ticks = [t for t in (0.1, 0.3, 0.5, 1, 2, 4, 10) if low <= t <= high]
    for axis, places in ((axes.xaxis, ticks), (axes.yaxis, sorted(cells[Y[sweep]].unique()))):
        axis.set_major_locator(FixedLocator(places))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter("{x:g}")


def _scatter(axes: Axes, cells: pd.DataFrame, name: str, legend: bool) -> None:
    both = cells[["s", "o", "f"]].to_numpy()
    low, high = (min(0.95, both.min() - 0.03), max(2.05, both.max() + 0.03)) if len(cells) else (0.95, 2.05)
    axes.plot([low, high], [low, high], color="#6f6f6f", lw=0.8, zorder=1)
    axes.scatter(cells["s"], cells["o"], s=16, fc="none", ec="black", lw=0.8, label="from the release trace")
    axes.scatter(cells["s"], cells["f"], s=16, color=style.LOOKS["thundersync"].colour, lw=0, label="measured")
    axes.set(xlim=(low, high), ylim=(low, high), aspect="equal", xlabel="Predicted by the law", ylabel="Speedup")
    axes.set_title(f"{name}, both sweeps", loc="left", fontsize=9)
    if legend:
        axes.legend(fontsize=7.5, loc="upper left", handletextpad=0.2)


def text(found: dict) -> str:
    """report.md."""
    lines = [
        f"# {TITLE}",
        "",
        f"Q = {found['capacity']} trajectories at once, groups of {found['group_size']}, {found['updates_per_run']} "
        f"updates a run. Laws fitted on {found['calibration_cells']} calibration cells that are not "
        "evaluated: "
        + "; ".join(f"{o}: gamma {law['gamma']:.2f}, late share {law['late']:.3f}" for o, law in found["laws"].items())
        + ".",
        "Measured against Sync that folds the same pieces of work; Sync's packed form does less and is named apart.",
        f"A large gamma ({scaling_cells.GAMMAS[-1]:g} is the largest tried) says that service is released late: few",
        "trajectories side by side end at about the same time.",
        "The law is one of many trajectories; where a step has two to eight, the last one alone is a large part of the",
        "work, and e contains that.",
        "",
        "| objective | cells | mean e (%) | max e (%) | mean d (%) | mean abs d (%) | speedup | over packed Sync |",
        "|" + "---|" * 8,
    ]
    for objective, row in found["summary"].items():
        direct = row["mean_speedup_over_direct_sync"]
        lines.append(
            f"| {OBJECTIVES.get(objective, 'both')} | {row['cells']} | {row['mean_e_percent']:.1f} | "
            f"{row['max_e_percent']:.1f} | {row['mean_d_percent']:.1f} | {row['mean_abs_d_percent']:.1f} | "
            f"{row['mean_measured_speedup']:.2f} | {'-' if direct is None else f'{direct:.2f}'} |"
        )
    e, d = found["paper"]["e"], found["paper"]["d"]
    lines += [
        f"| paper, 8 x B200 | 588 | {e['mean']:.1f} | {e['max']:.1f} | {d['mean']:.1f} | | | |",
        "",
        "What d is made of, f / o = (stages side by side) x (unexplained by jobs), means over cells:",
        "",
        "| objective | side by side | unexplained | rollout stretch | learner stretch |",
        "|" + "---|" * 5,
    ]
    for objective, row in found["summary"].items():
        values = " | ".join(f"{value:.3f}" for value in row["gap"].values())
        lines.append(f"| {OBJECTIVES.get(objective, 'both')} | {values} |")
    if found["core_independence"]:
        low, high = found["core_independence"]
        lines += ["", f"While both cores were busy, one kept {low:.0%} to {high:.0%} of its speed (session probes)."]
    lines += ["", *(f"- missing: {name}" for name in found["missing"])]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(common.main(draw, parser()))

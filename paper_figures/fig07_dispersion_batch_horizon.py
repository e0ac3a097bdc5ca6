"""Figure 7. (a) Measured speedup against the dispersion of trajectory durations. (b) Predicted speedup at balance
against trajectories per step and turns per trajectory.

    python -m paper_figures.fig07_dispersion_batch_horizon --sweep runs/scaling/embedded/dispersion.csv \\
        --results results/fig7

Panel a needs the dispersion sweep; where there is none, panel b is drawn alone and the reports say what is missing.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from paper_figures import common, surfaces
from paper_figures.style import LOOKS, OBJECTIVES, figure

TITLE = "Figure 7: speedup over Sync by dispersion of durations (a), and by batch size and horizon at balance (b)"
COLUMNS = ("objective", "dispersion", "predicted_speedup", "measured_speedup")
"""Of the sweep, a row per pair of steps: standard deviation over mean of trajectory durations, and the speedups."""
LOWEST = 1.5
"""Bottom of panel b's colours, as in the paper; GRPO at 64 trajectories lies just below it."""


def parser() -> argparse.ArgumentParser:
    found = surfaces.arguments(TITLE)
    found.add_argument("--sweep", type=Path, help=f"CSV of the dispersion sweep, columns {', '.join(COLUMNS)}")
    return found


def read_sweep(path: Path | None) -> tuple[pd.DataFrame, list[str]]:
    """The sweep, empty where there is none, and what is missing, by name. ValueError for a file of another form."""
    if path is None or not path.exists():
        return pd.DataFrame(columns=COLUMNS), [f"panel a: no dispersion sweep at {path or '--sweep'}"]
    sweep = pd.read_csv(path)
    absent = [name for name in COLUMNS if name not in sweep.columns]
    if absent:
        raise ValueError(f"{path} lacks the column {absent[0]}; a dispersion sweep has {', '.join(COLUMNS)}")
    numbers = sweep[list(COLUMNS[1:])].apply(pd.to_numeric, errors="coerce")
    wrong = np.flatnonzero(~np.isfinite(numbers).all(axis=1))
    if len(wrong):
        raise ValueError(f"{path}, line {wrong[0] + 2}: dispersion and speedups are finite numbers")
    missing = [f"panel a: {o} is not in {path}" for o in OBJECTIVES if o not in set(sweep["objective"])]
    return sweep, missing


def least_squares(x: pd.Series, y: pd.Series) -> dict | None:
    """Straight line y = slope x + intercept; None for fewer than two distinct dispersions."""
    if x.nunique() < 2:
        return None
    slope, intercept = np.polyfit(x, y, 1)
    return {"slope": float(slope), "intercept": float(intercept)}


def draw_dispersion(axes: Axes, sweep: pd.DataFrame, objective: str, paper: list[float]) -> None:
    """Filled: measured pairs; open: predicted from the release trace of the same pair; a fitted line; Sync at 1."""
    look, rows = LOOKS["thundersync"], sweep[sweep["objective"] == objective]
    x = rows["dispersion"]
    axes.scatter(x, rows["predicted_speedup"], s=16, fc="none", ec="#6f6f6f", lw=0.8, label="predicted from the trace")
    axes.scatter(x, rows["measured_speedup"], s=16, color=look.colour, lw=0, label="measured")
    fit = least_squares(x, rows["measured_speedup"])
    if fit:
        ends = np.array([x.min(), x.max()])
        axes.plot(ends, fit["slope"] * ends + fit["intercept"], color=look.colour, lw=1.4, label="least squares")
    axes.axhline(1, color=LOOKS["sync"].colour, ls=LOOKS["sync"].line, lw=1.2, label="Sync")
    theirs = f"paper, 8 x B200: {paper[0]:.2f} to {paper[1]:.2f}"
    axes.set_title(f"(a) {OBJECTIVES[objective]}, embedded scale ({theirs})", loc="left", fontsize=9)
    axes.set(ylabel="Speedup over Sync", xlim=(min(0, x.min()), None))


def draw_cells(axes: Axes, data: pd.DataFrame, objective: str) -> None:
    """One cell per (turns, batch), its speedup written in it."""
    cells = data[data["objective"] == objective].pivot(index="turns", columns="batch", values="predicted_speedup")
    axes.imshow(cells, origin="lower", aspect="auto", cmap=surfaces.COLOURS, vmin=LOWEST, vmax=2)
    for (i, j), value in np.ndenumerate(cells.to_numpy()):
        axes.text(
            j, i, f"{value:.2f}", ha="center", va="center", fontsize=7.5, color="black" if value > 1.8 else "white"
        )
    axes.set_xticks(range(len(cells.columns)), [f"{batch:g}" for batch in cells.columns])
    axes.set_yticks(range(len(cells.index)), [f"{turns:g}" for turns in cells.index])
    axes.grid(visible=False)
    axes.set_title(f"(b) {OBJECTIVES[objective]}, predicted, $T_{{rollout}}/T_{{train}}$ = 1", loc="left", fontsize=9)
    axes.set_ylabel("Turns per trajectory")


def draw_figure(sweep: pd.DataFrame, data: pd.DataFrame, paper: dict) -> Figure:
    measured = [objective for objective in OBJECTIVES if objective in set(sweep["objective"])]
    columns = 2 if measured else 1
    fig, axes = figure(
        len(OBJECTIVES), columns, figsize=(4.6 * columns + 0.8, 6.2), squeeze=False, layout="constrained"
    )
    for row, objective in zip(axes, OBJECTIVES, strict=True):
        draw_cells(row[-1], data, objective)
        if objective in measured:
            draw_dispersion(row[0], sweep, objective, paper["figure_7"]["panel_a"][objective])
        elif measured:
            row[0].text(0.5, 0.5, f"(a) {OBJECTIVES[objective]}: missing", ha="center", transform=row[0].transAxes)
            row[0].set_axis_off()
    axes[-1][-1].set_xlabel("Trajectories per optimizer step")
    if measured:
        axes[-1][0].set_xlabel("Trajectory duration, std / mean")
        drawn = axes[list(OBJECTIVES).index(measured[0])][0]
        fig.legend(*drawn.get_legend_handles_labels(), loc="outside upper left", ncols=4, fontsize=8)
    fig.get_layout_engine().set(w_pad=0.08)
    surfaces.colour_bar(fig, axes[:, -1], low=LOWEST, extend="min")
    return fig


def panel_a(sweep: pd.DataFrame, missing: list[str], paper: dict) -> dict:
    """Measured and trace-predicted speedups of each objective, apart from the paper's."""
    rows = {}
    for objective, group in sweep.groupby("objective"):
        spans = {name: [float(group[name].min()), float(group[name].max())] for name in COLUMNS[1:]}
        rows[str(objective)] = {
            "pairs": len(group),
            **{f"{name}_range": span for name, span in spans.items()},
            "measured_speedup_mean": float(group["measured_speedup"].mean()),
            "measured_fit": least_squares(group["dispersion"], group["measured_speedup"]),
        }
    return {"measured": rows, "missing": missing, "paper": paper["figure_7"]["panel_a"]}


def draw(args: argparse.Namespace) -> None:
    paper = surfaces.reference(args.reference)
    sweep, missing = read_sweep(args.sweep)
    grids = paper["figure_7"]["panel_b"]
    places = {"batches": grids["batches"], "turns": grids["turns"], "ratios": [1], "parameters": paper["parameters"]}
    data = pd.concat([surfaces.evaluate(objective, **places) for objective in OBJECTIVES], ignore_index=True)
    fig = draw_figure(sweep, data, paper)
    found = surfaces.report("7", paper, data.drop(columns="source").to_dict("records"), ratio=1)
    found["numbers"] = surfaces.NUMBERS | {"measured": "panel a, at embedded scale; never B200 rows"}
    found["panel_a"] = panel_a(sweep, missing, paper)
    both = pd.concat([data.assign(panel="b"), sweep.assign(panel="a", source="measured")], ignore_index=True)
    common.write_results(args.results, fig, both, found, report_text(found))
    for sentence in missing:
        print(f"missing: {sentence}")


def report_text(found: dict) -> str:
    panel = found["panel_a"]
    notes = [f"- missing: {sentence}" for sentence in panel["missing"]]
    for objective, row in panel["measured"].items():
        low, high = row["measured_speedup_range"]
        fit = row["measured_fit"]
        line = f", least squares {fit['slope']:+.2f} x dispersion {fit['intercept']:+.2f}" if fit else ""
        theirs = " to ".join(f"{value:.2f}" for value in panel["paper"][objective])
        notes.append(
            f"- panel a, {OBJECTIVES[objective]}: {row['pairs']} pairs measured at embedded scale, speedup "
            f"{low:.2f} to {high:.2f}{line}. Paper, 8 x B200: {theirs}."
        )
    return surfaces.text(TITLE, found, ["This holds for panel b; panel a:", *notes])


if __name__ == "__main__":
    sys.exit(common.main(draw, parser()))

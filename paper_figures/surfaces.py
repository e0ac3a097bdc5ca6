"""The analytical speedup surfaces of Figures 7b, 9 and 10: evaluated from the laws, drawn, and set beside the text.

Nothing here is measured: `thundersync.scaling` at the parameters of Appendix F.5, which `paper_reference.json` holds.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from paper_figures.common import REFERENCE
from paper_figures.style import OBJECTIVES, figure
from thundersync.scaling import release_laws
from thundersync.scaling.tail import grid
from thundersync.scaling.waves import predicted_speedup

COLOURS = "viridis"
LINES = (1.3, 1.5, 1.7, 1.9)
"""Contours, drawn on the colour bar too."""
RATIO_TICKS = (0.3, 0.5, 1, 2, 4)
NUMBERS = {
    "predicted": "Equations 19, 22, 24, 26 and 28 at the parameters of Appendix F.5",
    "paper": "what the paper's text states of the same surfaces",
    "measured": "nothing in this figure is measured",
}
PEAK_RATIOS = np.concatenate([np.geomspace(0.3, 4, 51), np.arange(0.45, 0.6, 0.001)])
"""Where a peak over the ratio is looked for, finely where the text places those of 64 trajectories per step."""


def arguments(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--results", type=Path, required=True, help="folder for the figure, data and reports")
    parser.add_argument("--reference", type=Path, default=REFERENCE, help="the paper's numbers and parameters")
    parser.add_argument("--points", type=int, default=61, help="points per axis of a surface, 61 by default")
    return parser


def reference(path: Path = REFERENCE) -> dict:
    """The section `scaling` of the paper's numbers."""
    return json.loads(path.read_text(encoding="utf-8"))["scaling"]


def law(objective: str, turns: int, parameters: dict, u: np.ndarray) -> np.ndarray:
    """F-(u) of the paper's release policy of an objective; GRPO's does not depend on the number of turns."""
    if objective == "grpo":
        return release_laws.grpo(u, m=parameters["m"], beta=parameters["beta"], gamma=parameters["gamma"])
    return release_laws.opd(u, turns=turns, delta=parameters["delta"], gamma=parameters["gamma"])


def evaluate(
    objective: str, *, batches: Sequence[float], turns: Sequence[int], ratios: Sequence[float], parameters: dict
) -> pd.DataFrame:
    """One row per (turns, batch, ratio): the predicted speedup over Sync."""
    u, rows = grid(), []
    at = {"batch": np.asarray(batches, dtype=float)[:, None], "ratio": np.asarray(ratios, dtype=float)}
    fixed = {"capacity": parameters["capacity"], "kappa_w": parameters["kappa_w"]}
    same_for_all_turns = None
    for a in turns:
        if same_for_all_turns is None or objective != "grpo":
            same_for_all_turns = predicted_speedup(u, law(objective, a, parameters, u), **at, **fixed)
        cells = pd.MultiIndex.from_product([batches, ratios], names=["batch", "ratio"])
        rows.append(pd.DataFrame({"turns": a, "predicted_speedup": same_for_all_turns.ravel()}, cells).reset_index())
    found = pd.concat(rows, ignore_index=True)
    found.insert(0, "objective", objective)
    return found.assign(source="predicted")


def whole_numbers(low: int, high: int, points: int) -> list[int]:
    """About evenly spaced in the logarithm, each once, both ends included."""
    return sorted({round(x) for x in np.geomspace(low, high, points)})


def ratio_axis(low: float, high: float, points: int) -> np.ndarray:
    """Evenly spaced in the logarithm, and balance itself, where the surfaces have their ridge."""
    return np.unique([*np.geomspace(low, high, points), 1.0])


def draw_grid(data: pd.DataFrame, *, column: str, y: str, y_label: str, y_ticks: Sequence[int], title: str) -> Figure:
    """A row per objective, a panel per value of `column`; ratio across, `y` up, both logarithmic."""
    values = sorted(data[column].unique())
    fig, axes = figure(
        len(OBJECTIVES), len(values), figsize=(2.55 * len(values) + 1.2, 5.4), sharex=True, sharey=True,
        squeeze=False, layout="constrained",
    )  # fmt: skip
    for row, (objective, name) in zip(axes, OBJECTIVES.items(), strict=True):
        for panel, value in zip(row, values, strict=True):
            chosen = data[(data["objective"] == objective) & (data[column] == value)]
            _draw_surface(panel, chosen.pivot(index=y, columns="ratio", values="predicted_speedup"))
            unit = "trajectories/step" if column == "batch" else "turns"
            panel.set_title(f"{name}, {value:g} {unit}", loc="left", fontsize=9)
    for panel in axes[-1]:
        panel.set_xlabel("$T_{rollout}$ / $T_{train}$")
        panel.xaxis.set_major_locator(FixedLocator(RATIO_TICKS))
        panel.set_xticklabels([f"{tick:g}" for tick in RATIO_TICKS])
        panel.xaxis.set_minor_locator(NullLocator())
    for panel in axes[:, 0]:
        panel.set_ylabel(y_label)
        panel.set_yticks(y_ticks, [str(tick) for tick in y_ticks])
        panel.yaxis.set_minor_locator(NullLocator())
    colour_bar(fig, axes, low=1.0, lines=LINES)
    fig.suptitle(title, fontsize=10, fontweight="bold")
    return fig


def _draw_surface(axes: Axes, surface: pd.DataFrame) -> None:
    x, y = surface.columns.to_numpy(), surface.index.to_numpy()
    axes.set(xscale="log", yscale="log")
    axes.grid(visible=False)
    axes.pcolormesh(x, y, surface.to_numpy(), shading="gouraud", cmap=COLOURS, vmin=1, vmax=2, rasterized=True)
    axes.contour(x, y, surface.to_numpy(), levels=LINES, colors="white", linewidths=0.8)


def colour_bar(
    fig: Figure, axes: np.ndarray | list[Axes], low: float, lines: Sequence[float] = (), extend: str = "neither"
) -> None:
    scale = ScalarMappable(Normalize(low, 2.0), COLOURS)
    bar = fig.colorbar(scale, ax=axes, label="Predicted speedup over Sync", extend=extend, pad=0.015, aspect=30)
    for line in lines:
        bar.ax.axhline(line, color="white", lw=1.2)


def statements(paper: dict, ratio: float | None = None) -> list[dict]:
    """What the text states of the surfaces, and what they give at the same places: `[lowest, highest]` speedup.

    `ratio`: only the statements about this one.
    """
    chosen = (stated for stated in paper["statements"] if ratio is None or stated["ratios"] == [ratio])
    return [_compare(stated, paper["parameters"]) for stated in chosen]


def _compare(stated: dict, parameters: dict) -> dict:
    best = stated["ratios"] == "best"
    ratios = PEAK_RATIOS if best else stated["ratios"]
    objectives = tuple(OBJECTIVES) if stated["objective"] == "both" else (stated["objective"],)
    places = {"batches": stated["batches"], "turns": stated["turns"], "ratios": ratios, "parameters": parameters}
    data = pd.concat([evaluate(objective, **places) for objective in objectives], ignore_index=True)
    found = {"where": stated["where"], **{key: stated[key] for key in ("objective", "batches", "turns", "ratios")}}
    if best:
        cells = data.groupby(["objective", "batch", "turns"])["predicted_speedup"]
        data = data.loc[cells.idxmax()]
        found["predicted_best_ratio"] = [float(data["ratio"].min()), float(data["ratio"].max())]
        found["paper_best_ratio"] = stated["best_ratio"]
    speedups = data["predicted_speedup"]
    return found | {"predicted": [float(speedups.min()), float(speedups.max())], "paper": stated["speedup"]}


def report(number: str, paper: dict, panels: list[dict], ratio: float | None = None) -> dict:
    """report.json: what was evaluated, and the statements of the paper at `ratio` (all) beside it."""
    return {
        "figure": number,
        "numbers": NUMBERS,
        "parameters": paper["parameters"],
        "predicted": {"panels": panels},
        "statements": statements(paper, ratio),
    }


def peaks(data: pd.DataFrame, column: str) -> list[dict]:
    """The largest speedup of each panel, and where."""
    best = data.loc[data.groupby(["objective", column])["predicted_speedup"].idxmax()]
    keep = ["objective", column, "ratio", "batch" if column == "turns" else "turns", "predicted_speedup"]
    return best[keep].to_dict("records")


def decimals(value: float) -> int:
    """To how many the paper gives a speedup: two, sometimes three."""
    return max(2, len(str(value).partition(".")[2]))


def statement_table(rows: list[dict]) -> list[str]:
    """Ours beside the paper's, to the digits that the paper gives."""
    lines = ["| objective | trajectories/step | turns | ratio | evaluated here | the paper's text |", "|" + "---|" * 6]
    for row in rows:
        span = [", ".join(f"{value:g}" for value in row[key]) for key in ("batches", "turns")]
        ratio = row["ratios"]
        if ratio == "best":
            low, high = row["predicted_best_ratio"]
            ratio = f"best: {low:.3f} to {high:.3f} (paper: near {row['paper_best_ratio']:g})"
        else:
            ratio = ", ".join(f"{value:g}" for value in ratio)
        ours = " to ".join(dict.fromkeys(f"{value:.3f}" for value in row["predicted"]))
        theirs = " to ".join(f"{value:.{decimals(value)}f}" for value in dict.fromkeys(row["paper"]))
        name = OBJECTIVES.get(row["objective"], "both")
        lines.append(f"| {name} | {span[0]} | {span[1]} | {ratio} | {ours} | {theirs} |")
    return lines


def text(title: str, found: dict, notes: Sequence[str]) -> str:
    """report.md of a figure that is evaluated from the equations."""
    given = ", ".join(f"{name} = {value:g}" for name, value in found["parameters"].items())
    lines = [f"# {title}", "", f"Evaluated from the equations, nothing measured: {given}.", *notes, ""]
    return "\n".join(lines + statement_table(found["statements"])) + "\n"

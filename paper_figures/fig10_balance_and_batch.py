"""Figure 10: predicted speedup against the rollout-to-training ratio and the trajectories of a step, by horizon.

python -m paper_figures.fig10_balance_and_batch --results results/fig10
"""

from __future__ import annotations

import argparse
import sys

import pandas as pd

from paper_figures import common, surfaces
from paper_figures.style import OBJECTIVES

TITLE = "Figure 10: speedup over Sync by stage balance and batch size, at fixed turns per trajectory"
TURNS = (10, 30, 100, 300)
NOTES = (
    "The paper names the ends of its row of panels, 10 and 300 turns; the two between them are our choice. Below 128",
    "trajectories per step the learner's service shrinks with occupancy, so balance moves to smaller ratios.",
)


def draw(args: argparse.Namespace) -> None:
    paper = surfaces.reference(args.reference)
    low, high = paper["figures_9_10"]["ratios"]
    grid = paper["figure_8_grids"]["batches"]
    batches = sorted({*surfaces.whole_numbers(min(grid), max(grid), args.points), *grid})
    ratios = surfaces.ratio_axis(low, high, args.points)
    places = {"batches": batches, "turns": TURNS, "ratios": ratios, "parameters": paper["parameters"]}
    data = pd.concat([surfaces.evaluate(objective, **places) for objective in OBJECTIVES], ignore_index=True)
    fig = surfaces.draw_grid(
        data, column="turns", y="batch", y_label="Trajectories per step", y_ticks=(64, 256, 1024), title=TITLE
    )
    found = surfaces.report("10", paper, surfaces.peaks(data, "turns"))
    common.write_results(args.results, fig, data, found, surfaces.text(TITLE, found, NOTES))


if __name__ == "__main__":
    sys.exit(common.main(draw, surfaces.arguments(TITLE)))

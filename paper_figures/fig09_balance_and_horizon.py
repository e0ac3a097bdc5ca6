"""Figure 9: predicted speedup against the rollout-to-training ratio and the turns of a trajectory, by batch size.

python -m paper_figures.fig09_balance_and_horizon --results results/fig9
"""

from __future__ import annotations

import argparse
import sys

import pandas as pd

from paper_figures import common, surfaces
from paper_figures.style import OBJECTIVES

TITLE = "Figure 9: speedup over Sync by stage balance and horizon, at fixed trajectories per step"
BATCHES = (256, 512, 1024, 2048)
NOTES = ("The paper names the ends of its row of panels, 256 and 2,048; the two between them are our choice.",)


def draw(args: argparse.Namespace) -> None:
    paper = surfaces.reference(args.reference)
    (low, high), (fewest, most) = paper["figures_9_10"]["ratios"], paper["figures_9_10"]["turns"]
    turns, ratios = surfaces.whole_numbers(fewest, most, args.points), surfaces.ratio_axis(low, high, args.points)
    places = {"batches": BATCHES, "turns": turns, "ratios": ratios, "parameters": paper["parameters"]}
    data = pd.concat([surfaces.evaluate(objective, **places) for objective in OBJECTIVES], ignore_index=True)
    fig = surfaces.draw_grid(
        data, column="batch", y="turns", y_label="Turns per trajectory", y_ticks=(10, 30, 100, 300), title=TITLE
    )
    found = surfaces.report("9", paper, surfaces.peaks(data, "batch"))
    common.write_results(args.results, fig, data, found, surfaces.text(TITLE, found, NOTES))


if __name__ == "__main__":
    sys.exit(common.main(draw, surfaces.arguments(TITLE)))

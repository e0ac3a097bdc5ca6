"""Figure 1: pass@3 on the SWE workload and mean training reward against device-hours (and cost), four schedules.

python -m paper_figures.fig01_cost_swe --runs runs/fig5/embedded --results results/fig1
"""

from __future__ import annotations

import sys
from functools import partial

from paper_figures import common, curves

TITLE = "Figure 1: pass@3 on micro_swe and mean training reward along the training clock"
draw = partial(curves.draw, number="1", workload="micro_swe", title=TITLE)

if __name__ == "__main__":
    sys.exit(common.main(draw, common.arguments(TITLE)))

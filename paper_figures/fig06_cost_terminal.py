"""Figure 6: pass@3 on the terminal workload and mean training reward against device-hours (and cost), four schedules.

python -m paper_figures.fig06_cost_terminal --runs runs/fig5/embedded --results results/fig6
"""

from __future__ import annotations

import sys
from functools import partial

from paper_figures import common, curves

TITLE = "Figure 6: pass@3 on micro_terminal and mean training reward along the training clock"
draw = partial(curves.draw, number="6", workload="micro_terminal", title=TITLE)

if __name__ == "__main__":
    sys.exit(common.main(draw, common.arguments(TITLE)))

"""Table 1: full fine-tuning efficiency across models. python -m paper_figures.table01_models --help"""

from __future__ import annotations

import sys
from functools import partial

from paper_figures import common, efficiency, efficiency_tables

TITLE = "Table 1: full fine-tuning efficiency across models"
NOTE = "Every weight is trained in the measured runs. The paper's two models on 8 x B200 stand below."
draw = partial(efficiency_tables.draw, name="table1", title=TITLE, note=NOTE, predict=efficiency_tables.perfect_overlap)

if __name__ == "__main__":
    sys.exit(common.main(draw, efficiency.arguments(TITLE), files=efficiency_tables.FILES))

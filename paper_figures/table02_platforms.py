"""Table 2: full fine-tuning efficiency across platforms. python -m paper_figures.table02_platforms --help"""

from __future__ import annotations

import sys
from functools import partial

from paper_figures import common, efficiency, efficiency_tables

TITLE = "Table 2: full fine-tuning efficiency across platforms"
NOTE = "The measured rows are one platform, the CPU cores named; it stands for neither of the paper's two."
draw = partial(efficiency_tables.draw, name="table2", title=TITLE, note=NOTE, predict=efficiency_tables.perfect_overlap)

if __name__ == "__main__":
    sys.exit(common.main(draw, efficiency.arguments(TITLE), files=efficiency_tables.FILES))

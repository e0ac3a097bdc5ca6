"""The made-up campaign of tests/analysis serves the figure tests too."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "analysis"))

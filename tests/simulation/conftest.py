"""The made-up records of tests/analysis serve the trace tests too."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "analysis"))

"""The hand-made records of tests/ serve here too."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

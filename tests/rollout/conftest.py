"""One torch thread, as on a replica; and the folder's own helper module importable."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
torch.set_num_threads(1)

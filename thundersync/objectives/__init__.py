"""Streamable objectives, one file each; pure arithmetic without torch."""

from thundersync.objectives.grpo import GRPO
from thundersync.objectives.objective import Objective
from thundersync.objectives.opd import OPD

__all__ = ["GRPO", "OPD", "Objective"]

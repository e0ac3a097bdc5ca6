"""Streamable objectives, one file each; pure arithmetic without torch."""

from thundersync.objectives.dr_grpo import DrGRPO
from thundersync.objectives.grpo import GRPO
from thundersync.objectives.objective import Objective
from thundersync.objectives.opd import OPD
from thundersync.objectives.reinforce import REINFORCE
from thundersync.objectives.rloo import RLOO

__all__ = ["GRPO", "OPD", "REINFORCE", "RLOO", "DrGRPO", "Objective"]

"""The training clock (Appendix E.3): seconds since the first training rollout request, the same in every process."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(slots=True)
class TrainingClock:
    """All processes of a host share CLOCK_MONOTONIC, so that an epoch on it is a common time base (Appendix B.2)."""

    epoch: float = 0.0

    def start(self, elapsed: float = 0.0) -> None:
        """The clock reads `elapsed` now; a resumed run goes on where its checkpoint was published."""
        self.epoch = time.monotonic() - elapsed

    def now(self) -> float:
        return time.monotonic() - self.epoch

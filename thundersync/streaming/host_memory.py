"""Host memory of running sums, measured on the buffers themselves.

    sums <= bytes_per_number (2k + 1 + u) P        k open groups, u sources that wait for their reward, P parameters

Two sums for each open group of a two-basis objective, one for the batch, one for each waiting source. Sums of boundary
adjoints grow with the tokens, not with P, and are counted apart.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class HostMemory:
    """Bytes; `peak_` is the most since the batch was opened."""

    sums: int = 0
    adjoints: int = 0
    groups: int = 0
    """Open groups that hold sums of their own: k."""
    peak_sums: int = 0
    peak_adjoints: int = 0
    peak_groups: int = 0

    def record(self, *, sums: int, adjoints: int, groups: int) -> None:
        """What is live now."""
        self.sums, self.adjoints, self.groups = sums, adjoints, groups
        self.peak_sums = max(self.peak_sums, sums)
        self.peak_adjoints = max(self.peak_adjoints, adjoints)
        self.peak_groups = max(self.peak_groups, groups)


def sums_bound(parameters: int, open_groups: int, waiting_sources: int = 0, bytes_per_number: int = 4) -> int:
    """The most bytes that running sums take: 4 (2k + 1 + u) P in FP32."""
    return bytes_per_number * (2 * open_groups + 1 + waiting_sources) * parameters

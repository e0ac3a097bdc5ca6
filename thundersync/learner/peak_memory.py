"""Most memory that a learner process holds during an update (Appendix B.4), by the counter of its device."""

from __future__ import annotations

from pathlib import Path

import torch

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class PeakMemory:
    """On a GPU what the tensor allocator reports; elsewhere the resident set of the whole process, which Linux keeps.

    The two are different things, so every value carries the name of its counter.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._known = device.type == "cuda"

    def reset(self) -> None:
        """Starts the measurement: the peak is what is held now."""
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
            return
        try:
            CLEAR.write_text("5")  # resets the process's high-water mark, and nothing else
            self._known = True
        except OSError:
            self._known = False  # no Linux, or not allowed: a mark of the process's whole life is no update's peak

    def read(self) -> tuple[str, int] | None:
        """(counter, bytes) since `reset`; None where no counter is known."""
        if not self._known:
            return None
        if self._device.type == "cuda":
            return "cuda_max_memory_allocated", torch.cuda.max_memory_allocated(self._device)
        line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
        return "resident_set", int(line.split()[1]) * 1024

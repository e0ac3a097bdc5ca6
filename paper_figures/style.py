"""One look for all figures: each schedule keeps its colour, marker, line and hatch, and reads in black and white."""

from __future__ import annotations

from dataclasses import dataclass

import matplotlib

matplotlib.use("Agg")  # figures are files; no display is needed
import matplotlib.pyplot as plt  # noqa: E402


@dataclass(frozen=True, slots=True)
class Look:
    label: str
    colour: str
    marker: str
    line: str
    hatch: str


LOOKS = {
    "sync": Look("Sync", "#8a8a8a", "s", "--", "///"),
    "async": Look("Async", "#e69f00", "^", ":", "..."),
    "fully_async": Look("Fully Async", "#c1578f", "D", "-.", "xx"),
    "thundersync": Look("ThunderSync", "#0a5fa3", "o", "-", ""),
}
OBJECTIVES = {"grpo": "GRPO", "opd": "OPD"}
RCPARAMS = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "hatch.linewidth": 0.6,
    "pdf.fonttype": 42,
    "savefig.dpi": 200,
}
PAPER = {"color": "black", "marker": "d", "mfc": "white", "ms": 5, "ls": "none", "zorder": 5}
"""How the paper's own values are drawn, wherever they stand beside ours."""


def figure(*args, **kwargs):
    """`plt.subplots` with this look."""
    plt.rcParams.update(RCPARAMS)
    return plt.subplots(*args, **kwargs)


@dataclass(frozen=True, slots=True)
class TimeUnit:
    """Device-hours where they read well, training seconds where hours would be tiny."""

    label: str
    short: str
    per_second: float

    def of(self, seconds: float) -> float:
        return seconds * self.per_second


def time_unit(budget_seconds: float, devices: int) -> TimeUnit:
    if budget_seconds * devices >= 3600:
        return TimeUnit("Device-hours", "device-h", devices / 3600)
    return TimeUnit(f"Training seconds ({devices} device{'s' if devices > 1 else ''})", "s", 1.0)

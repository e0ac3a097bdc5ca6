"""Which configurations Figures 7a and 8 measure: cells of batch, turns and model width, at two scales.

    batch      B trajectories per step at fixed turns        horizon      turns at fixed B
    dispersion spread of durations near balance              calibration  cells that fit the laws and are not evaluated

Rollout capacity is Q trajectories everywhere. The width of the policy's MLPs sets what a gradient costs beside a
rollout; the ratio of a cell is what its stages then measure.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

OBJECTIVES = ("grpo", "opd")
CAPACITY = 4
"""Q: decode slots and sandboxes."""
GROUP = 2
"""m: trajectories per prompt."""
SPREAD = 0.5
"""Standard deviation over mean of the number of turns, where it is not what is varied."""
TURNS, BATCH = 4, 8
"""Fixed turns of the batch sweep, fixed batch of the horizon sweep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One paired configuration, measured once."""

    sweep: str
    objective: str
    batch: int
    """B: trajectories per optimizer step."""
    turns: int
    """Mean turns of a trajectory."""
    width: int
    """Units of each MLP of the policy."""
    spread: float = SPREAD
    repetition: int = 0

    @property
    def name(self) -> str:
        """Folder of the cell's runs."""
        where = f"batch{self.batch}-turns{self.turns}-width{self.width}-spread{self.spread:g}"
        return f"{self.objective}-{self.sweep}-{where}-rep{self.repetition}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The cells of a scale."""

    batches: tuple[int, ...]
    turns: tuple[int, ...]
    widths: dict[str, tuple[int, ...]]
    """By objective: rollout-bound, near balance, learner-bound."""
    spreads: tuple[float, ...]
    repetitions: int
    calibration: tuple[tuple[int, int], ...]
    """(B, turns), at every width."""
    updates: int
    warmup: int

    def cells(self) -> list[Cell]:
        """In the order in which they are measured: calibration first, then all cells of one repetition."""
        found = [
            Cell(sweep="calibration", objective=o, batch=b, turns=a, width=width)
            for o in OBJECTIVES
            for b, a in self.calibration
            for width in self.widths[o]
        ]
        for repetition, objective in product(range(self.repetitions), OBJECTIVES):
            own = {"objective": objective, "repetition": repetition}
            middle = self.widths[objective][len(self.widths[objective]) // 2]
            for width in self.widths[objective]:
                found += [Cell(sweep="batch", batch=b, turns=TURNS, width=width, **own) for b in self.batches]
                found += [Cell(sweep="horizon", batch=BATCH, turns=a, width=width, **own) for a in self.turns]
            found += [
                Cell(sweep="dispersion", batch=BATCH, turns=TURNS, width=middle, spread=spread, **own)
                for spread in self.spreads
            ]
        return found


GRIDS = {
    "embedded": Grid(
        batches=(4, 8, 16, 24),
        turns=(2, 3, 6, 10),
        widths={"grpo": (480, 2048, 6144), "opd": (480, 1024, 2560)},
        spreads=(0.0, 0.3, 0.6, 0.9, 1.2),
        repetitions=2,
        calibration=((8, 5), (12, 4)),
        updates=3,
        warmup=1,
    ),
    "smoke": Grid(
        batches=(4, 8),
        turns=(2, 6),
        widths={"grpo": (2048,), "opd": (1024,)},
        spreads=(0.0, 0.9),
        repetitions=1,
        calibration=((8, 5),),
        updates=2,
        warmup=1,
    ),
}

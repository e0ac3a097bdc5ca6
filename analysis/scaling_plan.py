"""Which configurations Figures 7a and 8 measure: cells of batch, turns and model width, at two scales.

    batch      B trajectories per step at fixed turns        horizon      turns at fixed B
    dispersion spread of durations near balance              calibration  cells that fit the laws and are not evaluated

Rollout capacity is Q trajectories everywhere. The load, width of the policy's MLPs and length of what commands print,
sets what a gradient costs beside a rollout; the ratio of a cell is what its stages then measure.
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
TURNS, BATCH = 3, 4
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
    load: tuple[int, int]
    """Units of each MLP of the policy, and tokens that a command prints: what a gradient costs beside a rollout."""
    spread: float = SPREAD
    repetition: int = 0

    @property
    def name(self) -> str:
        """Folder of the cell's runs."""
        where = f"batch{self.batch}-turns{self.turns}-load{self.load[0]}x{self.load[1]}-spread{self.spread:g}"
        return f"{self.objective}-{self.sweep}-{where}-rep{self.repetition}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The cells of a scale."""

    batches: tuple[int, ...]
    turns: tuple[int, ...]
    loads: dict[str, tuple[tuple[int, int], ...]]
    """By objective: rollout-bound, near balance, learner-bound."""
    spreads: tuple[float, ...]
    repetitions: int
    calibration: tuple[tuple[int, int], ...]
    """(B, turns), at every load."""
    updates: int
    """Of each run; the first is no slower than the others in a session that is warm."""

    def cells(self) -> list[Cell]:
        """In the order in which they are measured: calibration first, then all cells of one repetition."""
        found = [
            Cell(sweep="calibration", objective=o, batch=b, turns=a, load=load)
            for o in OBJECTIVES
            for b, a in self.calibration
            for load in self.loads[o]
        ]
        for repetition, objective in product(range(self.repetitions), OBJECTIVES):
            own = {"objective": objective, "repetition": repetition}
            middle = self.loads[objective][len(self.loads[objective]) // 2]
            for load in self.loads[objective]:
                found += [Cell(sweep="batch", batch=b, turns=TURNS, load=load, **own) for b in self.batches]
                found += [Cell(sweep="horizon", batch=BATCH, turns=a, load=load, **own) for a in self.turns]
            found += [
                Cell(sweep="dispersion", batch=BATCH, turns=TURNS, load=middle, spread=spread, **own)
                for spread in self.spreads
            ]
        return found


GRIDS = {
    "embedded": Grid(
        batches=(2, 4, 6, 8),
        turns=(2, 4, 5, 6),
        loads={"grpo": ((480, 40), (1536, 320), (3072, 480)), "opd": ((480, 0), (1536, 240), (3072, 360))},
        spreads=(0.0, 0.4, 0.8, 1.2),
        repetitions=2,
        calibration=((10, 3),),
        updates=2,
    ),
    "smoke": Grid(
        batches=(4, 8),
        turns=(2, 4),
        loads={"grpo": ((1536, 320),), "opd": ((1536, 240),)},
        spreads=(0.8,),
        repetitions=1,
        calibration=((6, 3),),
        updates=2,
    ),
}

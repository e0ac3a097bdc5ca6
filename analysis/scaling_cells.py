"""Measured cells to rows: R, L, P, the three speedups of a cell, and where they differ (Appendix F.5, Equation 29).

    s   the release law at the cell's measured ratio, waves and suffix; its parameters come from calibration cells
    o   the ThunderSync run's own readiness and service times through Equation 14
    f   measured: Sync's step over ThunderSync's, both folding the same pieces of work (reduction `sums`)

`f_direct` is against Sync in its best form (reduction `direct`, which packs and does less), where it was run too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.scaling_plan import CAPACITY, GROUP, Cell
from thundersync.records import RunDirectory, TrajectoryRecord, UpdateRecord
from thundersync.scaling import release_laws
from thundersync.scaling.replay import law_error, replay, stages
from thundersync.scaling.run_records import read_run_trace
from thundersync.scaling.tail import grid
from thundersync.scaling.trace import WHOLE, Trace
from thundersync.scaling.waves import predicted_speedup
from thundersync.slots import stays

GAMMAS = np.arange(0, 8.001, 0.05)
"""Service exponents that are tried."""
LEGS = ("sync", "thundersync", "sync_direct")
"""Runs of a cell; the last one in some repetitions only."""


def missing(root: Path, cells: Iterable[Cell]) -> list[str]:
    """Names of the cells whose two runs have not both ended."""
    return [c.name for c in cells if not all(RunDirectory(root / c.name / leg).ended for leg in LEGS[:2])]


def measured_rows(root: Path, cells: Sequence[Cell]) -> pd.DataFrame:
    """One row per complete cell, without the laws' prediction. Raises RecordError for damaged records."""
    absent = set(missing(root, cells))
    return pd.DataFrame([_row(root / c.name, c) for c in cells if c.name not in absent])


def _row(path: Path, cell: Cell) -> dict:
    trace = read_run_trace(path / "thundersync")
    pair = replay(read_run_trace(path / "sync"), trace)
    mine, direct = pair.streamed, path / "sync_direct"
    best = stages(read_run_trace(direct).steps).measured if RunDirectory(direct).ended else np.nan
    waves = max(1.0, cell.batch / CAPACITY)
    return asdict(cell) | {
        "rollout_s": mine.rollout,
        "learner_s": mine.learner,
        "suffix_s": mine.suffix,
        "sync_step_s": pair.sync.measured,
        "thundersync_step_s": mine.measured,
        "ratio": min(1.0, cell.batch / CAPACITY) * mine.rollout / mine.learner,  # Equation 28 read backwards
        "kappa_w": mine.suffix * waves / mine.rollout,
        "o": pair.predicted,
        "f": pair.measured,
        "f_direct": best / mine.measured,
        "d": pair.gap,
        "side_by_side": pair.side_by_side,
        "unexplained": pair.unexplained,
        **{f"stretch_{name}": value for name, value in pair.stretch().items()},
        "late_share": late_share(trace),
        "dispersion": dispersion(path / "thundersync"),
    }


def late_share(trace: Trace) -> float:
    """Share of learner service that waits for a whole group (GRPO's beta), or for its trajectory (OPD's delta)."""
    jobs = [job for step in trace.steps for job in step.jobs]
    by_turns = trace.unit == "turn"
    late = [j.service for j in jobs if (j.turn if by_turns else j.trajectory) == WHOLE]
    return sum(late) / sum(job.service for job in jobs)


def dispersion(path: Path) -> float:
    """Standard deviation over mean of trajectory durations, from start in a free slot to reward."""
    directory = RunDirectory(path)
    found = stays(directory.run(), directory.read(UpdateRecord), directory.read(TrajectoryRecord))
    durations = [stay.trajectory.reward_at - stay.started_at for stay in found]
    return float(np.std(durations) / np.mean(durations))


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """The release law of an objective (Equations 22 and 24) with fitted parameters."""

    objective: str
    gamma: float
    """Service exponent."""
    late: float
    """Closure fraction beta of GRPO, deferred fraction delta of OPD."""

    def released(self, u: np.ndarray, turns: int) -> np.ndarray:
        """F-(u)."""
        if self.objective == "grpo":
            return release_laws.grpo(u, m=GROUP, beta=self.late, gamma=self.gamma)
        return release_laws.opd(u, turns=turns, delta=self.late, gamma=self.gamma)

    def speedup(self, *, batch, turns: int, ratio, kappa_w: float) -> np.ndarray:
        """s at the cell's place (Equations 19, 26 and 28); arrays of `batch` and `ratio` broadcast."""
        u = grid(2001)
        where = {"batch": np.asarray(batch, float), "ratio": np.asarray(ratio, float)}
        return predicted_speedup(u, self.released(u, turns), capacity=CAPACITY, kappa_w=kappa_w, **where)


def calibrate(rows: pd.DataFrame) -> dict[str, Law]:
    """Fits each objective's law to its calibration cells: the late share is measured, gamma fits o best.

    Raises ValueError when an objective has no calibration cell.
    """
    laws = {}
    for objective in sorted(set(rows["objective"])):
        own = rows[(rows["objective"] == objective) & (rows["sweep"] == "calibration")]
        if own.empty:
            raise ValueError(f"{objective} has no calibration cell: its law has no parameters")
        late = float(own["late_share"].mean())

        def miss(gamma: float, objective=objective, own=own, late=late) -> float:
            law = Law(objective=objective, gamma=gamma, late=late)
            return sum((row.o - _at(law, row)) ** 2 for row in own.itertuples())

        laws[objective] = Law(objective=objective, gamma=float(min(GAMMAS, key=miss)), late=late)
    return laws


def predicted(rows: pd.DataFrame, laws: dict[str, Law]) -> pd.DataFrame:
    """Adds the columns s and e; calibration cells are left out, for they are not evaluated."""
    evaluated = rows[rows["sweep"] != "calibration"].reset_index(drop=True)
    s = [_at(laws[row.objective], row) for row in evaluated.itertuples()]
    e = [law_error(o, own) for o, own in zip(evaluated["o"], s, strict=True)]
    return evaluated.assign(s=s, e=e)


def _at(law: Law, row) -> float:
    return float(law.speedup(batch=[row.batch], turns=row.turns, ratio=[row.ratio], kappa_w=row.kappa_w)[0])


def dispersion_sweep(rows: pd.DataFrame) -> pd.DataFrame:
    """What Figure 7a is drawn from: objective, dispersion, predicted_speedup (o), measured_speedup (f)."""
    own = rows[rows["sweep"] == "dispersion"]
    return own[["objective", "dispersion", "o", "f"]].rename(
        columns={"o": "predicted_speedup", "f": "measured_speedup"}
    )


def summary(rows: pd.DataFrame) -> dict:
    """Means of Equation 29 over the evaluated cells of Figure 8, and what the gap d is made of."""
    cells = rows[rows["sweep"].isin(("batch", "horizon"))]
    return {
        objective: {
            "cells": len(own),
            "mean_e_percent": float(own["e"].mean()),
            "max_e_percent": float(own["e"].max()),
            "mean_d_percent": float(own["d"].mean()),
            "mean_abs_d_percent": float(own["d"].abs().mean()),
            "mean_measured_speedup": float(own["f"].mean()),
            "mean_speedup_over_direct_sync": finite(own["f_direct"].mean()),
            "gap": {
                "stages_side_by_side": float(own["side_by_side"].mean()),
                "unexplained_by_jobs": float(own["unexplained"].mean()),
                "rollout_stretch": float(own["stretch_rollout"].mean()),
                "learner_stretch": float(own["stretch_learner"].mean()),
            },
            "ratio": [float(own["ratio"].min()), float(own["ratio"].max())],
        }
        for objective, own in [*cells.groupby("objective"), ("both", cells)]
        if len(own)
    }


def finite(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def core_independence(root: Path, cells: Iterable[Cell]) -> list[float]:
    """What the sessions measured at their start, over the cells' runs: smallest and largest."""
    found = [
        json.loads(path.read_text())["core_independence"]
        for cell in cells
        if (path := root / cell.name / "thundersync" / "run.json").exists()
    ]
    return [min(found), max(found)] if found else []

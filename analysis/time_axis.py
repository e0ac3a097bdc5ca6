"""The checkpoint time axis of Appendix E.3.

The common axis is the union of the runs' publication times. At each time every run contributes its latest published and
evaluated checkpoint, never a future one; the mean over runs is the displayed step curve. The first crossing of a target
and the value at the budget are read off this same curve.

Shape legend: R = runs (seeds), T = times of the axis, M = evaluation tasks, B = bootstrap replicates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

ROUNDING = 1e-9
"""Percentage points by which a mean of exact scores may miss a target through floating point alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredCheckpoint:
    published_at: float
    """Seconds on the training clock."""
    score_M: np.ndarray
    """float64 in [0, 1]: estimate for each evaluation task."""
    updates: int
    trajectories: int
    generated_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCurve:
    """Right-continuous step functions on a common axis."""

    seconds_T: np.ndarray
    percent_RT: np.ndarray
    updates_T: np.ndarray
    """Means over runs, as trajectories and tokens: a comparison at fixed time is not one at fixed work."""
    trajectories_T: np.ndarray
    generated_tokens_T: np.ndarray

    @property
    def percent_T(self) -> np.ndarray:
        return self.percent_RT.mean(axis=0)


def step_curve(runs: Sequence[Sequence[ScoredCheckpoint]]) -> StepCurve:
    """The curve over the runs of one objective, workload and schedule; it starts when each run has a checkpoint.

    Raises ValueError when a run has none.
    """
    seconds_T, index_RT = _axis(runs)
    pick = lambda field: np.array(  # noqa: E731
        [[field(run[i]) for i in index_T] for run, index_T in zip(runs, index_RT, strict=True)], dtype=float
    )
    return StepCurve(
        seconds_T=seconds_T,
        percent_RT=100 * pick(lambda c: c.score_M.mean()),
        updates_T=pick(lambda c: c.updates).mean(axis=0),
        trajectories_T=pick(lambda c: c.trajectories).mean(axis=0),
        generated_tokens_T=pick(lambda c: c.generated_tokens).mean(axis=0),
    )


def replicates(
    runs: Sequence[Sequence[ScoredCheckpoint]], task_weights_BM: np.ndarray, run_weights_BR: np.ndarray
) -> np.ndarray:
    """percent [B, T]: the mean curve under resampled tasks and runs, on the axis of `step_curve`. Rows sum to one."""
    _, index_RT = _axis(runs)
    percent_BT = np.zeros((len(task_weights_BM), index_RT.shape[1]))
    for r, run in enumerate(runs):
        score_CM = np.stack([checkpoint.score_M for checkpoint in run])
        percent_BT += run_weights_BR[:, r, None] * (task_weights_BM @ score_CM.T)[:, index_RT[r]]
    return 100 * percent_BT


def first_crossing(
    seconds_T: np.ndarray, percent_T: np.ndarray, target: float, *, budget: float = np.inf
) -> float | None:
    """Seconds of the first point at or above the target, no later than the budget; None when it is unreached."""
    reached = np.flatnonzero((percent_T >= target - ROUNDING) & (seconds_T <= budget))
    return float(seconds_T[reached[0]]) if len(reached) else None


def index_at(seconds_T: np.ndarray, seconds: float) -> int:
    """Index of the latest point no later than `seconds`. ValueError when there is none yet."""
    index = int(np.searchsorted(seconds_T, seconds, side="right")) - 1
    if index < 0:
        raise ValueError(
            f"no checkpoint of every run was published by {seconds:g} s: the first is at {seconds_T[0]:g} s"
        )
    return index


def value_at(seconds_T: np.ndarray, percent_T: np.ndarray, seconds: float) -> float:
    """The score of the latest checkpoints published no later than `seconds` (the fixed-budget comparison)."""
    return float(percent_T[index_at(seconds_T, seconds)])


def mean_step_function(times: Sequence[np.ndarray], values: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Mean of right-continuous step functions on the union of their times, from where all of them have begun."""
    union = np.unique(np.concatenate(times))
    union = union[union >= max(t[0] for t in times)]
    held = [v[np.searchsorted(t, union, side="right") - 1] for t, v in zip(times, values, strict=True)]
    return union, np.mean(held, axis=0)


def trailing_mean(values: np.ndarray, window: int) -> np.ndarray:
    """Mean of the last `window` values (fewer at the beginning) that are not NaN; NaN where there are none."""
    known, filled = ~np.isnan(values), np.nan_to_num(values)
    total = np.array([filled[max(0, i - window + 1) : i + 1].sum() for i in range(len(values))])
    count = np.array([known[max(0, i - window + 1) : i + 1].sum() for i in range(len(values))])
    return np.divide(total, count, out=np.full(len(values), np.nan), where=count > 0)


def device_hours(seconds: float, devices: int) -> float:
    """GPU-hours of the paper, for any device: training clock times the devices of the node."""
    return seconds * devices / 3600


def cost_usd(seconds: float, devices: int, price_usd_per_device_hour: float | None) -> float | None:
    """None where no price is configured: no cost is invented."""
    return None if price_usd_per_device_hour is None else device_hours(seconds, devices) * price_usd_per_device_hour


def _axis(runs: Sequence[Sequence[ScoredCheckpoint]]) -> tuple[np.ndarray, np.ndarray]:
    """seconds [T] and, for each run, the index of its latest checkpoint at each time [R, T]."""
    if not runs or not all(runs):
        raise ValueError("a curve needs at least one evaluated checkpoint of each run")
    times = [np.array([checkpoint.published_at for checkpoint in run]) for run in runs]
    if any((np.diff(t) <= 0).any() for t in times):
        raise ValueError("the checkpoints of a run must be in order of their publication")
    union = np.unique(np.concatenate(times))
    seconds_T = union[union >= max(t[0] for t in times)]
    return seconds_T, np.stack([np.searchsorted(t, seconds_T, side="right") - 1 for t in times])

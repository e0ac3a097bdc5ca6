"""One objective on one workload, summarised: what Figures 1, 5 and 6 draw and their reports state.

Intervals resample evaluation tasks and seeds together, with the same draw for every schedule, so that differences and
ratios between schedules are paired. Shape legend as in time_axis.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis import efficiency, time_axis, window
from analysis.campaign import SCHEDULES, Cell, ScoreTasks, scored_checkpoints
from analysis.time_axis import StepCurve
from thundersync.records import RecordError, outcomes


@dataclass(frozen=True, slots=True, kw_only=True)
class Resampling:
    """Weights whose rows sum to one: [B, tasks] and [B, seeds]."""

    tasks_BM: np.ndarray
    runs_BR: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A value and its bootstrap replicates. None is an unreached target; infinite replicates did not reach it."""

    value: float | None
    replicates_B: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleResult:
    curve: StepCurve
    updates: tuple[int, ...]
    """Completed by each seed."""
    step_seconds: efficiency.Spread
    speedup: efficiency.Spread
    """Over Sync of the same seed, Equation 12."""
    lag: tuple[int, int]
    pass3_at_budget: Estimate
    delta_at_budget: Estimate
    """Against ThunderSync, in percentage points."""
    seconds_to_target: Estimate
    reward_seconds: tuple[np.ndarray, ...]
    """Publication time of every update, per seed; `reward_mean` likewise."""
    reward_mean: tuple[np.ndarray, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    cell: Cell
    budget_seconds: float
    devices: int
    price_usd_per_device_hour: float | None
    target: float
    window: int
    """Updates after warm-up that enter the step times of every run."""
    warmup: int
    bound: efficiency.Spread
    phases: tuple[efficiency.Phases, ...]
    """R, L, P of Sync, per seed."""
    schedules: dict[str, ScheduleResult]
    time_ratio: Estimate
    """Sync's time to the target over ThunderSync's; None where either is unreached."""


def compare(cell: Cell, *, score: ScoreTasks, resampling: Resampling, warmup: int | None = None) -> Comparison:
    """`warmup` None takes what `window.choose` does. Raises ValueError where a run is too short for the window."""
    record = cell.reference.record
    budget, target = record.budget_seconds, cell.target.target
    target_B = target_replicates(cell, score, resampling)
    chosen = window.choose({run.name: run for runs in cell.runs.values() for run in runs}, warmup=warmup)
    windows = {schedule: [chosen.of(run) for run in runs] for schedule, runs in cell.runs.items()}
    points = {s: [scored_checkpoints(run, cell.attempts, score) for run in cell.runs[s]] for s in SCHEDULES}
    curves = {s: time_axis.step_curve(points[s]) for s in SCHEDULES}
    percent_BT = {s: time_axis.replicates(points[s], resampling.tasks_BM, resampling.runs_BR) for s in SCHEDULES}
    at_budget = {s: _at_budget(curves[s], percent_BT[s], budget) for s in SCHEDULES}
    to_target = {s: _to_target(curves[s], percent_BT[s], target, target_B, budget) for s in SCHEDULES}
    phases = tuple(efficiency.sync_phases(updates) for updates in windows["sync"])
    return Comparison(
        cell=cell,
        budget_seconds=budget,
        devices=record.devices,
        price_usd_per_device_hour=record.price_usd_per_device_hour,
        target=target,
        window=chosen.size,
        warmup=chosen.warmup,
        bound=efficiency.over_seeds([p.bound for p in phases]),
        phases=phases,
        time_ratio=ratio(to_target["sync"], to_target["thundersync"]),
        schedules={
            s: ScheduleResult(
                curve=curves[s],
                updates=tuple(len(run.updates) for run in cell.runs[s]),
                step_seconds=efficiency.over_seeds([efficiency.mean_step_seconds(w) for w in windows[s]]),
                speedup=efficiency.over_seeds(
                    [efficiency.speedup(sync, own) for sync, own in zip(windows["sync"], windows[s], strict=True)]
                ),
                lag=efficiency.lag_range([u for run in cell.runs[s] for u in run.updates]),
                pass3_at_budget=at_budget[s],
                delta_at_budget=difference(at_budget[s], at_budget["thundersync"]),
                seconds_to_target=to_target[s],
                reward_seconds=tuple(np.array([u.published_at for u in run.updates]) for run in cell.runs[s]),
                reward_mean=tuple(
                    np.array([np.nan if u.reward.value is None else u.reward.value for u in run.updates])
                    for run in cell.runs[s]
                ),
            )
            for s in SCHEDULES
        },
    )


def _at_budget(curve: StepCurve, percent_BT: np.ndarray, budget: float) -> Estimate:
    index = time_axis.index_at(curve.seconds_T, budget)
    return Estimate(value=float(curve.percent_T[index]), replicates_B=percent_BT[:, index])


def target_replicates(cell: Cell, score: ScoreTasks, resampling: Resampling) -> np.ndarray:
    """The target under resampled tasks [B]: the midpoint moves with the tasks as every curve does.

    Raises RecordError when the stored target is not what the attempts of warm start and pilot say.
    """
    record, target = cell.reference.record, cell.target
    replicates = []
    for name, policy_hash, stored in (
        ("warm start", record.initial_policy_hash, target.warm_start_pass3),
        ("pilot", target.pilot_policy_hash, target.pilot_pass3),
    ):
        score_M = score(
            outcomes(
                cell.attempts.of(target.pilot_run, policy_hash),
                policy_hash=policy_hash,
                task_ids=record.evaluation_tasks,
                attempts=record.evaluation_attempts,
                what=f"{target.pilot_run}, {name}",
            )
        )
        if abs(100 * score_M.mean() - stored) > 1e-6:
            raise RecordError(
                f"the target of {cell.objective} on {cell.workload} says {name} {stored:.2f} %, its attempts say "
                f"{100 * score_M.mean():.2f} %: the target was not made from these records"
            )
        replicates.append(100 * resampling.tasks_BM @ score_M)
    return (replicates[0] + replicates[1]) / 2


def _to_target(
    curve: StepCurve, percent_BT: np.ndarray, target: float, target_B: np.ndarray, budget: float
) -> Estimate:
    crossings = [
        time_axis.first_crossing(curve.seconds_T, percent_T, own_target, budget=budget)
        for percent_T, own_target in zip(percent_BT, target_B, strict=True)
    ]
    return Estimate(
        value=time_axis.first_crossing(curve.seconds_T, curve.percent_T, target, budget=budget),
        replicates_B=np.array([np.inf if crossing is None else crossing for crossing in crossings]),
    )


def difference(a: Estimate, b: Estimate) -> Estimate:
    return Estimate(value=a.value - b.value, replicates_B=a.replicates_B - b.replicates_B)


def ratio(slow: Estimate, fast: Estimate) -> Estimate:
    """None where one is unreached, or the fast one needs no time at all (its start is already there).

    A replicate in which neither reaches the target says nothing and is left out.
    """
    known = slow.value is not None and fast.value
    with np.errstate(divide="ignore", invalid="ignore"):
        replicates = slow.replicates_B / fast.replicates_B
    return Estimate(value=slow.value / fast.value if known else None, replicates_B=replicates[~np.isnan(replicates)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """Where ThunderSync reaches the score of a Sync checkpoint: an arrow of Figures 1 and 6."""

    percent: float
    sync_seconds: float
    thundersync_seconds: float

    @property
    def ratio(self) -> float:
        return self.sync_seconds / self.thundersync_seconds


def matches(sync: StepCurve, thundersync: StepCurve, *, budget: float) -> list[Match]:
    """For every checkpoint time at which Sync's curve sets a new best within the budget, after its start, and that
    ThunderSync reaches within the budget, in order."""
    found, best = [], sync.percent_T[0]
    for seconds, percent in zip(sync.seconds_T[1:], sync.percent_T[1:], strict=True):
        if percent <= best + time_axis.ROUNDING or seconds > budget:
            continue
        best = percent
        own = time_axis.first_crossing(thundersync.seconds_T, thundersync.percent_T, percent, budget=budget)
        if own:
            found.append(Match(percent=float(percent), sync_seconds=float(seconds), thundersync_seconds=own))
    return found

"""A workload of known stage times: durations scaled until Sync spends exactly these on rollout and learner."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace

from thundersync.simulation.generated import Generated
from thundersync.simulation.run import Setting, simulate


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """Mean seconds of a synchronous step: rollout and verification R, learner L, suffix P."""

    rollout: float
    learner: float
    suffix: float


def calibrated(setting: Setting, model: Generated, stages: Stages) -> Generated:
    """`model` with its trajectory and service times scaled so that Sync, simulated on the same draws, has these stages.

    Sync's rollout is linear in `trajectory_s` and its learner time in `service_s`, so one simulation is enough.
    `setting` gives prompts, slots, replicas, ranks and updates; the suffix P becomes the publication.
    """
    sync = replace(setting, schedule="sync", reduction="direct", release="trajectory", open_groups=None)
    unit = replace(model, step_s=0.0, publication_s=0.0)
    outcome = simulate(sync, unit.durations(), keep_events=False)
    rollout = statistics.fmean(u.rollout_closed_at - u.started_at for u in outcome.published)
    learner = statistics.fmean(u.step.started_at - u.rollout_closed_at for u in outcome.published)
    return replace(
        unit,
        trajectory_s=model.trajectory_s * stages.rollout / rollout,
        service_s=model.service_s * stages.learner / learner,
        publication_s=stages.suffix,
    )

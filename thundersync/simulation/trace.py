"""Durations from the records of a run: its own schedule again, or another one on the same work.

What a record holds and what follows from it:

    trajectories  start, content and reward times (starts are derived where a record has none)
    sources       service of trajectories, turns, deferred work and closures (ThunderSync, Sync `sums`), or of a whole
                  group (`direct`), which is divided among its trajectories by their tokens
    updates       step and publication times, admission times, and the step times that the simulation is held against

A trajectory that another schedule asks for and this run never rolled out takes the times of a recorded one, chosen by
its identity. A recorded duration contains what slowed it in its own run: how full the slots were, and what the learner
did beside it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from thundersync.batch import GroupKey, GroupPlan, SourceKey, Task, TrajectoryKey
from thundersync.records import RecordError, RunDirectory, SourceRecord, TrajectoryRecord, UpdateRecord, parse_key
from thundersync.simulation.durations import WHOLE, Durations, TrajectoryTimes
from thundersync.simulation.run import Setting
from thundersync.slots import stays

V = TypeVar("V")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A recorded run as the simulation takes it."""

    name: str
    setting: Setting
    """Of the recorded run; `replace` its schedule to predict another one."""
    step_seconds: tuple[float, ...]
    """Measured step times, update by update."""
    trajectories: Mapping[TrajectoryKey, TrajectoryTimes]
    closures: Mapping[GroupKey, float]
    steps: Mapping[int, float]
    publications: Mapping[int, float]
    boundaries: Mapping[int, float]

    def durations(self) -> Durations:
        return Durations(
            trajectory=lambda key: _recorded(self.trajectories, key, tuple(key)),
            group=lambda key: _recorded(self.closures, key, tuple(key)),
            step=lambda update: _recorded(self.steps, update, (update,)),
            publication=lambda version: _recorded(self.publications, version - 1, (version - 1,)),
            boundary=lambda update: _recorded(self.boundaries, update, (update,)),
        )

    def group(self, position: int) -> GroupPlan:
        """The group at a position of the prompt stream."""
        key = GroupKey(*divmod(position, self.setting.prompts))
        task = Task(task_id="recorded", split_group="recorded", instruction="")
        return GroupPlan(key=key, task=task, size=self.setting.group_size)


def read_trace(directory: RunDirectory) -> Trace:
    """Raises RecordError for records that are missing or damaged, and for a run without a completed update."""
    run, updates = directory.run(), directory.read(UpdateRecord)
    sources, finished = directory.read(SourceRecord), directory.read(TrajectoryRecord)
    if not updates:
        raise RecordError(f"{directory.path} has no completed update: there is nothing to simulate")
    setting = _setting(run.config, len(updates))
    service, turns, deferred, closures = _services(sources, finished)
    starts = {parse_key(stay.trajectory.key): stay.started_at for stay in stays(run, updates, finished)}
    trajectories = {}
    for record in finished:
        key = parse_key(record.key)
        trajectories[key] = _times(record, starts[key], service.get(key), turns.get(key), deferred.get(key, 0.0))
    _lend_service(trajectories)
    return Trace(
        name=directory.name,
        setting=setting,
        step_seconds=tuple(update.step_seconds for update in updates),
        trajectories=trajectories,
        closures=closures or {GroupKey(0, 0): 0.0},
        steps={u.update: u.stepped_at - u.step_started_at for u in updates},
        # Async publishes when its rollout has closed too.
        publications={u.update: u.published_at - max(u.stepped_at, u.rollout_closed_at) for u in updates},
        boundaries={0: 0.0} | {u.update: v.started_at - u.published_at for u, v in pairwise(updates)},
    )


def _setting(config: Mapping[str, Any], updates: int) -> Setting:
    schedule, objective, scale = config["schedule"], config["objective"], config["scale"]
    return Setting(
        schedule=schedule["name"],
        prompts=objective["prompts_per_update"],
        group_size=objective["trajectories_per_prompt"],
        updates=updates,
        slots=config["generation"]["concurrent_episodes_per_replica"],
        replicas=scale["replicas"],
        ranks=scale.get("learner_ranks", 1),
        release=objective["release"],
        needs_reward=objective["name"] != "opd",
        open_groups=schedule["open_groups"],
        waiting_rewards=schedule.get("waiting_rewards", 1),
        reduction=schedule["reduction"],
        lag_bound=schedule["lag_bound"],
    )


def _services(sources: Sequence[SourceRecord], finished: Sequence[TrajectoryRecord]):
    """Seconds by trajectory: of the whole, of its turns as (ready, seconds), deferred; and by group: of its closure."""
    tokens: dict[GroupKey, dict[TrajectoryKey, int]] = defaultdict(dict)
    for record in finished:
        key = parse_key(record.key)
        tokens[key.group_key][key] = record.tokens.context + record.tokens.generated
    service: dict[TrajectoryKey, float] = defaultdict(float)
    turns: dict[TrajectoryKey, list[tuple[float, float]]] = defaultdict(list)
    deferred: dict[TrajectoryKey, float] = defaultdict(float)
    closures: dict[GroupKey, float] = {}
    for source in sources:
        seconds, key = source.ended_at - source.started_at, source.key and parse_key(source.key)
        match key, source.kind:
            case GroupKey(), "direct":
                whole = sum(tokens[key].values())
                for trajectory, own in tokens[key].items():
                    service[trajectory] += seconds * own / whole
            case GroupKey(), _:
                closures[key] = seconds
            case SourceKey(), _:
                turns[key.trajectory_key].append((source.ready_at, seconds))
            case TrajectoryKey(), "deferred":
                deferred[key] += seconds
            case TrajectoryKey(), _:
                service[key] += seconds
    return service, turns, deferred, closures


def _times(
    record: TrajectoryRecord,
    started: float,
    service: float | None,
    turns: Sequence[tuple[float, float]] | None,
    deferred: float,
) -> TrajectoryTimes:
    seconds = record.content_at - started
    times = TrajectoryTimes(
        seconds=seconds,
        verification=record.reward_at - record.content_at,
        service=service or 0.0,
        deferred=deferred,
    )
    if turns is None:
        # No turn was released: their work is that of the whole, at the end.
        return replace(times, turn_service=times.service, turn_ends_T=WHOLE, turn_shares_T=WHOLE)
    ready_T, service_T = np.array(sorted(turns)).T
    ends_T = np.clip((ready_T - started) / seconds, 0.0, 1.0)
    ends_T[-1] = 1.0
    whole = float(service_T.sum())
    shares_T = service_T / whole
    return replace(times, service=whole + deferred, turn_service=whole, turn_ends_T=ends_T, turn_shares_T=shares_T)


def _lend_service(trajectories: dict[TrajectoryKey, TrajectoryTimes]) -> None:
    """Trajectories that were never trained (the last ones of Async and Fully Async) take another's service."""
    trained = {key: times for key, times in trajectories.items() if times.service}
    for key in trajectories.keys() - trained.keys():
        other = _recorded(trained, key, tuple(key))
        trajectories[key] = replace(
            trajectories[key], service=other.service, turn_service=other.turn_service, deferred=other.deferred
        )


def _recorded(table: Mapping[Any, V], key: Any, identity: tuple[int, ...]) -> V:
    """The recorded value, or for a key without one that of another, which the identity chooses."""
    if (found := table.get(key)) is not None:
        return found
    values = list(table.values())
    return values[int(np.random.default_rng(identity).integers(len(values)))]

"""Traces from the records of our own runs: sources.jsonl, updates.jsonl and, for Sync, trajectories.jsonl.

    R = rollout_closed_at - started_at       P = published_at - step_started_at       jobs: the update's source records

Sync's reduction `direct` learns a group at once. Its service is divided over the group's trajectories in proportion to
their tokens, each ready with its reward: that is what streaming by trajectory would have had to do, and when.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from thundersync.batch import GroupKey, SourceKey, TrajectoryKey
from thundersync.records import RunDirectory, SourceRecord, TrajectoryRecord, UpdateRecord, parse_key
from thundersync.scaling.trace import WHOLE, Job, StepTrace, Trace, unit_of

SYNCHRONOUS = ("sync", "thundersync")


def read_run_trace(path: Path | str, warmup: int = 0) -> Trace:
    """The trace of a Sync or ThunderSync run, without its first `warmup` updates.

    Raises RecordError naming file and line, and ValueError for a run of another schedule, whose updates have no rollout
    of their own, or with nothing after the warm-up.
    """
    directory = RunDirectory(path)
    run = directory.run()
    if run.schedule not in SYNCHRONOUS:
        raise ValueError(f"{path} is a run of {run.schedule}: a trace comes from {' or '.join(SYNCHRONOUS)}")
    trajectories = {record.key: record for record in directory.read(TrajectoryRecord)}
    sources: dict[int, list[SourceRecord]] = defaultdict(list)
    for record in directory.read(SourceRecord):
        sources[record.update].append(record)
    updates = directory.read(UpdateRecord)
    if len(updates) <= warmup:
        raise ValueError(f"{path} has {len(updates)} updates, none after {warmup} of warm-up")
    steps = tuple(_step(update, sources[update.update], trajectories) for update in updates[warmup:])
    direct = any(record.kind == "direct" for records in sources.values() for record in records)
    notes = ("learner time of each group is divided over its trajectories by tokens",) if direct else ()
    return Trace(source=str(path), steps=steps, unit=unit_of([j for s in steps for j in s.jobs]), notes=notes)


def _step(
    update: UpdateRecord, sources: Sequence[SourceRecord], trajectories: dict[str, TrajectoryRecord]
) -> StepTrace:
    jobs: list[Job] = []
    for source in sources:
        if source.kind == "direct":
            jobs += _members(source, update, trajectories)
        elif source.kind != "group":
            jobs.append(_job(source, update, trajectories))
    # A group closes when the last of its trajectories has been handed over: readiness is that of the last of them.
    last: dict[int, float] = {}
    for job in jobs:
        last[job.group] = max(job.ready, last.get(job.group, 0.0))
    for source in sources:
        if source.kind == "group":
            group = parse_key(source.key).group
            seconds = source.ended_at - source.started_at
            jobs.append(Job(group=group, ready=last.get(group, 0.0), service=seconds, rank=source.rank))
    return StepTrace(
        update=update.update,
        rollout=update.rollout_closed_at - update.started_at,
        suffix=update.published_at - update.step_started_at,
        jobs=tuple(jobs),
        observed=update.step_seconds,
    )


def _job(source: SourceRecord, update: UpdateRecord, trajectories: dict[str, TrajectoryRecord]) -> Job:
    key = parse_key(source.key)
    # The end of a trajectory (adjoint replay, bound reward) is work of its own, after its turns.
    turn = key.turn if isinstance(key, SourceKey) else WHOLE
    content = trajectories[str(TrajectoryKey(*key[:3]))].content_at
    return Job(
        group=key.group,
        trajectory=key.trajectory,
        turn=turn,
        ready=max(0.0, source.ready_at - update.started_at),
        service=source.ended_at - source.started_at,
        rank=source.rank,
        content=max(0.0, content - update.started_at),
    )


def _members(source: SourceRecord, update: UpdateRecord, trajectories: dict[str, TrajectoryRecord]) -> Iterator[Job]:
    group: GroupKey = parse_key(source.key)
    members = [record for key, record in trajectories.items() if key.startswith(f"{group}/trajectory=")]
    total = sum(_tokens(record) for record in members)
    for record in members:
        yield Job(
            group=group.group,
            trajectory=parse_key(record.key).trajectory,
            ready=record.reward_at - update.started_at,
            service=(source.ended_at - source.started_at) * _tokens(record) / total,
            rank=source.rank,
            content=record.content_at - update.started_at,
        )


def _tokens(record: TrajectoryRecord) -> int:
    return record.tokens.prompt + record.tokens.context + record.tokens.generated

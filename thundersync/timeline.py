"""A run as a timeline: its records as slices, arrows and counters of a Perfetto trace.

    rollout      a track per slot: trajectories, and in them the generation of each turn
    environment  a track per slot's sandbox: the command of each turn, then the verifier
    teacher      requests, from the generated turn to its scores
    learner      a track per rank: gradients, deferred work, closures, the optimizer step
    publisher    from the step to the last acknowledgement
    arrows       reward to gradient to step; from a teacher-scored turn where the turn is the source
    counters     policy version; sources that are ready and not started

Everything is read from the records. Runs that recorded no times within a trajectory show it as a whole.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from thundersync.records import (
    RunDirectory,
    RunRecord,
    SourceRecord,
    TrajectoryRecord,
    UpdateRecord,
    parse_key,
)
from thundersync.slots import Stay, stays
from thundersync.trace_file import Sample, Slice, write_trace

FILE = "timeline.perfetto-trace"


def export_timeline(run: Path) -> Path:
    """Writes RUN/timeline.perfetto-trace from the run's records; an unfinished run shows what there is so far.

    Raises RecordError naming the file (and line) that is missing or damaged.
    """
    directory = RunDirectory(run)
    updates = directory.read(UpdateRecord)
    trajectories, sources = directory.read(TrajectoryRecord), directory.read(SourceRecord)
    path = directory.path / FILE
    write_trace(path, slices(directory.run(), updates, trajectories, sources), samples(updates, sources))
    return path


def slices(
    run: RunRecord,
    updates: Sequence[UpdateRecord],
    trajectories: Sequence[TrajectoryRecord],
    sources: Sequence[SourceRecord],
) -> list[Slice]:
    """Every slice of a run, with its arrows."""
    arrows = _Arrows(updates, trajectories, sources)
    placed = stays(run, updates, trajectories)
    result = [one for stay in placed for one in (*_rollout(stay), *_environment(stay, arrows))]
    result += _teacher(placed, arrows)
    result += [_gradient(source, arrows) for source in sources]
    for u in updates:
        result.append(_step(u, arrows))
        result.append(
            Slice(
                room="publisher",
                track="publisher",
                name=f"publish version {u.published_version}",
                start=max(u.stepped_at, u.rollout_closed_at),
                end=u.published_at,
                notes={"policy hash": u.policy_hash},
            )
        )
    return result


def samples(updates: Sequence[UpdateRecord], sources: Sequence[SourceRecord]) -> list[Sample]:
    """The two counters, at each of their changes."""
    versions = [Sample(counter="policy version", at=u.published_at, value=u.published_version) for u in updates]
    if updates:
        first = updates[0]
        versions.insert(0, Sample(counter="policy version", at=first.started_at, value=first.learner_version))
    changes: dict[float, int] = defaultdict(int)
    for source in sources:
        changes[source.ready_at] += 1
        changes[source.started_at] -= 1
    queue, length = [], 0
    for at, change in sorted(changes.items()):
        length += change
        if change:
            queue.append(Sample(counter="learner queue", at=at, value=length))
    return versions + queue


class _Arrows:
    """Numbers of the arrows: one for each trajectory whose reward releases a gradient, one for each turn that does."""

    def __init__(
        self,
        updates: Sequence[UpdateRecord],
        trajectories: Sequence[TrajectoryRecord],
        sources: Sequence[SourceRecord],
    ) -> None:
        by_group = defaultdict(list)
        for t in trajectories:
            by_group[_group(t.key)].append(t.key)
        by_turns = {str(parse_key(s.key).trajectory_key) for s in sources if s.key is not None and "/turn=" in s.key}
        turns = [s.key for s in sources if s.key is not None and "/turn=" in s.key]
        whole = [t.key for t in trajectories if t.key not in by_turns]
        self.number = {key: i for i, key in enumerate([*whole, *turns], start=1)}
        self._by_group = by_group
        self._of_step = defaultdict(list)
        for source in sources:
            self._of_step[source.update] += self.into(source)

    def at(self, key: str) -> tuple[int, ...]:
        """The arrow that leaves a reward or a scored turn."""
        return (self.number[key],) if key in self.number else ()

    def into(self, source: SourceRecord) -> tuple[int, ...]:
        """The arrows that reach a piece of learner work; a group learnt at once takes those of its members."""
        if source.kind == "direct":
            return tuple(number for key in self._by_group[source.key] for number in self.at(key))
        return () if source.kind == "group" or source.key is None else self.at(source.key)

    def of_step(self, update: int) -> tuple[int, ...]:
        return tuple(sorted(set(self._of_step[update])))


def _group(key: str) -> str:
    return key.split("/trajectory=")[0]


def _short(key: str | None) -> str:
    """update=3/group=1/trajectory=4/turn=0 as u3 g1 t4 turn 0."""
    names = ("u", "g", "t", "turn ")
    return (
        "batch"
        if key is None
        else " ".join(f"{n}{v}" for n, v in zip(names, parse_key(key), strict=False) if v is not None)
    )


def _rollout(stay: Stay) -> Iterable[Slice]:
    t, track = stay.trajectory, {"room": "rollout", "track": f"slot {stay.slot}"}
    notes = {
        "task": t.task_id,
        "outcome": t.outcome,
        "turns": t.turns,
        "generated tokens": t.tokens.generated,
        "oldest version": -1 if t.oldest_version is None else t.oldest_version,
        "start": "recorded" if stay.recorded else "derived from the order of slots",
    }
    if t.reward is not None:
        notes["reward"] = t.reward
    yield Slice(**track, name=_short(t.key), start=stay.started_at, end=t.reward_at, notes=notes)
    for i, span in enumerate(t.turn_spans or ()):
        yield Slice(**track, name=f"generate turn {i}", start=span.generation_started_at, end=span.generated_at)


def _environment(stay: Stay, arrows: _Arrows) -> Iterable[Slice]:
    t, track = stay.trajectory, {"room": "environment", "track": f"environment {stay.slot}"}
    for i, span in enumerate(t.turn_spans or ()):
        yield Slice(**track, name=f"command of turn {i}", start=span.generated_at, end=span.acted_at)
    reward = {} if t.reward is None else {"reward": t.reward}
    yield Slice(
        **track,
        name=f"verify {_short(t.key)}",
        start=t.content_at,
        end=t.reward_at,
        flows=arrows.at(t.key),
        notes=reward,
    )


def _teacher(placed: Sequence[Stay], arrows: _Arrows) -> Iterable[Slice]:
    """Requests overlap: each takes the first lane that is free."""
    requests = [
        (span.generated_at, span.scored_at, f"{stay.trajectory.key}/turn={i}")
        for stay in placed
        for i, span in enumerate(stay.trajectory.turn_spans or ())
        if span.scored_at is not None
    ]
    lanes: list[float] = []
    for start, end, key in sorted(requests):
        lane = next((i for i, free in enumerate(lanes) if free <= start), len(lanes))
        lanes[lane:] = [end] + lanes[lane + 1 :]
        yield Slice(
            room="teacher",
            track=f"request {lane}",
            name=f"score {_short(key)}",
            start=start,
            end=end,
            flows=arrows.at(key),
        )


def _gradient(source: SourceRecord, arrows: _Arrows) -> Slice:
    notes = {"tokens": source.tokens, "waited s": source.started_at - source.ready_at}
    if source.deferred:
        notes["deferred"] = source.deferred
    return Slice(
        room="learner",
        track=f"rank {source.rank}",
        name=f"{source.kind} {_short(source.key)}",
        start=source.started_at,
        end=source.ended_at,
        flows=arrows.into(source),
        notes=notes,
    )


def _step(u: UpdateRecord, arrows: _Arrows) -> Slice:
    return Slice(
        room="learner",
        track="rank 0",
        name=f"step {u.update}",
        start=u.step_started_at,
        end=u.stepped_at,
        flows=arrows.of_step(u.learner_version),
        notes={"gradient norm": u.gradient_norm, "lag": u.lag_max},
    )

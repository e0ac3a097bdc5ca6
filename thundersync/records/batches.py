"""Logical batches as they happened: every event with its tokens, in the order in which it became ready (Appendix G).

`batches.jsonl` of a run is what the equivalence check replays. It is portable: tokens, masks, rewards, teacher scores.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from thundersync.batch import GroupKey, GroupPlan, LogicalBatch, SourceKey, Task, Trajectory, TrajectoryKey, Turn
from thundersync.ports import ContentReady, Event, RewardReady, TurnReady
from thundersync.records.schemas import Part, Record, Seconds, parse_key


class TurnTokens(Part):
    """A turn: its observation's tokens, then the action's, which are the scored ones."""

    context: list[int]
    action: list[int]
    logprobs: list[float]
    """The rollout engine's, of the action tokens."""
    versions: list[int]


class BatchEventRecord(Record):
    """One event of a logical batch. Order in the file is order of readiness."""

    SCHEMA: ClassVar[str] = "batch_event"
    VERSION: ClassVar[int] = 1
    FILE: ClassVar[str] = "batches.jsonl"

    kind: Literal["turn", "content", "reward"]
    key: str
    at: Seconds
    prompt: list[int] = []
    turns: list[TurnTokens] = []
    teacher_logprobs: list[float] | None = None
    task_id: str = ""
    reward: float | None = None
    success: bool | None = None
    outcome: str = ""

    @property
    def update(self) -> int:
        return parse_key(self.key).update


def batch_event_record(event: Event) -> BatchEventRecord:
    """The event with its tokens."""
    head = {"key": str(event.key), "at": event.at}
    match event:
        case TurnReady():
            return BatchEventRecord(
                **head,
                kind="turn",
                prompt=event.prompt_ids_P.tolist(),
                turns=[_tokens(event.turn)],
                teacher_logprobs=None if event.teacher_logprobs_A is None else event.teacher_logprobs_A.tolist(),
            )
        case ContentReady(trajectory=trajectory) | RewardReady(trajectory=trajectory):
            return BatchEventRecord(
                **head,
                kind="content" if isinstance(event, ContentReady) else "reward",
                prompt=trajectory.prompt_ids_P.tolist(),
                turns=[_tokens(turn) for turn in trajectory.turns],
                task_id=trajectory.task_id,
                reward=trajectory.reward,
                success=trajectory.success,
                outcome=trajectory.outcome,
            )


def event_of(record: BatchEventRecord) -> Event:
    """The inverse of `batch_event_record`."""
    key, prompt = parse_key(record.key), np.array(record.prompt, np.int32)
    match record.kind:
        case "turn":
            scores = None if record.teacher_logprobs is None else np.array(record.teacher_logprobs, np.float32)
            turn = _turn(record.turns[0])
            return TurnReady(
                key=SourceKey(*key), prompt_ids_P=prompt, turn=turn, teacher_logprobs_A=scores, at=record.at
            )
        case _:
            trajectory = Trajectory(
                key=TrajectoryKey(*key),
                task_id=record.task_id,
                prompt_ids_P=prompt,
                turns=tuple(_turn(turn) for turn in record.turns),
                reward=record.reward,
                success=record.success,
                outcome=record.outcome,
            )
            kind = ContentReady if record.kind == "content" else RewardReady
            return kind(trajectory=trajectory, at=record.at)


def recorded_batches(records: list[BatchEventRecord]) -> list[tuple[LogicalBatch, list[Event]]]:
    """Each logical batch with its events in readiness order. A batch's trajectories are those that have a reward."""
    updates: dict[int, list[Event]] = {}
    for record in records:
        updates.setdefault(record.update, []).append(event_of(record))
    return [(_batch(update, events), events) for update, events in sorted(updates.items())]


def _batch(update: int, events: list[Event]) -> LogicalBatch:
    tasks: dict[GroupKey, list[str]] = {}
    for event in events:
        if isinstance(event, RewardReady):
            tasks.setdefault(event.key.group_key, []).append(event.trajectory.task_id)
    plans = [
        GroupPlan(key=key, task=Task(task_id=names[0], split_group="", instruction=""), size=len(names))
        for key, names in sorted(tasks.items())
    ]
    return LogicalBatch(update=update, groups=tuple(plans))


def _tokens(turn: Turn) -> TurnTokens:
    return TurnTokens(
        context=turn.context_ids_C.tolist(),
        action=turn.action_ids_A.tolist(),
        logprobs=turn.logprobs_A.tolist(),
        versions=turn.versions_A.tolist(),
    )


def _turn(tokens: TurnTokens) -> Turn:
    return Turn(
        context_ids_C=np.array(tokens.context, np.int32),
        action_ids_A=np.array(tokens.action, np.int32),
        logprobs_A=np.array(tokens.logprobs, np.float32),
        versions_A=np.array(tokens.versions, np.int32),
    )

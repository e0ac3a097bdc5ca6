"""Events as the gradient stream takes them: a trajectory's turns joined to tokens, mask and log-probabilities."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from thundersync.batch import TrajectoryKey, Turn
from thundersync.ports import ContentReady, Event, RewardReady, TurnReady
from thundersync.streaming import Continuation


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """A complete trajectory, with its reward (GRPO) or its teacher scores (OPD)."""

    prompt_ids_P: np.ndarray
    turns: tuple[Turn, ...]
    ready_at: float
    reward: float | None = None
    teacher_logprobs: tuple[np.ndarray, ...] | None = None

    @classmethod
    def of(cls, event: RewardReady | ContentReady) -> Gathered:
        trajectory = event.trajectory
        return cls(
            prompt_ids_P=trajectory.prompt_ids_P,
            turns=trajectory.turns,
            ready_at=event.at,
            reward=trajectory.reward,
        )

    @property
    def tokens(self) -> int:
        """Tokens after the prompt."""
        return sum(len(turn.context_ids_C) + len(turn.action_ids_A) for turn in self.turns)

    def continuation(self) -> Continuation:
        """All turns as one source. The observation after the last action is not part of it: nothing depends on it."""
        return Continuation(
            ids=_join([turn.ids for turn in self.turns], np.int32),
            scored=_join([turn.scored for turn in self.turns], bool),
            reward=self.reward,
            teacher_logprobs=None if self.teacher_logprobs is None else _join(self.teacher_logprobs, np.float32),
            rollout_logprobs=_join([turn.logprobs_A for turn in self.turns], np.float32),
        )


def gather_trajectories(events: Iterable[Event]) -> dict[TrajectoryKey, Gathered]:
    """The complete trajectories of RewardReady events. Raises ValueError for one that came twice."""
    gathered: dict[TrajectoryKey, Gathered] = {}
    for event in events:
        if isinstance(event, RewardReady):
            if event.key in gathered:
                raise ValueError(f"{event.key}: its reward came twice")
            gathered[event.key] = Gathered.of(event)
    return gathered


def gather_turns(events: Iterable[Event]) -> dict[TrajectoryKey, Gathered]:
    """The trajectories that ContentReady closed, made of their TurnReady events.

    Raises ValueError when a trajectory closed twice, or its turns are not 0, 1, ... once each.
    """
    turns: dict[TrajectoryKey, list[TurnReady]] = {}
    closed: dict[TrajectoryKey, ContentReady] = {}
    for event in events:
        if isinstance(event, TurnReady):
            turns.setdefault(event.key.trajectory_key, []).append(event)
        elif isinstance(event, ContentReady):
            if event.key in closed:
                raise ValueError(f"{event.key}: its content was closed twice")
            closed[event.key] = event
    gathered = {}
    for key, end in closed.items():
        members = sorted(turns.pop(key, []), key=lambda event: event.key.turn)
        numbers = [event.key.turn for event in members]
        if numbers != list(range(len(members))):
            raise ValueError(f"{key}: its turns are {numbers}; one is missing or came twice")
        gathered[key] = Gathered(
            prompt_ids_P=end.trajectory.prompt_ids_P,
            turns=tuple(event.turn for event in members),
            ready_at=max([end.at, *(event.at for event in members)]),
            teacher_logprobs=tuple(event.teacher_logprobs_A for event in members),
        )
    return gathered


def _join(arrays: Iterable[np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate([np.zeros(0, dtype), *arrays])

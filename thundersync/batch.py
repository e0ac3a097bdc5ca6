"""What one update is made of: tasks, turns, trajectories, groups and the logical batch.

Frozen dataclasses of plain numpy arrays; no tensors, no gradients, no behaviour beyond small derived properties.

    tokens of a trajectory = prompt + (action_0) + (context_1 + action_1) + ... + (context_n + action_n)

The prompt is shared by the group. `context` is what the environment (and the chat template) put between two actions:
it conditions later tokens and carries no loss. `action` tokens are exactly the ids that the policy sampled.

Shape legend: A = action tokens of a turn, C = context tokens of a turn, P = prompt tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np


class GroupKey(NamedTuple):
    """Identity of a group: the update whose prompts it was drawn with, and its place among them.

    Fixed when the group is admitted. Fully Async may train a group in a later update than the one it was drawn for.
    """

    update: int
    group: int

    def __str__(self) -> str:
        return f"update={self.update}/group={self.group}"


class TrajectoryKey(NamedTuple):
    """Identity of a trajectory, fixed when it is admitted, never when it completes."""

    update: int
    group: int
    trajectory: int

    @property
    def group_key(self) -> GroupKey:
        return GroupKey(self.update, self.group)

    def __str__(self) -> str:
        return f"update={self.update}/group={self.group}/trajectory={self.trajectory}"

    def turn(self, turn: int) -> SourceKey:
        return SourceKey(self.update, self.group, self.trajectory, turn)


class SourceKey(NamedTuple):
    """Identity of an objective source (Section 3.2): a whole trajectory (`turn` is None) or one turn of it."""

    update: int
    group: int
    trajectory: int
    turn: int | None = None

    @property
    def trajectory_key(self) -> TrajectoryKey:
        return TrajectoryKey(self.update, self.group, self.trajectory)

    def __str__(self) -> str:
        whole = f"update={self.update}/group={self.group}/trajectory={self.trajectory}"
        return whole if self.turn is None else f"{whole}/turn={self.turn}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A problem for the agent, as the environments define it."""

    task_id: str
    split_group: str
    """Repository or source family: the unit that the SHA-256 rule of Appendix C.2 assigns to one side of the split."""
    instruction: str
    """What the agent is told. Tests, solutions and bug patches never appear here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One policy action with the context that precedes it."""

    context_ids_C: np.ndarray
    """int32; unscored tokens since the previous action (empty in turn 0: the prompt belongs to the group)."""
    action_ids_A: np.ndarray
    """int32; the sampled ids, never re-tokenised; all of them are scored."""
    logprobs_A: np.ndarray
    """float32; the rollout engine's log-probability of each sampled token, at temperature one."""
    versions_A: np.ndarray
    """int32; the policy version that sampled each token, stamped by the engine."""

    @property
    def ids(self) -> np.ndarray:
        """int32 [C + A]: context then action."""
        return np.concatenate([self.context_ids_C, self.action_ids_A])

    @property
    def scored(self) -> np.ndarray:
        """bool [C + A]: True on action tokens."""
        return np.concatenate([np.zeros(len(self.context_ids_C), bool), np.ones(len(self.action_ids_A), bool)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """A finished attempt at a task. `reward` is None until the verifier has answered."""

    key: TrajectoryKey
    task_id: str
    prompt_ids_P: np.ndarray
    turns: tuple[Turn, ...]
    reward: float | None
    success: bool | None
    """The task's own pass criterion (all designated tests), which for partial rewards is stricter than reward > 0."""
    outcome: str
    """Why it ended: submitted, turn_limit, generation_limit, context_limit, tool_timeout."""

    @property
    def scored_tokens(self) -> int:
        """L_i of Appendix D.1."""
        return sum(len(turn.action_ids_A) for turn in self.turns)

    @property
    def oldest_version(self) -> int:
        """The version of its oldest sampled token; the policy lag is derived from it."""
        return min(int(turn.versions_A.min()) for turn in self.turns if len(turn.versions_A))

    @property
    def newest_version(self) -> int:
        return max(int(turn.versions_A.max()) for turn in self.turns if len(turn.versions_A))


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlan:
    """A prompt and the number of independent trajectories to sample for it."""

    key: GroupKey
    task: Task
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogicalBatch:
    """The groups of one optimizer step; membership is fixed when it is opened (Appendix D.4)."""

    update: int
    """The learner version k at which the batch is differentiated."""
    groups: tuple[GroupPlan, ...]

    @property
    def keys(self) -> tuple[TrajectoryKey, ...]:
        return tuple(TrajectoryKey(*g.key, i) for g in self.groups for i in range(g.size))

    def shares(self, ranks: int) -> tuple[LogicalBatch, ...]:
        """The groups that each learner rank learns: that at place i goes to rank i mod `ranks`; some may have none."""
        return tuple(replace(self, groups=self.groups[rank::ranks]) for rank in range(ranks))


@dataclass(slots=True)
class Ledger:
    """Each registered trajectory exactly once: a lost or doubled one is an error (Algorithm 1, line 3)."""

    batch: LogicalBatch
    _open: dict[GroupKey, set[int]] = field(init=False)

    def __post_init__(self) -> None:
        self._open = {g.key: set(range(g.size)) for g in self.batch.groups}

    def close(self, key: TrajectoryKey) -> bool:
        """Marks a trajectory as handed over; True when it was the last one of its group.

        Raises ValueError for a trajectory that was not registered, or is handed over twice.
        """
        members = self._open.get(key.group_key)
        if members is None or key.trajectory not in members:
            raise ValueError(f"{key} is not open in update {self.batch.update}: it was never registered, or came twice")
        members.remove(key.trajectory)
        return not members

    @property
    def complete(self) -> bool:
        return not any(self._open.values())

    def require_complete(self) -> None:
        """Raises ValueError naming the trajectories that never arrived."""
        lost = [str(TrajectoryKey(*group, i)) for group, members in self._open.items() for i in sorted(members)]
        if lost:
            raise ValueError(f"update {self.batch.update} cannot step: {len(lost)} lost: {', '.join(lost[:8])}")

"""The four ports that a schedule runs against, and the events that pass between them.

A schedule knows nothing else: no torch, no Ray, no wall clock. `cluster/` implements the ports with Ray actors,
`simulation/` on virtual time. Every time is in seconds on the training clock, which starts with the first rollout
request (Appendix E.3).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from thundersync.batch import GroupKey, LogicalBatch, SourceKey, Trajectory, TrajectoryKey, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnReady:
    """The tokens and mask of a turn are fixed and, where there is a teacher, its action tokens are scored."""

    key: SourceKey
    prompt_ids_P: np.ndarray
    turn: Turn
    teacher_logprobs_A: np.ndarray | None
    """None without a teacher."""
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentReady:
    """All tokens of a trajectory are final; the verifier is still at work. Follows its last TurnReady."""

    trajectory: Trajectory
    """Complete but for its reward."""
    at: float

    @property
    def key(self) -> TrajectoryKey:
        return self.trajectory.key


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnTimes:
    """When a turn was generated, scored by the teacher (None without one) and acted on."""

    generation_started_at: float
    generated_at: float
    scored_at: float | None
    acted_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardReady:
    """The reward of a trajectory has arrived: the trajectory is complete."""

    trajectory: Trajectory
    at: float
    started_at: float | None = None
    """When the trajectory had its slot and its sandbox; None where nobody looked, as `turn_times`."""
    turn_times: tuple[TurnTimes, ...] | None = None

    @property
    def key(self) -> TrajectoryKey:
        return self.trajectory.key


Event = TurnReady | ContentReady | RewardReady


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What a piece of learner work was and when it ran; becomes a source record."""

    key: SourceKey | TrajectoryKey | GroupKey | None
    """What the work belongs to; None for the whole batch."""
    kind: str
    """source, deferred (adjoint replay of a trajectory), group (closure), direct (a whole group or batch at once)."""
    update: int
    """The learner version k at which the gradient was evaluated."""
    ready_at: float
    started_at: float
    ended_at: float
    tokens: int
    rank: int
    deferred: str = ""
    """What it waited for beyond its place in the queue: open_groups, waiting_rewards, graph_memory; empty for nothing.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """The one optimizer step of a logical batch (Equation 3)."""

    version: int
    """The version of the new parameters: k + 1."""
    policy_hash: str
    started_at: float
    ended_at: float
    divisor: float
    """The divisor N of the objective, as 1 for GRPO and the scored tokens N_k for OPD."""
    gradient_norm: float
    """Global norm before clipping."""
    clip_coefficient: float
    """min(1, max_norm / norm): what clipping multiplied the direction by."""
    entropy: float
    """Mean over scored tokens of the policy's entropy, in nats."""
    logprob_mismatch: dict[str, float]
    """Rollout engine against learner at the sampled tokens: max, mean (absolute) and kl (mean of rollout - learner)."""
    peak_memory: tuple[str, int] | None = None
    """Counter and bytes of `records.PeakMemory`, largest over the ranks; None where nobody looked."""


class Rollout(Protocol):
    """Runs agent loops on the served policy, and the supervision: verifier rewards and, for OPD, teacher scores."""

    async def start(self, batch: LogicalBatch) -> None:
        """Admits every trajectory of the batch; they run concurrently up to the replicas' capacity."""
        ...

    def events(self) -> AsyncIterator[Event]:
        """Events of all started batches, in readiness order; never ends by itself."""
        ...


class Learner(Protocol):
    """Takes ready sources in the order of the calls. Each call returns when its work is done."""

    async def open(self, batch: LogicalBatch) -> None:
        """Opens a logical batch at the current parameters, which stay fixed until `step`."""
        ...

    async def learn_trajectory(self, event: RewardReady) -> Receipt:
        """Forward and backward of one trajectory, folded into its group's running sums (release `trajectory`)."""
        ...

    async def learn_turn(self, event: TurnReady) -> Receipt:
        """Forward and backward of one turn against detached state (release `turn_eager`)."""
        ...

    async def forward_turn(self, event: TurnReady) -> Receipt:
        """Forward of one turn; the graph is kept until the trajectory closes (release `turn_forward`)."""
        ...

    async def learn_content(self, event: ContentReady, turns: Sequence[TurnReady] = ()) -> Receipt:
        """Forward and backward of one trajectory whose tokens are final (release `content`).

        Its reward is still to come; where the objective needs none, `turns` bring the teacher's scores and the
        trajectory closes.
        """
        ...

    async def bind_reward(self, event: RewardReady) -> Receipt:
        """Folds what `learn_content` left, weighted by the reward."""
        ...

    async def close_trajectory(self, event: ContentReady | RewardReady) -> Receipt:
        """Ends a trajectory that came by turns: replays adjoints (`turn_eager`), or runs backward (`turn_forward`)."""
        ...

    async def close_group(self, group: GroupKey) -> Receipt:
        """Combines the group's sums and runs one backward through the shared prompt."""
        ...

    async def learn_batch(self, events: list[Event]) -> list[Receipt]:
        """The whole batch with its advantages known: weights directly, may pack (Sync's reduction `direct`)."""
        ...

    async def step(self) -> StepReport:
        """Reduces over ranks, divides, clips, one optimizer step. Raises if a group is still open."""
        ...


class Publisher(Protocol):
    """Makes every rollout replica serve the learner's current parameters."""

    async def publish(self, version: int, policy_hash: str) -> None:
        """Returns once every replica serves `version`, cleared its caches and returned `policy_hash`, the learner's.

        Raises PublicationError naming the replica that did not; the served version then counts as not advanced.
        """
        ...


class Clock(Protocol):
    def now(self) -> float:
        """Seconds on the training clock."""
        ...


class Journal(Protocol):
    """Where a schedule reports what happened; the trainer turns it into records."""

    def event(self, event: Event) -> None: ...

    def receipt(self, receipt: Receipt) -> None: ...

    async def update_published(self, update: PublishedUpdate) -> bool:
        """An optimizer boundary: records, saves a checkpoint if one is due. False asks the schedule to stop here."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedUpdate:
    """One completed update, as every schedule reports it."""

    batch: LogicalBatch
    trajectories: tuple[Trajectory, ...]
    step: StepReport
    learner_version: int
    """The version k at which the gradients were evaluated."""
    started_at: float
    """First rollout request of the update (Sync, ThunderSync), or the previous publication (Async, Fully Async)."""
    rollout_closed_at: float
    learner_started_at: float
    published_at: float


class PublicationError(RuntimeError):
    """A replica did not load, clear its caches or return the expected version and hash in time."""


class RolloutError(RuntimeError):
    """A replica died, the rollout fell silent, or an event came twice or out of order; the message names which."""


class LearnerError(RuntimeError):
    """A learner rank died, or the learner fell silent; the message names the rank and the work that waits."""

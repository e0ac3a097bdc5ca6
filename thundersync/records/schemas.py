"""The schema of every record. A change of meaning or of a field raises VERSION of its class.

Each line is a JSON object with `schema` and `version` beside the fields. Unknown fields, missing fields and numbers
that are not finite are refused when a record is made and when it is read. A field that came later and says nothing of
older runs has the default None, "not recorded"; `OLDER` lets a class read its older versions.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, model_validator

from thundersync.batch import GroupKey, SourceKey, TrajectoryKey

Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0)]
"""On the training clock, or a duration."""
NonNegative = Annotated[float, Field(ge=0)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

KEY = re.compile(r"update=(\d+)/group=(\d+)(?:/trajectory=(\d+)(?:/turn=(\d+))?)?")


def parse_key(text: str) -> GroupKey | TrajectoryKey | SourceKey:
    """The inverse of `str(key)`: `update=5/group=3/trajectory=2/turn=0` and its prefixes. ValueError otherwise."""
    match = KEY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no key of the form update=0/group=0[/trajectory=0[/turn=0]]")
    numbers = [int(number) for number in match.groups() if number is not None]
    return (GroupKey, TrajectoryKey, SourceKey)[len(numbers) - 2](*numbers)


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Record(Part):
    """A line of a file: `SCHEMA` names its kind, `VERSION` the meaning of its fields, `FILE` where it is kept."""

    SCHEMA: ClassVar[str]
    VERSION: ClassVar[int]
    FILE: ClassVar[str]
    OLDER: ClassVar[dict[int, dict[str, Any]]] = {}
    """For each older version that can still be read, the fields that it lacks with the values they had then."""


class Mean(Part):
    """A mean that can still be merged: means of means depend on how a batch was cut, (sum, count) pairs do not."""

    sum: float
    count: Count

    @property
    def value(self) -> float | None:
        return self.sum / self.count if self.count else None

    def __add__(self, other: Mean) -> Mean:
        return Mean(sum=self.sum + other.sum, count=self.count + other.count)


class Mismatch(Part):
    """Rollout engine against learner, log-probabilities of the sampled tokens, in nats."""

    max: float
    mean: float
    """Mean of the absolute differences."""
    kl: float
    """Mean of rollout minus learner."""


class Tokens(Part):
    """Token counts of a set of trajectories. The prompt counts once per trajectory."""

    prompt: Count
    context: Count
    """Observations and template between two actions; never scored."""
    generated: Count
    """Sampled by the policy."""
    scored: Count
    """Carry loss (the sum of L_i of Appendix D.1)."""

    def __add__(self, other: Tokens) -> Tokens:
        return Tokens(**{name: getattr(self, name) + getattr(other, name) for name in Tokens.model_fields})


class RunRecord(Record):
    """What a run is; written once, before its first rollout request."""

    SCHEMA: ClassVar[str] = "run"
    VERSION: ClassVar[int] = 2
    FILE: ClassVar[str] = "run.json"
    OLDER: ClassVar[dict[int, dict[str, Any]]] = {1: {"core_independence": None}}

    name: str
    objective: str
    workload: str
    schedule: str
    seed: int
    config: dict[str, Any]
    """The resolved configuration, as plain JSON values."""
    settings_digest: Sha256
    """`digest_of(config)`."""
    tokenizer_digest: Sha256
    workload_digest: Sha256
    """Digest of the training and evaluation task lists."""
    initial_policy_hash: str
    evaluation_tasks: tuple[str, ...]
    """Every held-out task that a checkpoint must be scored on: the denominator of pass@k, fixed before training."""
    evaluation_attempts: Annotated[int, Field(ge=1)]
    budget_seconds: Annotated[float, Field(gt=0)]
    """Training-clock budget at which schedules are compared."""
    devices: Annotated[int, Field(ge=1)]
    """Device-hours are the training clock times this number (Appendix E.3 multiplies by the eight GPUs)."""
    device_name: str
    core_independence: Annotated[float, Field(gt=0)] | None
    """How much of its speed one device kept while the other was busy; well below 1, overlap cannot pay. None: not
    recorded."""
    learner_peak_flops: Annotated[float, Field(gt=0)] | None = None
    """Peak rate P_d of one learner device (Equation 10), as measured when the session started. None: not recorded."""
    cores: dict[str, tuple[int, ...]] | None = None
    """`rollout` (with everything else) and `learner` -> the CPU cores that its processes are pinned to. None: not
    recorded."""
    price_usd_per_device_hour: Annotated[float, Field(gt=0)] | None
    """None: no price is configured, so no cost is reported."""
    initialisation_seconds: Seconds
    """Model and environment start-up, before the training clock starts; reported apart."""
    started_at_utc: AwareDatetime
    """Calendar time at which the training clock starts."""
    commit: Annotated[str, Field(pattern=r"^[0-9a-f]{40}(\+modified)?$")]
    python: str
    platform: str
    packages: dict[str, str]


class PeakMemory(Part):
    """Most memory that a learner process held during an update, and the counter that says so."""

    counter: Literal["cuda_max_memory_allocated", "resident_set"]
    """Tensors on the GPU, as in Appendix B.4; or the resident set of the process on the host, libraries included."""
    bytes: Count


class UpdateRecord(Record):
    """One optimizer step (Equation 3)."""

    SCHEMA: ClassVar[str] = "update"
    VERSION: ClassVar[int] = 1
    FILE: ClassVar[str] = "updates.jsonl"

    update: Count
    """Index of the optimizer step, from 0: the learner version k at which its gradients were evaluated."""
    learner_version: Count
    published_version: Count
    """k + 1."""
    policy_hash: str
    """Of the published policy."""
    groups: tuple[str, ...]
    """Keys of the groups trained in this update (Fully Async may train a group later than it was drawn)."""

    started_at: Seconds
    """First rollout request (Sync, ThunderSync) or previous publication (Async, Fully Async): Appendix B.1."""
    rollout_closed_at: Seconds
    learner_started_at: Seconds
    step_started_at: Seconds
    stepped_at: Seconds
    published_at: Seconds

    trajectories: Count
    tokens: Tokens
    total_trajectories: Count
    """Of all updates up to and including this one, as `total_tokens`."""
    total_tokens: Tokens

    divisor: Annotated[float, Field(gt=0)]
    gradient_norm: NonNegative
    """Global norm before clipping."""
    clip_coefficient: Annotated[float, Field(gt=0, le=1)]
    entropy: float
    """Mean over scored tokens, in nats."""
    logprob_mismatch: Mismatch
    reward: Mean
    success: Mean
    lag_min: Count
    lag_max: Count
    """Learner version minus the version of a trajectory's oldest token, smallest and largest over the batch."""
    uniform_groups: Count
    """Groups whose rewards are all equal: they contribute exactly zero under GRPO."""
    sources: Count
    """Pieces of first-hand learner work (kinds `source` and `direct`); replays and closures are not counted."""
    sources_before_close: Count
    """Those that started before the last trajectory of the batch was complete."""
    peak_memory: PeakMemory | None = None
    """Largest over the learner ranks, from the opening of the batch to the end of its step. None: not recorded."""

    @property
    def step_seconds(self) -> float:
        """Complete update wall time (Appendix B.1)."""
        return self.published_at - self.started_at

    @model_validator(mode="after")
    def _in_order(self) -> UpdateRecord:
        if not self.learner_started_at <= self.step_started_at <= self.stepped_at <= self.published_at:
            raise ValueError("learner_started_at <= step_started_at <= stepped_at <= published_at does not hold")
        return self


class TurnSpans(Part):
    """When a turn was generated, scored by the teacher and acted on."""

    generation_started_at: Seconds
    generated_at: Seconds
    scored_at: Seconds | None
    """None without a teacher."""
    acted_at: Seconds
    """When its command had run, or was found not to be one."""


class TrajectoryRecord(Record):
    SCHEMA: ClassVar[str] = "trajectory"
    VERSION: ClassVar[int] = 1
    FILE: ClassVar[str] = "trajectories.jsonl"

    key: str
    task_id: str
    reward: float | None
    success: bool | None
    outcome: str
    turns: Count
    tokens: Tokens
    oldest_version: int | None
    """Of its oldest sampled token; None when nothing was sampled."""
    newest_version: int | None
    content_at: Seconds
    """When all its tokens were final; the verifier works from here to `reward_at`."""
    reward_at: Seconds
    started_at: Seconds | None = None
    """When it had a slot and its sandbox stood; it keeps both until its reward. None: not recorded, as `turn_spans`."""
    turn_spans: tuple[TurnSpans, ...] | None = None


class SourceRecord(Record):
    """One piece of learner work: `thundersync.ports.Receipt`."""

    SCHEMA: ClassVar[str] = "source"
    VERSION: ClassVar[int] = 2
    FILE: ClassVar[str] = "sources.jsonl"
    OLDER: ClassVar[dict[int, dict[str, Any]]] = {1: {"deferred": ""}}

    key: str | None
    """A group, trajectory or turn; None for the whole batch."""
    kind: str
    update: Count
    ready_at: Seconds
    started_at: Seconds
    ended_at: Seconds
    tokens: Count
    rank: Count
    deferred: Literal["", "open_groups", "waiting_rewards", "graph_memory"]
    """What the work waited for beyond its place in the queue."""


class CheckpointRecord(Record):
    """What Appendix E.3 binds to a checkpoint; its success and failure records are the attempts of its policy hash."""

    SCHEMA: ClassVar[str] = "checkpoint"
    VERSION: ClassVar[int] = 1
    FILE: ClassVar[str] = "checkpoints.jsonl"

    seed: int
    update: Count
    """Optimizer updates completed: 0 is the warm start."""
    reason: Literal["start", "cadence", "final", "interrupt"]
    """All but `interrupt` are on the declared cadence and must be evaluated."""
    policy_hash: str
    published_at: Seconds
    trajectories: Count
    generated_tokens: Count
    path: str
    """Relative to the run directory."""
    tokenizer_digest: Sha256
    workload_digest: Sha256
    settings_digest: Sha256


class AttemptRecord(Record):
    """One try of one evaluation attempt. Retries append lines; nothing is overwritten."""

    SCHEMA: ClassVar[str] = "attempt"
    VERSION: ClassVar[int] = 1
    FILE: ClassVar[str] = "attempts.jsonl"

    policy_hash: str
    task_id: str
    attempt: Count
    seed: int
    """The same in every retry of this attempt (Appendix E.2)."""
    outcome: Literal["graded", "infrastructure"]
    success: bool | None
    """None if and only if the infrastructure failed: such a try is no failure of the agent."""
    reward: float | None
    seconds: Seconds
    tokens: Count
    """Generated tokens."""
    turns: Count
    ended: str
    """The trajectory's outcome, or the infrastructure error's message."""
    retries: Count
    """Infrastructure failures of this attempt before this try."""

    @model_validator(mode="after")
    def _success_iff_graded(self) -> AttemptRecord:
        if (self.success is None) != (self.outcome == "infrastructure"):
            raise ValueError("success is given if and only if the outcome is 'graded'")
        return self


class EndRecord(Record):
    """The run did all it was asked to do; an interrupted run has none."""

    SCHEMA: ClassVar[str] = "end"
    VERSION: ClassVar[int] = 1
    FILE: ClassVar[str] = "end.json"

    reason: Literal["budget", "updates"]
    """Which limit of the configuration ended it."""
    updates: Count
    training_seconds: Seconds


class TargetRecord(Record):
    """The pass@3 target of an objective and workload, fixed before the compared runs start (Appendix E.3)."""

    SCHEMA: ClassVar[str] = "target"
    VERSION: ClassVar[int] = 1
    FILE: ClassVar[str] = "target.json"

    objective: str
    workload: str
    pilot_run: str
    pilot_policy_hash: str
    warm_start_pass3: Annotated[float, Field(ge=0, le=100)]
    pilot_pass3: Annotated[float, Field(ge=0, le=100)]
    target: Annotated[float, Field(ge=0, le=100)]
    """Midpoint of the two, in percent."""
    written_at_utc: AwareDatetime

    @model_validator(mode="after")
    def _midpoint(self) -> TargetRecord:
        if abs(self.target - (self.warm_start_pass3 + self.pilot_pass3) / 2) > 1e-9:
            raise ValueError("target is not the midpoint of warm_start_pass3 and pilot_pass3")
        return self

"""The typed configuration of a run. Validated once, at the start; an unknown key is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from thundersync.learner.settings import LoRASettings
from thundersync.objectives import GRPO, OPD, REINFORCE, RLOO, DrGRPO, Objective
from thundersync.rollout.script import TurnScript
from thundersync.rollout.settings import GenerationSettings

if TYPE_CHECKING:
    from thundersync.learner.adamw import AdamWSettings

Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ScheduleConfig(Part):
    name: Literal["sync", "async", "fully_async", "thundersync"]
    reduction: Literal["direct", "sums"] = "direct"
    """How Sync reduces a complete batch; ThunderSync always streams through sums."""
    lag_bound: Annotated[int, Field(ge=0)] = 2
    """Fully Async: greatest policy lag, in versions, of a token at training."""
    open_groups: Count | None = None
    """ThunderSync: the cap k of Appendix D.3 on groups that hold statistics at once on a rank; null is unbounded."""
    waiting_rewards: Count = 1
    """Release `content`: the cap u on gradients that are held until their reward comes."""
    graph_bytes: Count | None = None
    """Release `turn_forward`: most memory of the graphs that are kept, longest trajectories first; null: no bound."""


class ObjectiveConfig(Part):
    name: Literal["grpo", "dr_grpo", "rloo", "reinforce", "opd"]
    release: Literal["trajectory", "content", "turn_eager", "turn_forward"]
    """When learner work of a trajectory starts; `turn_eager` is for OPD, `trajectory` for the others."""
    prompts_per_update: Count
    trajectories_per_prompt: Count
    sums: Literal["fp32", "exact"] = "fp32"
    """Arithmetic of the running sums: `exact` gives the same bits in any order of arrival, at twice the memory."""
    exact_exponent: Annotated[int, Field(ge=-100, le=0)] = -44
    """Exact sums: gradient entries are rounded to multiples of 2**exact_exponent."""
    advantage_epsilon: Positive = 1e-6
    """GRPO: stabilises the division by sigma."""
    length: Count | None = None
    """Dr. GRPO: the constant number of tokens that stands in place of each trajectory's own; it must be given."""
    score: Literal["sequence", "token_mean"] = "sequence"
    """RLOO: log-probability of the whole trajectory, or the mean of its tokens'."""

    @model_validator(mode="after")
    def _settings_fit(self) -> ObjectiveConfig:
        if self.release not in self.releases:
            fits = " or ".join(self.releases)
            raise ValueError(f"objective.release is {self.release!r}: {self.name} is released by {fits}")
        if self.name == "dr_grpo" and self.length is None:
            raise ValueError("objective.length is not set: Dr. GRPO divides by a constant length, in tokens")
        compares = {"grpo": "GRPO", "dr_grpo": "Dr. GRPO", "rloo": "RLOO"}.get(self.name)
        if compares and self.trajectories_per_prompt < 2:
            raise ValueError(
                f"objective.trajectories_per_prompt is 1: {compares} compares trajectories, set it to 2 or more"
            )
        if self.sums == "exact" and self.build().scope == "batch":
            raise ValueError(f"objective.sums is exact: {self.name} weights by the whole batch, set it to fp32")
        self.build()
        return self

    @property
    def releases(self) -> tuple[str, ...]:
        """The release policies that fit the objective; the paper's first."""
        first = "turn_eager" if self.name == "opd" else "trajectory"
        return (first, "content", "turn_forward")

    def build(self) -> Objective:
        """The objective that these settings describe. Raises ValueError for values that it refuses."""
        prompts = self.prompts_per_update
        match self.name:
            case "grpo":
                return GRPO(prompts=prompts, eps=self.advantage_epsilon)
            case "dr_grpo":
                return DrGRPO(prompts=prompts, length=self.length)
            case "rloo":
                return RLOO(prompts=prompts, score=self.score)
            case "reinforce":
                return REINFORCE(trajectories=prompts * self.trajectories_per_prompt)
            case "opd":
                return OPD()


class WorkloadConfig(Part):
    name: str
    """micro_swe, micro_terminal, or `package.module:function` of your own; others are refused by name."""
    seed: int = 0
    """Of the generated task set."""


class ModelConfig(Part):
    name: str
    """`embedded`: a policy and a teacher that the repository trains itself; otherwise the name of a hub model."""
    revision: str | None = None
    teacher: str | None = None
    teacher_revision: str | None = None
    seed: int = 0
    """Of the warm start of the embedded models."""
    steps: Count = 200
    """Warm-start steps of student and teacher each."""
    demonstrated_tasks: Count | None = None
    """Training tasks whose demonstrations the warm start learns from; null takes all."""
    intermediate: Count | None = None
    """Units of each MLP of the policy, widened to it after the warm start without changing what it computes; null
    leaves it. It sets what a gradient costs beside a rollout."""
    lora: LoRASettings | None = None
    """Adapters that learn while the policy's weights stay frozen (Appendices D.1, D.3); null trains all weights."""


class OptimizerConfig(Part):
    """AdamW with the constants of Table 5; only the learning rate depends on the scale of the model."""

    learning_rate: Positive
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: Positive = 1e-8
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    clip_norm: Positive = 1.0
    moments: Literal["fp32", "bf16"] = "fp32"
    """Storage of both moments; bf16 halves them and rounds stochastically."""

    def build(self) -> AdamWSettings:
        """The settings as the learner takes them."""
        import torch

        from thundersync.learner.adamw import AdamWSettings

        return AdamWSettings(
            learning_rate=self.learning_rate,
            betas=self.betas,
            eps=self.epsilon,
            weight_decay=self.weight_decay,
            max_norm=self.clip_norm,
            moments={"fp32": torch.float32, "bf16": torch.bfloat16}[self.moments],
        )


class ScaleConfig(Part):
    name: Literal["smoke", "embedded", "paper"]
    max_updates: Count | None
    """Optimizer updates at most; null leaves the budget alone to end the run."""
    budget_s: Positive
    """Training-clock seconds at which schedules are compared; the run ends at the next optimizer boundary."""
    checkpoint_every_s: Positive
    """Training-clock cadence of checkpoints, saved at the next optimizer boundary (Appendix E.3)."""
    evaluation_attempts: Count = 3
    evaluation_tasks: Count | None = None
    """Held-out tasks of an evaluation; null takes all."""
    replicas: Count = 1
    """Rollout replicas."""
    learner_ranks: Count = 1
    """Learner processes that share each batch by groups. Ranks beyond the available cores share them."""
    devices: Count
    """What the training clock is multiplied by to give device-hours."""
    device_name: str
    price_usd_per_device_hour: Positive | None = None
    """Cost is reported only where a price is configured."""
    acknowledge_timeout_s: Positive = 60.0
    """A replica that does not acknowledge a publication in this time is named in an error."""
    rollout_timeout_s: Positive = 600.0
    """The run ends with an error that names the open trajectories when no event at all has come for this long."""
    learner_timeout_s: Positive = 3600.0
    """The same for the calls of the learner. It must exceed the longest single call: the whole batch under Sync."""


class RunConfig(Part):
    name: str
    """Directory of the run under `runs`."""
    runs: str
    """Directory that holds the runs."""
    cache: str
    """Directory of generated task sets and warm-started models."""
    seed: int
    logprob_tolerance: Positive | None = 0.01
    """Most nats between the rollout engine's and the learner's log-probability of a token, where every token is the
    current policy's (Sync, ThunderSync); null is unbounded. FP32 on both sides stays below 1e-4."""
    mirror: Literal["none", "tensorboard", "wandb"] = "none"
    """Where the per-update metrics are also sent, live; wandb runs offline."""
    record_batches: bool = False
    """Keep every event with its tokens in batches.jsonl, so that the equivalence check can replay the run."""
    script: TurnScript | None = None
    """Timing runs only: trajectories of a set length, whatever the policy would say; null lets it speak."""
    schedule: ScheduleConfig
    objective: ObjectiveConfig
    workload: WorkloadConfig
    model: ModelConfig
    optimizer: OptimizerConfig
    scale: ScaleConfig
    generation: GenerationSettings


class ConfigError(ValueError):
    """The configuration cannot be run; the message names the setting and its valid values."""


def parse_config(values: Mapping[str, Any]) -> RunConfig:
    """Raises ConfigError with one line per fault: the setting, what is wrong, and for unknown keys the valid ones."""
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(fault) for fault in error.errors())) from None


def settings_of(part: type, prefix: str = "") -> list[str]:
    """The dotted names of all settings of a part of the configuration, those of its own parts included."""
    names = []
    for name in _fields_of(part):
        names.append(f"{prefix}{name}")
        names += settings_of(_part_at(part, name), f"{prefix}{name}.")
    return names


def _fields_of(part: Any) -> list[str]:
    return sorted(getattr(part, "model_fields", None) or getattr(part, "__dataclass_fields__", ()))


def _part_at(part: Any, name: str) -> Any:
    """The type of a field; of one that may be null, the type that it has otherwise."""
    field = part.model_fields[name].annotation if hasattr(part, "model_fields") else get_type_hints(part)[name]
    return next((one for one in get_args(field) if one is not type(None)), field)


def _explain(fault: Mapping[str, Any]) -> str:
    where = ".".join(str(part) for part in fault["loc"])
    if fault["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"unknown setting {where}; valid here: {', '.join(_fields_at(fault['loc'][:-1]))}"
    message = fault["msg"].removeprefix("Value error, ")
    return f"{where}: {message}" if where else message


def _fields_at(path: tuple[Any, ...]) -> list[str]:
    part: Any = RunConfig
    for name in path:
        part = _part_at(part, name)
    return _fields_of(part)

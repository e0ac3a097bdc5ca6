"""What an actor is told when a run takes it into use. Plain data, so that it travels between processes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from thundersync.learner.settings import LoRASettings
from thundersync.objectives import Objective
from thundersync.rollout.script import TurnScript
from thundersync.rollout.settings import GenerationSettings

if TYPE_CHECKING:
    from thundersync.learner.adamw import AdamWSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSpec:
    name: str
    root: Path
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSpec:
    policy: Path
    """Directory of the policy that is served first, with its tokenizer."""
    version: int
    workload: WorkloadSpec
    generation: GenerationSettings
    run_seed: int
    script: TurnScript | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerSpec:
    policy: Path
    """What a run starts from. A resumed one, too: adapters need their base; all else comes from `resume_from`."""
    lora: LoRASettings | None = None
    """Adapters that learn in place of the policy's weights, or None."""
    objective: Objective
    optimizer: AdamWSettings
    graph_bytes: int | None = None
    """Most memory of the graphs that release `turn_forward` keeps; None is unbounded."""
    exact_exponent: int | None = None
    """Exact sums on this grid, or None for FP32 sums."""
    logprob_tolerance: float | None = None
    """Nats between the rollout engine's and the learner's log-probability of a token; None is unbounded."""
    resume_from: Path | None = None
    """Directory of a saved learner state; None starts from the policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """Which of `size` learner ranks a process is, and where the ranks meet."""

    rank: int
    size: int
    address: str
    """Of rank 0, as torch.distributed takes it; unused by a rank alone."""
    timeout_s: float
    """How long a rank waits for the others: as long as the controller waits for the learner."""

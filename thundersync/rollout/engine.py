"""What the agent loop needs from an engine: token ids in, sampled ids with log-probabilities and versions out.

Implemented by `transformers_engine.TransformersEngine` and `fakes.ScriptedEngine`.
Shape legend: P = tokens of the request, A = sampled tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One turn to sample."""

    request_id: str
    """Unique among the requests in flight, for instance update=5/group=3/trajectory=2/turn=0."""
    token_ids: np.ndarray
    """int32 [P]; the whole history, at least one token."""
    max_tokens: int
    """Sampled tokens at most, the stop token included."""
    seed: int
    """Of `seeds.sampling_seed`: the sampled ids are a function of (policy, token_ids, seed)."""
    scripted_ids: np.ndarray | None = None
    """int32 [A]; taken one by one instead of sampled tokens, with the policy's log-probabilities. None samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationResult:
    """The sampled action of one turn."""

    request_id: str
    action_ids: np.ndarray
    """int32 [A]; the stop token is the last one when `finish` is stop."""
    logprobs: np.ndarray
    """float32 [A]; log-probability of each sampled token at temperature one."""
    versions: np.ndarray
    """int32 [A]; the policy version that sampled each token."""
    finish: Literal["stop", "length"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedPolicy:
    """What a replica acknowledges after a publication."""

    version: int
    policy_hash: str
    """Hash of the tensors that the engine computes with now, not of those that it was sent."""
    cached_tokens: int
    """Tokens whose keys and values the prefix cache holds."""
    cleared: bool
    """True when nothing in the prefix cache was computed by an earlier version."""


@dataclass(slots=True, kw_only=True)
class EngineCounters:
    """Running totals since the engine was built."""

    generated_tokens: int = 0
    prefill_tokens: int = 0
    """Prompt and observation tokens that were computed."""
    prefix_hit_tokens: int = 0
    """Prompt and observation tokens that came from the prefix cache instead."""
    steps: int = 0


class Engine(Protocol):
    """A continuous-batching engine, driven by its owner: nothing happens outside `step`."""

    counters: EngineCounters

    def submit(self, request: GenerationRequest) -> None:
        """Queues a request. Raises ValueError when it can never fit the engine."""
        ...

    def step(self) -> list[GenerationResult]:
        """One model call for all active sequences; returns the requests that it finished."""
        ...

    @property
    def busy(self) -> bool:
        """Whether a request is queued or active, so that `step` has work."""
        ...

    def load_weights(self, state_dict: Mapping[str, torch.Tensor], version: int) -> None:
        """Replaces the policy. Sequences in flight go on under it: their keys and values are recomputed first.

        Raises ValueError naming a missing, unknown or misshapen tensor; nothing is replaced then.
        """
        ...

    def clear_caches(self) -> None:
        """Empties the prefix cache."""
        ...

    def served(self) -> ServedPolicy: ...

"""Generation settings: the limits and sampling parameters of Table 6, under the paper's names.

The defaults are the paper's values. A value that the engines do not honour is refused, never ignored.
"""

from __future__ import annotations

from dataclasses import dataclass

_POSITIVE = (
    "max_turns",
    "max_tokens_per_turn",
    "max_generated_tokens",
    "max_prompt_tokens",
    "max_context_tokens",
    "max_observation_tokens",
    "observation_head",
    "observation_tail",
    "active_sequences_per_replica",
    "max_prefill_tokens_per_step",
    "prefix_cache_tokens",
    "concurrent_episodes_per_replica",
)

# What the paper fixes and the engines implement in this one form only.
_ONLY = {
    "top_p": 1.0,
    "top_k": "disabled",
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "tool_calls_per_turn": 1,
    "speculative_decoding": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationSettings:
    """All limits are independent ceilings, the same in training and evaluation (Appendix D.2).

    Raises ValueError naming the setting and what to change.
    """

    max_turns: int = 300
    """Agentic turns of a trajectory; after the last one the attempt ends with outcome turn_limit."""
    max_tokens_per_turn: int = 1024
    """Tokens sampled in one turn; a turn that reaches it is cut there and the attempt goes on."""
    max_generated_tokens: int = 16384
    """Tokens sampled in the whole trajectory; reaching it ends the attempt with outcome generation_limit."""
    max_prompt_tokens: int = 16384
    """Tokens of the initial prompt; a task with a longer one is excluded before training."""
    max_context_tokens: int = 131072
    """Tokens of prompt, actions and observations together; reaching it ends the attempt with outcome context_limit."""
    max_observation_tokens: int = 4096
    """Tokens kept of one tool output."""
    observation_head: int = 2048
    """Of these, how many are the first tokens of a longer output."""
    observation_tail: int = 2048
    """And how many are its last tokens: as many as the head."""
    temperature: float = 1.0
    """Logits are divided by it before sampling. Recorded log-probabilities are at temperature one whatever it is."""
    top_p: float = 1.0
    """Only 1.0: a truncated distribution would not be the policy that the learner differentiates."""
    top_k: str = "disabled"
    """Only "disabled", for the same reason."""
    repetition_penalty: float = 1.0
    """Only 1.0."""
    presence_penalty: float = 0.0
    """Only 0."""
    frequency_penalty: float = 0.0
    """Only 0."""
    tool_calls_per_turn: int = 1
    """Only 1: an action holds at most one tool call."""
    tool_timeout_s: float = 120.0
    """Seconds that one ordinary tool command may take."""
    active_sequences_per_replica: int = 16
    """Decode slots of a rollout replica."""
    prefix_caching: bool = True
    """Whether keys and values of finished prompts and turns are reused."""
    prefix_cache_tokens: int = 65536
    """Tokens that the prefix cache holds before it evicts the least recently used entry."""
    max_prefill_tokens_per_step: int = 512
    """Prompt and observation tokens computed beside the decode rows of one engine step (chunked prefill)."""
    speculative_decoding: bool = False
    """Only False."""
    concurrent_episodes_per_replica: int = 64
    """Sandboxes that a replica keeps open at once; further trajectories wait in admission order."""

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"generation.{name} is {value!r}: it must be a positive whole number")
        for name, only in _ONLY.items():
            if getattr(self, name) != only:
                raise ValueError(
                    f"generation.{name} is {getattr(self, name)!r}: only {only!r}, as in Table 6, is supported"
                )
        for name in ("temperature", "tool_timeout_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"generation.{name} is {getattr(self, name)!r}: it must be greater than 0")
        if self.observation_head != self.observation_tail:
            raise ValueError(
                f"generation.observation_head is {self.observation_head} and observation_tail {self.observation_tail}: "
                "head and tail are kept equally, set both to the same value"
            )
        if self.observation_head + self.observation_tail != self.max_observation_tokens:
            raise ValueError(
                f"generation.observation_head + observation_tail is {self.observation_head + self.observation_tail}: "
                f"set them so that the sum is max_observation_tokens, {self.max_observation_tokens}"
            )
        if self.max_prompt_tokens >= self.max_context_tokens:
            raise ValueError(
                f"generation.max_prompt_tokens is {self.max_prompt_tokens}: it must leave room for an action below "
                f"max_context_tokens, {self.max_context_tokens}"
            )

"""Table 6 as settings: the defaults are the paper's numbers, and what is not honoured is refused by name."""

import pytest

from thundersync.rollout.settings import GenerationSettings

# Read off Table 6 by hand.
TABLE_6 = {
    "max_turns": 300,
    "max_tokens_per_turn": 1024,
    "max_generated_tokens": 16384,
    "max_prompt_tokens": 16384,
    "max_context_tokens": 131072,
    "max_observation_tokens": 4096,
    "observation_head": 2048,
    "observation_tail": 2048,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": "disabled",
    "repetition_penalty": 1.0,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "tool_calls_per_turn": 1,
    "tool_timeout_s": 120,
    "active_sequences_per_replica": 16,
    "prefix_caching": True,
    "speculative_decoding": False,
}


def test_defaults_are_table_6():
    settings = GenerationSettings()
    assert {name: getattr(settings, name) for name in TABLE_6} == TABLE_6


@pytest.mark.parametrize(
    "change",
    [
        {"top_p": 0.9},
        {"top_k": 50},
        {"repetition_penalty": 1.1},
        {"tool_calls_per_turn": 2},
        {"speculative_decoding": True},
        {"max_turns": 0},
        {"max_tokens_per_turn": 1.5},
        {"max_generated_tokens": True},
        {"temperature": 0.0},
        {"temperature": float("nan")},
        {"tool_timeout_s": -1},
        {"observation_head": 2000},
        {"max_observation_tokens": 4000},
        {"max_prompt_tokens": 131072},
    ],
)
def test_a_value_that_would_be_ignored_or_cannot_work_is_refused_by_name(change):
    with pytest.raises(ValueError, match=rf"generation\..*{next(iter(change))}|{next(iter(change))}.*generation"):
        GenerationSettings(**change)

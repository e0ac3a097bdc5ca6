"""Teacher scores against one plain full forward pass: aligned (D9), incremental, and right after any cache loss."""

import asyncio

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rollout_parts import plain_logprobs, tiny_model

from thundersync.batch import TrajectoryKey
from thundersync.rollout.teacher import TeacherScorer

MODEL = tiny_model(3)


def expected(history, action):
    ids = np.concatenate([history, action])
    return plain_logprobs(MODEL, ids)[np.arange(len(history) - 1, len(ids) - 1), action]


@settings(max_examples=25, deadline=None)
@given(
    prompt=st.integers(1, 12),
    turns=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=4),
    forget=st.sets(st.integers(0, 3)),
    prompts_kept=st.integers(1, 3),
)
def test_scores_are_those_of_a_full_forward_pass(prompt, turns, forget, prompts_kept):
    """Two siblings share the prompt; some turns find the trajectory's cache gone."""
    rng = np.random.default_rng(0)
    scorer = TeacherScorer(MODEL, prompts_kept=prompts_kept)
    start = rng.integers(0, 300, prompt).astype(np.int32)
    histories = [start, start]
    for turn, (actions, context) in enumerate(turns):
        for sibling in range(2):
            key = TrajectoryKey(0, 0, sibling)
            if turn in forget:
                asyncio.run(scorer.forget(key))
            action = rng.integers(0, 300, actions).astype(np.int32)
            scores = asyncio.run(scorer.score(key.turn(turn), histories[sibling], action))
            assert scores.dtype == np.float32
            np.testing.assert_allclose(scores, expected(histories[sibling], action), atol=3e-5)
            between = rng.integers(0, 300, context).astype(np.int32)
            histories[sibling] = np.concatenate([histories[sibling], action, between])


def test_a_turn_costs_its_own_tokens_only():
    scorer = TeacherScorer(MODEL)
    key = TrajectoryKey(0, 0, 0)
    prompt, action, context = (np.arange(n, dtype=np.int32) for n in (10, 5, 7))
    scorer.score_now(key, prompt, action)
    assert scorer.computed_tokens == 9 + 1 + 4
    history = np.concatenate([prompt, action, context])
    scorer.score_now(key, history, action)
    assert scorer.computed_tokens == 14 + (1 + 7) + 4
    scorer.score_now(TrajectoryKey(0, 0, 1), prompt, action)  # a sibling starts from the kept prompt
    assert scorer.computed_tokens == 26 + 1 + 4


def test_no_shift_by_one():
    """D9: with student [-1.5] * 3 and teacher scores s the advantages are s_t + 1.5, the first token included."""
    prompt, action = np.array([5, 6, 7], np.int32), np.array([8, 9, 10], np.int32)
    scores = TeacherScorer(MODEL).score_now(TrajectoryKey(0, 0, 0), prompt, action)
    table = plain_logprobs(MODEL, np.array([5, 6, 7, 8, 9, 10]))
    by_hand = np.array([table[2, 8], table[3, 9], table[4, 10]])
    np.testing.assert_allclose(scores - (-1.5), by_hand + 1.5, atol=3e-5)
    one = TeacherScorer(MODEL).score_now(TrajectoryKey(0, 0, 0), prompt, action[:1])
    np.testing.assert_allclose(one, [table[2, 8]], atol=3e-5)


def test_nothing_to_score_is_refused():
    for history, action in (([], [1]), ([1], [])):
        with pytest.raises(ValueError, match="at least one token"):
            TeacherScorer(MODEL).score_now(TrajectoryKey(0, 0, 0), np.array(history), np.array(action))

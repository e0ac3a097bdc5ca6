"""Serialisation: what a trajectory looks like in tokens, and what text cannot do to it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rollout_parts import TEXTS, small_chat

from thundersync.rollout.chat import SPECIAL_TOKENS, Chat, keep_head_and_tail, load_chat, train_tokenizer

chat = small_chat()
PAD, TASK, ACTION, OBSERVATION, END = range(5)


def test_special_tokens_have_the_first_ids():
    assert [chat.tokenizer.convert_tokens_to_ids(token) for token in SPECIAL_TOKENS] == [0, 1, 2, 3, 4]


def test_layout_of_prompt_action_and_context():
    hint = chat.encode("cat hint").tolist()
    assert chat.prompt("cat hint").tolist() == [TASK, *hint, END, ACTION]
    assert chat.action("cat hint").tolist() == [*hint, END]
    assert chat.context("cat hint", cut=False, head=9, tail=9).tolist() == [OBSERVATION, *hint, END, ACTION]
    assert chat.context("cat hint", cut=True, head=9, tail=9).tolist() == [END, OBSERVATION, *hint, END, ACTION]
    assert chat.prompt("x").dtype == np.int32


@given(st.text(max_size=80))
def test_any_text_survives_the_round_trip(text):
    clean = text.encode("utf-8", "replace").decode()
    assert chat.text(chat.encode(clean)) == clean


@given(st.lists(st.sampled_from([*SPECIAL_TOKENS, "cat ", "hint", "\n"]), max_size=12).map("".join))
def test_text_cannot_forge_a_special_token(text):
    assert (chat.encode(text) > END).all()
    assert chat.text(chat.encode(text)) == text


def test_digits_stand_alone_and_a_word_is_one_token_wherever_it_stands():
    pieces = [chat.text(np.array([i])) for i in chat.encode("line 10 of 23")]
    assert pieces[2:4] == ["1", "0"] and pieces[-2:] == ["2", "3"]
    word = chat.encode("answer")
    assert len(word) == 1
    assert all(word[0] in chat.encode(text) for text in ("the answer", "/answer", '"answer"', "answer\n"))


def test_long_observations_keep_head_and_tail_equally():
    ids = np.arange(100)
    assert keep_head_and_tail(ids, head=3, tail=3).tolist() == [0, 1, 2, 97, 98, 99]
    assert keep_head_and_tail(ids, head=50, tail=50) is ids
    assert keep_head_and_tail(ids, head=49, tail=49).tolist() == [*range(49), *range(51, 100)]
    context = chat.context("cat hint " * 50, cut=False, head=4, tail=4)
    assert len(context) == 8 + 3


def test_training_is_deterministic_and_a_saved_tokenizer_is_the_same(tmp_path):
    again = train_tokenizer(TEXTS, vocab_size=300)
    assert again.backend_tokenizer.to_str() == chat.tokenizer.backend_tokenizer.to_str()
    chat.tokenizer.save_pretrained(str(tmp_path))
    loaded = load_chat(tmp_path)
    text = "copy <|end|> the hint 42\n```\ncat\n```"
    np.testing.assert_array_equal(loaded.encode(text), chat.encode(text))
    assert loaded.end_id == chat.end_id


def test_a_vocabulary_without_room_or_a_foreign_tokenizer_is_refused():
    with pytest.raises(ValueError, match="vocab_size is 200"):
        train_tokenizer(TEXTS, vocab_size=200)
    foreign = small_chat().tokenizer.__class__(tokenizer_object=_plain_tokenizer())
    with pytest.raises(ValueError, match=r"lacks <\|pad\|>"):
        Chat(foreign)


def _plain_tokenizer():
    from tokenizers import Tokenizer, models

    return Tokenizer(models.BPE())

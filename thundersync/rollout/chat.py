"""The tokenizer that the repository trains for itself, and how a trajectory is laid out in its tokens.

    prompt  = <|task|> instruction <|end|> <|action|>
    action  = sampled ids, up to and including <|end|> unless a limit cut it
    context = [<|end|> if the action was cut] <|observation|> observation <|end|> <|action|>

Tokens in, tokens out: sampled ids enter the history as they are and are never re-tokenised.
Shape legend: P = prompt tokens, C = context tokens, A = action tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

TASK, ACTION, OBSERVATION, END, PAD = "<|task|>", "<|action|>", "<|observation|>", "<|end|>", "<|pad|>"
SPECIAL_TOKENS = (PAD, TASK, ACTION, OBSERVATION, END)
SMALLEST_VOCABULARY = 256 + len(SPECIAL_TOKENS)

_PIECES = r"\n?```\n?|[A-Za-z]+|[0-9]| ?[^\sA-Za-z0-9]+|\s+"
"""What merges may not cross. A word is the same token after a space, a slash or a quote, so that copying it from an
observation into a command is copying a token; a fence with its line ends is one piece; digits stand alone."""


def train_tokenizer(texts: Iterable[str], *, vocab_size: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE with every digit a token of its own; `texts` come from the training split only.

    The result depends on the texts and their order only. Raises ValueError for a vocabulary smaller than the bytes.
    """
    if vocab_size < SMALLEST_VOCABULARY:
        raise ValueError(
            f"vocab_size is {vocab_size}: it must be at least {SMALLEST_VOCABULARY}, the bytes and specials"
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, eos_token=END, additional_special_tokens=[TASK, ACTION, OBSERVATION]
    )


class Chat:
    """Serialises instructions and observations for one tokenizer, and reads actions.

    Raises ValueError for a tokenizer without the special tokens of this page.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.tokenizer = tokenizer
        ids = {token: tokenizer.get_vocab().get(token) for token in SPECIAL_TOKENS}
        missing = [token for token, index in ids.items() if index is None]
        if missing:
            raise ValueError(f"the tokenizer lacks {', '.join(missing)}: use one made by chat.train_tokenizer")
        self.pad_id, self.task_id, self.action_id, self.observation_id, self.end_id = (ids[t] for t in SPECIAL_TOKENS)

    def encode(self, text: str) -> np.ndarray:
        """int32; a special token's spelling inside `text` is encoded as plain characters: text cannot forge a turn."""
        ids = self.tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        return np.array(ids, np.int32)

    def prompt(self, instruction: str) -> np.ndarray:
        """int32 [P]."""
        return self._join(self.task_id, self.encode(instruction), self.end_id, self.action_id)

    def context(self, observation: str, *, cut: bool, head: int, tail: int) -> np.ndarray:
        """int32 [C]; what stands between an action and the next one. `cut`: the action did not end by itself."""
        kept = keep_head_and_tail(self.encode(observation), head=head, tail=tail)
        closing = [self.end_id] if cut else []
        return self._join(*closing, self.observation_id, kept, self.end_id, self.action_id)

    def action(self, command: str) -> np.ndarray:
        """int32 [A]; how a demonstration writes an action. Never applied to what a policy sampled."""
        return self._join(self.encode(command), self.end_id)

    def text(self, action_ids_A: np.ndarray) -> str:
        """The action as text, to be parsed; its ids stay what they are."""
        return self.tokenizer.decode(action_ids_A.tolist(), skip_special_tokens=True)

    @staticmethod
    def _join(*parts: int | np.ndarray) -> np.ndarray:
        return np.concatenate([np.atleast_1d(np.asarray(part, np.int32)) for part in parts])


def keep_head_and_tail(ids: np.ndarray, *, head: int, tail: int) -> np.ndarray:
    """The first `head` and the last `tail` tokens of a longer output (Appendix D.2), the whole of a shorter one."""
    if len(ids) <= head + tail:
        return ids
    return np.concatenate([ids[:head], ids[len(ids) - tail :]])


def load_chat(policy: Path) -> Chat:
    """The chat of a policy directory, whose tokenizer was saved beside the weights."""
    return Chat(PreTrainedTokenizerFast.from_pretrained(str(policy)))

"""The frozen teacher of on-policy distillation: log pi_T at the student's sampled tokens (Equation 8).

It scores the student's serialised history as it is, ids for ids, at temperature one in FP32. The score of an action
token is read one position before it: the first one from the last token of the history.
Shape legend: P = history tokens, A = action tokens, V = vocabulary.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import torch
from transformers import DynamicCache

from thundersync.batch import SourceKey, TrajectoryKey


class TeacherScorer:
    """Keeps the teacher's keys and values of each open trajectory, so that a turn costs its own tokens only.

    A cache is a shortcut, never a source of truth: what it holds is compared with the history that comes, and a
    trajectory that lost its cache is scored from its first token. Prompts are kept too, for the siblings of a group.
    """

    def __init__(self, model, *, prompts_kept: int = 64) -> None:
        self.model = model.eval().requires_grad_(False)
        self.prompts_kept = prompts_kept
        self.computed_tokens = 0
        """Tokens that the teacher has run forward, in all."""
        self._trajectories: dict[TrajectoryKey, tuple[np.ndarray, DynamicCache]] = {}
        self._prompts: OrderedDict[bytes, DynamicCache] = OrderedDict()

    async def score(self, source: SourceKey, history_ids: np.ndarray, action_ids_A: np.ndarray) -> np.ndarray:
        """float32 [A]: log pi_T(action_t | history, action before t).

        Raises ValueError for an empty action or an empty history: no token could be scored.
        """
        return self.score_now(source.trajectory_key, history_ids, action_ids_A)

    async def forget(self, trajectory: TrajectoryKey) -> None:
        self._trajectories.pop(trajectory, None)

    @torch.inference_mode()
    def score_now(self, trajectory: TrajectoryKey, history_ids: np.ndarray, action_ids_A: np.ndarray) -> np.ndarray:
        """As `score`, without an event loop."""
        if not len(history_ids) or not len(action_ids_A):
            raise ValueError(f"{trajectory}: the teacher needs a history and an action of at least one token each")
        ids = np.concatenate([history_ids, action_ids_A]).astype(np.int64)
        # The last history token is always run again: its logits score the first action token.
        held, cache = self._cached(trajectory, history_ids[:-1])
        # The last action token scores nothing; the next turn runs it with its own history.
        hidden_1TD = self._forward(ids[held:-1], cache)
        self._trajectories[trajectory] = (ids[:-1], cache)
        logits_AV = self.model.get_output_embeddings()(hidden_1TD[0, -len(action_ids_A) :]).float()
        chosen_A1 = torch.from_numpy(action_ids_A.astype(np.int64))[:, None]
        return torch.log_softmax(logits_AV, -1).gather(-1, chosen_A1)[:, 0].numpy()

    def _cached(self, trajectory: TrajectoryKey, wanted: np.ndarray) -> tuple[int, DynamicCache]:
        """A cache holding a prefix of `wanted`, and its length."""
        held, cache = self._trajectories.pop(trajectory, (None, None))
        if held is not None and len(held) <= len(wanted) and np.array_equal(held, wanted[: len(held)]):
            return len(held), cache
        key = wanted.tobytes()
        if key not in self._prompts:
            prompt = DynamicCache(config=self.model.config)
            if len(wanted):
                self._forward(wanted.astype(np.int64), prompt)
            self._prompts[key] = prompt
            if len(self._prompts) > self.prompts_kept:
                self._prompts.popitem(last=False)
        self._prompts.move_to_end(key)
        return len(wanted), _copy(self._prompts[key], self.model.config)

    def _forward(self, ids: np.ndarray, cache: DynamicCache) -> torch.Tensor:
        self.computed_tokens += len(ids)
        return self.model.base_model(
            input_ids=torch.from_numpy(ids)[None], past_key_values=cache, use_cache=True
        ).last_hidden_state


def _copy(cache: DynamicCache, config) -> DynamicCache:
    """A cache that can grow on its own. Growing concatenates, so the layers' tensors can be shared."""
    copy = DynamicCache(config=config)
    for mine, theirs in zip(copy.layers, cache.layers, strict=True):
        if theirs.is_initialized:
            mine.lazy_initialization(theirs.keys, theirs.values)
            mine.keys, mine.values = theirs.keys, theirs.values
    return copy

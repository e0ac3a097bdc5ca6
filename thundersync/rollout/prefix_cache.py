"""Keys and values of finished prompts and turns, found again by their token ids.

The siblings of a group share the prompt; the next turn of a trajectory shares its whole history. An entry is found
through blocks of token ids (the longest run of whole blocks that it shares with the query), then extended by
single tokens.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import torch

BLOCK = 8


class PrefixCache:
    """Least-recently-used, bounded in tokens. An entry is never used under another policy version than its own."""

    def __init__(self, *, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self.tokens = 0
        """Tokens held."""
        self._entries: OrderedDict[bytes, tuple[np.ndarray, torch.Tensor, int]] = OrderedDict()
        self._by_block: dict[tuple[int, bytes], bytes] = {}

    def insert(self, ids_P: np.ndarray, states: torch.Tensor, version: int) -> None:
        """Keeps `states` [layers, 2, heads, P, head_dim], which must not be written to afterwards."""
        key = ids_P.tobytes()
        held = self._entries.get(key)
        if held is not None and held[2] == version:
            self._entries.move_to_end(key)
            return
        if held is not None:
            self._drop(key)
        if len(ids_P) > self.max_tokens:
            return
        self._entries[key] = (ids_P, states, version)
        self.tokens += len(ids_P)
        for end in range(BLOCK, len(ids_P) + 1, BLOCK):
            self._by_block[version, ids_P[:end].tobytes()] = key
        while self.tokens > self.max_tokens:
            self._drop(next(iter(self._entries)))

    def longest(self, ids_P: np.ndarray, version: int) -> tuple[int, torch.Tensor | None]:
        """Length of the longest prefix of `ids_P` found in whole blocks and extended, and the entry's states."""
        for end in range(len(ids_P) // BLOCK * BLOCK, 0, -BLOCK):
            key = self._by_block.get((version, ids_P[:end].tobytes()))
            if key is not None:
                held, states, _ = self._entries[key]
                self._entries.move_to_end(key)
                shorter = min(len(held), len(ids_P))
                differ = np.flatnonzero(held[end:shorter] != ids_P[end:shorter])
                return (end + int(differ[0]) if len(differ) else shorter), states
        return 0, None

    def versions(self) -> set[int]:
        """The policy versions that computed what is held."""
        return {version for _, _, version in self._entries.values()}

    def clear(self) -> None:
        self._entries.clear()
        self._by_block.clear()
        self.tokens = 0

    def _drop(self, key: bytes) -> None:
        ids, _, version = self._entries.pop(key)
        self.tokens -= len(ids)
        for end in range(BLOCK, len(ids) + 1, BLOCK):
            block = (version, ids[:end].tobytes())
            # A younger entry may have taken the block over; it keeps it.
            if self._by_block.get(block) == key:
                del self._by_block[block]

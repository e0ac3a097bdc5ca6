"""Sampling seeds depend on (run seed, update, task, trajectory, turn), never on arrival order (Appendix D.2)."""

from __future__ import annotations

import hashlib

import numpy as np


def sampling_seed(*, run_seed: int, update: int, task_id: str, trajectory: int, turn: int) -> int:
    """The seed of one generated turn: 63 bits of SHA-256, so that it fits a signed 64-bit integer."""
    text = f"{run_seed}\0{update}\0{task_id}\0{trajectory}\0{turn}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def sampling_uniforms(seed: int, count: int) -> np.ndarray:
    """float64 [count], in [0, 1): number t decides token t of the turn. Philox gives the same everywhere."""
    return np.random.Generator(np.random.Philox(key=seed)).random(count)

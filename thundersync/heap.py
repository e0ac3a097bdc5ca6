"""Keeps Python's garbage collector away from what lives as long as the process."""

from __future__ import annotations

import gc


def settle_heap() -> None:
    """Takes everything that is alive now, imported libraries above all, out of the garbage collector's sight.

    A full collection walks through all objects of torch and transformers, and rollout allocates enough to cause many.
    """
    gc.collect()
    gc.freeze()

"""The frozen teacher as a Ray actor (Appendix D.3)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import ray

from thundersync.batch import SourceKey, TrajectoryKey
from thundersync.cluster.placement import import_then_pin
from thundersync.heap import settle_heap


class Teacher:
    def __init__(self, cores: tuple[int, ...]) -> None:
        import_then_pin(cores, "thundersync.rollout.teacher", "transformers.models.auto.modeling_auto")
        self._scorer = None

    async def configure(self, policy: Path) -> None:
        from transformers import AutoModelForCausalLM

        from thundersync.rollout.teacher import TeacherScorer

        settle_heap()
        self._scorer = TeacherScorer(AutoModelForCausalLM.from_pretrained(str(policy), attn_implementation="sdpa"))

    async def score(self, source: SourceKey, history_ids: np.ndarray, action_ids_A: np.ndarray) -> np.ndarray:
        return await self._scorer.score(source, history_ids, action_ids_A)

    async def forget(self, trajectory: TrajectoryKey) -> None:
        await self._scorer.forget(trajectory)


TeacherActor = ray.remote(num_cpus=0, max_concurrency=1_000)(Teacher)

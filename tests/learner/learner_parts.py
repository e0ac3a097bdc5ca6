"""A tiny learner rank, batches with their events, and one update as the schedules drive it."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import numpy as np
import torch
from transformers.models.qwen3 import Qwen3Config

from thundersync.batch import GroupKey, GroupPlan, LogicalBatch, Task, Trajectory, TrajectoryKey, Turn
from thundersync.learner.optimizer import AdamWSettings
from thundersync.learner.policy import load_policy
from thundersync.learner.rank import LearnerRank
from thundersync.learner.ranks import ALONE, RankGroup
from thundersync.objectives import GRPO
from thundersync.ports import ContentReady, Event, Receipt, RewardReady, StepReport, TurnReady

VOCAB, GROUPS, SIZE = 31, 2, 3
TASK = Task(task_id="t", split_group="s", instruction="i")


def make_rank(
    objective=None, dtype=torch.float32, learning_rate=1e-2, *, ranks: RankGroup = ALONE, seed: int = 0, **options
) -> LearnerRank:
    torch.manual_seed(seed)
    config = Qwen3Config(
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        vocab_size=VOCAB,
        tie_word_embeddings=True,
        initializer_range=0.3,
    )
    ticks = count()
    model = load_policy(config, dtype=dtype)
    settings, objective = AdamWSettings(learning_rate=learning_rate), objective or GRPO(prompts=GROUPS)
    return LearnerRank(model, objective, settings, now=lambda: float(next(ticks)), ranks=ranks, **options)


def make_batch(update: int, groups: int = GROUPS) -> LogicalBatch:
    plans = tuple(GroupPlan(key=GroupKey(update, g), task=TASK, size=SIZE) for g in range(groups))
    return LogicalBatch(update=update, groups=plans)


def without_turns(key: TrajectoryKey) -> Trajectory:
    prompt = np.array([1, 2], np.int32)
    return Trajectory(
        key=key, task_id="t", prompt_ids_P=prompt, turns=(), reward=None, success=None, outcome="context_limit"
    )


def make_events(update: int, groups: int = GROUPS) -> list[Event]:
    """Turn, content and reward events of every trajectory, in a readiness order that mixes the groups."""
    rng = np.random.default_rng(update)
    prompts = [rng.integers(0, VOCAB, 6).astype(np.int32) for _ in range(groups)]
    events: list[Event] = []
    for key in rng.permutation(make_batch(update, groups).keys).tolist():
        key = TrajectoryKey(*key)
        turns = []
        for t in range(int(rng.integers(1, 4))):
            action = rng.integers(0, VOCAB, int(rng.integers(1, 6))).astype(np.int32)
            turn = Turn(
                context_ids_C=rng.integers(0, VOCAB, 3 if t else 0).astype(np.int32),
                action_ids_A=action,
                logprobs_A=-rng.random(len(action)).astype(np.float32),
                versions_A=np.full(len(action), update, np.int32),
            )
            turns.append(turn)
            teacher = -rng.random(len(action)).astype(np.float32)
            prompt = prompts[key.group]
            events.append(
                TurnReady(key=key.turn(t), prompt_ids_P=prompt, turn=turn, teacher_logprobs_A=teacher, at=1.0)
            )
        trajectory = Trajectory(
            key=key,
            task_id="t",
            prompt_ids_P=prompts[key.group],
            turns=tuple(turns),
            reward=float(rng.integers(0, 4)) / 3,
            success=None,
            outcome="submitted",
        )
        events.append(ContentReady(trajectory=replace(trajectory, reward=None), at=2.0))
        events.append(RewardReady(trajectory=trajectory, at=3.0))
    return events


def own_events(rank: LearnerRank, update: int, groups: int = GROUPS) -> list[Event]:
    """Those of the groups that this rank learns: all of them, when it is alone."""
    own = {plan.key for plan in rank.ranks.share(make_batch(update, groups)).groups}
    return [event for event in make_events(update, groups) if (event.key.update, event.key.group) in own]


def stream_sources(rank: LearnerRank, update: int, groups: int = GROUPS) -> list[Receipt]:
    """One batch as the schedules drive it, source by source, short of the step."""
    rank.open(make_batch(update, groups))
    left = {GroupKey(update, g): SIZE for g in range(groups)}
    receipts = []
    for event in own_events(rank, update, groups):
        closes = ContentReady if rank.objective.source == "turn" else RewardReady
        if isinstance(event, closes):
            learn = rank.close_trajectory if closes is ContentReady else rank.learn_trajectory
            receipts.append(learn(event))
            left[event.key.group_key] -= 1
            if not left[event.key.group_key]:
                receipts.append(rank.close_group(event.key.group_key))
        elif isinstance(event, TurnReady) and closes is ContentReady:
            receipts.append(rank.learn_turn(event))
    return receipts


def stream_update(rank: LearnerRank, update: int, groups: int = GROUPS) -> tuple[list[Receipt], StepReport]:
    receipts = stream_sources(rank, update, groups)
    return receipts, rank.step()


def direct_update(
    rank: LearnerRank, update: int, groups: int = GROUPS, events: list[Event] | None = None
) -> tuple[list[Receipt], StepReport]:
    rank.open(make_batch(update, groups))
    receipts = rank.learn_batch(own_events(rank, update, groups) if events is None else events)
    return receipts, rank.step()

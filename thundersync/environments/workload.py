"""What a workload is, whatever its tasks are made of and whatever confines them.

workload = load_workload("micro_swe", root=cache)
episode = await workload.open(workload.training[0].task_id)
observation = await episode.run("ls")
verdict = await episode.verify()
await episode.close()
"""

from __future__ import annotations

import hashlib
import importlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from thundersync.batch import Task
from thundersync.splits import Split


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What the agent sees of a command: a function of the task and of the commands so far, never of time or load."""

    text: str
    exit_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the verifier found (Appendix E.1)."""

    reward: float
    success: bool
    """The task's own pass criterion: every designated test passed."""
    tests: dict[str, bool]
    """Designated test -> passed. A test without a result has failed."""


class Episode(Protocol):
    """One attempt at a task: an agent's session, then one verification."""

    async def run(self, command: str) -> Observation: ...

    async def verify(self) -> Verdict:
        """Ends the agent's session and grades the files it left; later calls of `run` raise RuntimeError."""
        ...

    async def close(self) -> None:
        """Frees everything; may be called twice, and at any time."""
        ...


class TaskSource(Protocol):
    """A loader of one task format."""

    @property
    def tasks(self) -> tuple[Task, ...]: ...

    async def open(self, task_id: str) -> Episode: ...

    def reference_commands(self, task_id: str) -> list[str]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Tasks of one kind, split by group (Appendix C.2)."""

    name: str
    training: tuple[Task, ...]
    heldout: tuple[Task, ...]
    source: TaskSource

    @classmethod
    def split(cls, name: str, source: TaskSource, groups: Split) -> Workload:
        """Assigns each task to the side of its group; each side in the order of the tasks' SHA-256."""
        ordered = sorted(source.tasks, key=lambda task: hashlib.sha256(task.task_id.encode()).hexdigest())
        training, heldout = set(groups.training), set(groups.development)
        return cls(
            name=name,
            training=tuple(task for task in ordered if task.split_group in training),
            heldout=tuple(task for task in ordered if task.split_group in heldout),
            source=source,
        )

    async def open(self, task_id: str) -> Episode:
        """Starts an attempt. Raises KeyError for an unknown task, SandboxMissing without a sandbox."""
        return await self.source.open(task_id)

    def reference_commands(self, task_id: str) -> list[str]:
        """Commands that look, then solve, ending before submission. For warm starts and validation, never the agent."""
        return self.source.reference_commands(task_id)


def load_workload(
    name: str,
    *,
    root: Path,
    seed: int = 0,
    training_tasks: int | None = None,
    heldout_tasks: int | None = None,
) -> Workload:
    """The workload called `name`; generated task sets are written below `root` once, under the digest of their files.

    A name of the form `package.module:function` is a workload of the user's own: `function(root, seed)` returns it.
    `training_tasks` and `heldout_tasks` keep the first so many of each side, in the fixed order of the side.
    Raises ValueError, listing the valid ones, for an unknown name, and for more tasks than there are.
    """
    from thundersync.environments import micro_swe, micro_terminal

    builders = {"micro_swe": micro_swe.build, "micro_terminal": micro_terminal.build}
    module, _, function = name.partition(":")
    if function:
        build = getattr(importlib.import_module(module), function)
    elif name in builders:
        build = builders[name]
    else:
        raise ValueError(
            f"unknown workload {name!r}: valid are {', '.join(sorted(builders))}, and package.module:function"
        )
    workload = build(Path(root), seed)
    return replace(
        workload,
        training=_first(workload.training, training_tasks, f"{name}: training_tasks"),
        heldout=_first(workload.heldout, heldout_tasks, f"{name}: heldout_tasks"),
    )


def _first(tasks: tuple[Task, ...], count: int | None, setting: str) -> tuple[Task, ...]:
    if count is None:
        return tasks
    if not 1 <= count <= len(tasks):
        raise ValueError(f"{setting} must lie between 1 and {len(tasks)}, not {count}")
    return tasks[:count]


class TaskError(ValueError):
    """A task that proves nothing: doing nothing solves it, or its reference does not."""


async def validate_task(workload: Workload, task_id: str) -> tuple[Verdict, Verdict]:
    """Verdicts of the no-op and of the reference (Appendix C.2, executable validation).

    Raises TaskError naming the task if the no-op succeeds or the reference does not.
    """
    verdicts = []
    for commands in ([], workload.reference_commands(task_id)):
        episode = await workload.open(task_id)
        try:
            for command in commands:
                await episode.run(command)
            verdicts.append(await episode.verify())
        finally:
            await episode.close()
    noop, reference = verdicts
    if noop.success:
        raise TaskError(f"task {task_id} of {workload.name} is solved by doing nothing: exclude it")
    require_solved(workload, task_id, reference)
    return noop, reference


def require_solved(workload: Workload, task_id: str, reference: Verdict) -> None:
    """Raises TaskError, naming the task, when the verdict of its reference is not success."""
    if not reference.success:
        failed = [test for test, passed in reference.tests.items() if not passed]
        raise TaskError(f"task {task_id} of {workload.name}: its reference fails {', '.join(failed)}: exclude it")

"""Harbor/SETA task directories: task.toml, instruction.md, environment/, tests/, solution/.

The start state is what `environment/Dockerfile` copies into its working directory. Without a container engine only
Dockerfiles of FROM, WORKDIR and COPY can be honoured; others are refused by name. `tests/` and `solution/` never enter
the agent's sandbox.
"""

from __future__ import annotations

import functools
import tomllib
from dataclasses import dataclass
from pathlib import Path

from thundersync.batch import Task
from thundersync.environments.episode import SandboxEpisode
from thundersync.environments.sandbox import SandboxLimits, pack
from thundersync.splits import normalised_group, source_family

REQUIRED = ("task.toml", "instruction.md", "environment/Dockerfile", "tests/test.sh", "solution/solve.sh")


def seta_reward(tests: dict[str, bool]) -> float:
    """r = p + 0.5 * 1[p = 1], p the share of verifier tests passed (Appendix E.1)."""
    p = sum(tests.values()) / len(tests)
    return p + 0.5 * (p == 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDirectory:
    """One task as it lies on disk."""

    path: Path
    instruction: str
    settings: dict

    @classmethod
    def read(cls, path: Path) -> TaskDirectory:
        """Raises ValueError naming the task and what is missing or damaged (the static filter of Appendix C.2)."""
        missing = [name for name in REQUIRED if not (path / name).is_file()]
        if missing:
            raise ValueError(f"task {path.name}: {', '.join(missing)} missing in {path}")
        try:
            settings = tomllib.loads((path / "task.toml").read_text())
        except tomllib.TOMLDecodeError as error:
            raise ValueError(f"task {path.name}: {path / 'task.toml'}: {error}") from None
        instruction = (path / "instruction.md").read_text().strip()
        if not instruction:
            raise ValueError(f"task {path.name}: {path / 'instruction.md'} is empty")
        return cls(path=path, instruction=instruction, settings=settings)

    def start_files(self) -> dict[str, bytes]:
        """Contents by path, relative to the working directory of the Dockerfile."""
        files: dict[str, bytes] = {}
        workdir = "/"
        dockerfile = self.path / "environment" / "Dockerfile"
        for number, line in enumerate(dockerfile.read_text().splitlines(), start=1):
            words = line.split()
            match words[:1]:
                case [] | ["FROM"]:
                    continue
                case ["WORKDIR"] if len(words) == 2:
                    workdir = words[1].rstrip("/")
                case ["COPY"] if len(words) == 3 and words[2].rstrip("/") in (workdir, "."):
                    origin = self.path / "environment" / words[1]
                    found = [p for p in sorted(origin.rglob("*")) if p.is_file()] if origin.is_dir() else [origin]
                    base = origin if origin.is_dir() else origin.parent
                    files |= {str(p.relative_to(base)): p.read_bytes() for p in found}
                case _ if words[0].startswith("#"):
                    continue
                case _:
                    raise ValueError(
                        f"task {self.path.name}: {dockerfile}:{number}: {line.strip()!r} needs a container engine"
                    )
        return files

    def tests(self) -> dict[str, str]:
        return {f"tests/{p.name}": p.read_text() for p in sorted((self.path / "tests").glob("test_*.py"))}


@dataclass(frozen=True, slots=True)
class SetaTasks:
    """Implements `workload.TaskSource` over a directory of task directories."""

    directories: dict[str, TaskDirectory]
    limits: SandboxLimits

    @classmethod
    def read(cls, root: Path, limits: SandboxLimits | None = None) -> SetaTasks:
        directories = {path.name: TaskDirectory.read(path) for path in sorted(root.iterdir()) if path.is_dir()}
        if not directories:
            raise ValueError(f"no task directories in {root}")
        return cls(directories, limits or SandboxLimits())

    @property
    def tasks(self) -> tuple[Task, ...]:
        return tuple(
            Task(task_id=name, split_group=normalised_group(source_family(name)), instruction=task.instruction)
            for name, task in self.directories.items()
        )

    async def open(self, task_id: str) -> SandboxEpisode:
        start, tests = _prepare(self.directories[task_id].path)
        return await SandboxEpisode.open(
            start,
            tests=dict(tests),
            designated=tuple(f"{path}::{name}" for path, text in tests for name in designated_names(text)),
            grade=seta_reward,
            limits=self.limits,
        )

    def reference_commands(self, task_id: str) -> list[str]:
        """The lines of solution/solve.sh, without comments and shell options."""
        lines = (self.directories[task_id].path / "solution" / "solve.sh").read_text().splitlines()
        return [line for line in lines if line.strip() and not line.startswith(("#", "set "))]


def designated_names(source: str) -> list[str]:
    """Names of the top-level test functions of a verifier file."""
    return [line[4 : line.index("(")] for line in source.splitlines() if line.startswith("def test_")]


@functools.lru_cache(maxsize=1024)
def _prepare(path: Path) -> tuple[bytes, tuple[tuple[str, str], ...]]:
    """The start state's archive, and the verifier's files."""
    task = TaskDirectory.read(path)
    tests = tuple(task.tests().items())
    if not any(designated_names(text) for _, text in tests):
        raise ValueError(f"task {path.name}: no test function in {path / 'tests'}/test_*.py")
    return pack(task.start_files()), tests

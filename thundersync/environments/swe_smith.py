"""SWE-smith rows: instance_id, repo, image_name, problem_statement, patch, FAIL_TO_PASS, PASS_TO_PASS.

`patch` is the bug: the start state is the base repository with it applied, and the repair is its reverse. Rows come
from a JSON Lines file; base repositories are directories `repositories/OWNER__REPO` beside it, and the folder `tests/`
of each stays outside the agent's file system. Embedded sets have `references.jsonl` as well: the evaluator's own
command sequences.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path

from thundersync.batch import Task
from thundersync.environments.episode import SandboxEpisode
from thundersync.environments.patches import apply_patch
from thundersync.environments.sandbox import SandboxLimits, pack
from thundersync.splits import normalised_group

FIELDS = ("instance_id", "repo", "image_name", "problem_statement", "patch", "FAIL_TO_PASS", "PASS_TO_PASS")


def read_rows(path: Path) -> list[dict]:
    """Rows of a JSON Lines file, one per instance_id. Raises ValueError with file and line of a damaged one."""
    rows, seen = [], set()
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{path}:{number}: not a JSON object ({error})") from None
        missing = [name for name in FIELDS if not isinstance(row, dict) or not row.get(name)]
        if missing:
            raise ValueError(f"{path}:{number}: the row lacks {', '.join(missing)}")
        if row["instance_id"] in seen:
            raise ValueError(f"{path}:{number}: instance {row['instance_id']} comes twice")
        seen.add(row["instance_id"])
        rows.append(row)
    return rows


def swe_reward(tests: dict[str, bool]) -> float:
    """One only when all designated repair and regression tests pass (Appendix E.1)."""
    return float(all(tests.values()))


@dataclass(frozen=True, slots=True)
class SweSmithTasks:
    """Implements `workload.TaskSource` over a directory with `tasks.jsonl` and `repositories/`."""

    root: Path
    rows: dict[str, dict]
    references: dict[str, list[str]]
    limits: SandboxLimits

    @classmethod
    def read(cls, root: Path, limits: SandboxLimits | None = None) -> SweSmithTasks:
        rows = {row["instance_id"]: row for row in read_rows(root / "tasks.jsonl")}
        references = {}
        if (root / "references.jsonl").exists():
            for line in (root / "references.jsonl").read_text().splitlines():
                entry = json.loads(line)
                references[entry["instance_id"]] = entry["commands"]
        return cls(root, rows, references, limits or SandboxLimits())

    @property
    def tasks(self) -> tuple[Task, ...]:
        return tuple(
            Task(task_id=name, split_group=normalised_group(row["repo"]), instruction=row["problem_statement"])
            for name, row in self.rows.items()
        )

    async def open(self, task_id: str) -> SandboxEpisode:
        row = self.rows[task_id]
        start, tests = _prepare(self.root / "repositories" / row["repo"].replace("/", "__"), task_id, row["patch"])
        return await SandboxEpisode.open(
            start,
            tests=dict(tests),
            designated=(*row["FAIL_TO_PASS"], *row["PASS_TO_PASS"]),
            grade=swe_reward,
            limits=self.limits,
        )

    def reference_commands(self, task_id: str) -> list[str]:
        if task_id not in self.references:
            raise KeyError(f"{self.root / 'references.jsonl'} has no commands for {task_id}")
        return list(self.references[task_id])


@functools.lru_cache(maxsize=1024)
def _prepare(repository: Path, task_id: str, patch: str) -> tuple[bytes, tuple[tuple[str, str], ...]]:
    """The start state's archive, and the verifier's files."""
    files = {str(p.relative_to(repository)): p.read_bytes() for p in sorted(repository.rglob("*")) if p.is_file()}
    if not files:
        raise ValueError(f"task {task_id}: the base repository {repository} is missing")
    tests = tuple((name, files.pop(name).decode()) for name in sorted(files) if name.startswith("tests/"))
    try:
        return pack(apply_patch(files, patch)), tests
    except ValueError as error:
        raise ValueError(f"task {task_id}: {error}") from None

"""Run directories as records, and as pandas frames for whoever wants to look around."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from thundersync.records import (
    AttemptRecord,
    CheckpointRecord,
    RunDirectory,
    RunRecord,
    SourceRecord,
    TrajectoryRecord,
    UpdateRecord,
)
from thundersync.records.schemas import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run, as far as curves and step times need it."""

    path: Path
    record: RunRecord
    updates: tuple[UpdateRecord, ...]
    checkpoints: tuple[CheckpointRecord, ...]

    @property
    def name(self) -> str:
        return self.path.name


def load_run(path: Path) -> Run:
    """Raises RecordError naming the file (and line) that is missing or damaged."""
    directory = RunDirectory(path)
    return Run(
        path=directory.path,
        record=directory.run(),
        updates=tuple(directory.read(UpdateRecord)),
        checkpoints=tuple(directory.read(CheckpointRecord)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDetails:
    """What happened within the updates of a run."""

    trajectories: tuple[TrajectoryRecord, ...]
    sources: tuple[SourceRecord, ...]


def load_details(run: Run) -> RunDetails:
    """Raises RecordError naming the file (and line) that is missing or damaged."""
    directory = RunDirectory(run.path)
    return RunDetails(trajectories=tuple(directory.read(TrajectoryRecord)), sources=tuple(directory.read(SourceRecord)))


class Attempts:
    """Evaluation attempts by run and policy.

    A policy hash names its parameters, so a policy that two runs share (the warm start, or Sync and ThunderSync where
    they agree bit for bit) needs one evaluation only: the most complete one, a run's own where they are equal.
    """

    def __init__(self, directories: Iterable[Path]):
        self._by_run: dict[str, dict[str, list[AttemptRecord]]] = {}
        for path in sorted(Path(p) for p in directories):
            by_policy = self._by_run[path.name] = defaultdict(list)
            for record in RunDirectory(path).read_if_any(AttemptRecord):
                by_policy[record.policy_hash].append(record)

    def of(self, run: str, policy_hash: str) -> list[AttemptRecord]:
        """All tries for the policy; empty when it was never evaluated."""
        homes = [run, *(name for name in self._by_run if name != run)]
        candidates = [self._by_run[name].get(policy_hash, []) for name in homes if name in self._by_run]
        return max(candidates, key=lambda tries: sum(t.outcome == "graded" for t in tries), default=[])


def updates_frame(run: Run) -> pd.DataFrame:
    """One row per update; nested fields as dotted columns, with `step_seconds` and `mean_reward`."""
    frame = _frame(run.updates)
    frame["step_seconds"] = [u.step_seconds for u in run.updates]
    frame["mean_reward"] = [u.reward.value for u in run.updates]
    return frame


def sources_frame(run: Run) -> pd.DataFrame:
    """One row per piece of learner work."""
    return _frame(RunDirectory(run.path).read(SourceRecord))


def _frame(records: Iterable[Record]) -> pd.DataFrame:
    return pd.json_normalize([record.model_dump(mode="json") for record in records])

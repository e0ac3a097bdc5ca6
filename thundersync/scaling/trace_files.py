"""Traces of any trainer, as CSV or JSON Lines, and the two public logs of a synchronous GRPO run.

One row is one piece of learner work:

    trajectory, group, turn, ready, service          and optionally   update, rank, content

`ready` is in seconds from the first rollout request of its update, `service` in seconds of learner work; `turn` is
empty or absent for the work of a whole trajectory, `trajectory` for that of a whole group. Names of both are free.
`content` is when the last token of the trajectory was final, before its reward.
"""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from thundersync.scaling.trace import WHOLE, Job, StepTrace, Trace, unit_of

GROUP_LOG, TRAINING_LOG = "grpo_group_latencies.csv", "grpo_train_steps.csv"


class TraceError(ValueError):
    """The trace cannot be read; the message names file, line and what is wrong."""


def _none_if_empty(value: Any) -> Any:
    return None if isinstance(value, str) and not value.strip() else value


Name = Annotated[str | int | None, BeforeValidator(_none_if_empty)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Optional = Annotated[Seconds | None, BeforeValidator(_none_if_empty)]
Index = Annotated[int, Field(ge=0)]


class Row(BaseModel):
    """One piece of learner work."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    group: Annotated[str | int, BeforeValidator(_none_if_empty)]
    trajectory: Name = None
    turn: Annotated[Index | None, BeforeValidator(_none_if_empty)] = None
    ready: Seconds
    service: Seconds
    update: Index = 0
    rank: Index = 0
    content: Optional = None


class GroupLatency(BaseModel):
    """A line of the group log: seconds that a group's rollout took, and the run's clock."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    update: Index
    group: Index
    rollout_latency_s: Seconds
    samples: Annotated[int, Field(ge=1)]
    output_tokens: Index
    finished_elapsed_s: Seconds
    submitted_elapsed_s: Seconds


class TrainingStep(BaseModel):
    """A line of the training log."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    update: Index
    train_latency_s: Seconds
    finished_elapsed_s: Seconds
    published_elapsed_s: Seconds


M = TypeVar("M", bound=BaseModel)


def read_rows_trace(path: Path, suffix: float = 0.0) -> Trace:
    """A trace of rows (.csv, .jsonl); `suffix` is P of every step in seconds, which rows do not tell.

    R is the latest readiness. Raises TraceError naming file and line.
    """
    path = Path(path)
    if path.suffix not in (".csv", ".jsonl"):
        raise TraceError(f"{path}: a trace ends in .csv or .jsonl")
    updates: dict[int, list[Row]] = defaultdict(list)
    for row in _parsed(path, Row):
        updates[row.update].append(row)
    if not updates:
        raise TraceError(f"{path} has no rows")
    steps = []
    for update, rows in sorted(updates.items()):
        jobs = tuple(_jobs(rows))
        steps.append(StepTrace(update=update, rollout=max(job.ready for job in jobs), suffix=suffix, jobs=jobs))
    units = unit_of([job for step in steps for job in step.jobs])
    notes = ("P is 0: give it with --suffix",) if suffix == 0 else ()
    return Trace(source=str(path), steps=tuple(steps), unit=units, notes=notes)


def read_public_logs(folder: Path) -> Trace:
    """The two logs of a public synchronous GRPO run (16 groups of 4): one job per group, training split evenly.

    R is the slowest group's latency, L `train_latency_s`, P published minus finished. Observed is from publication to
    publication, so the first update, which has no publication before it, is left out. Raises TraceError.
    """
    groups: dict[int, list[GroupLatency]] = defaultdict(list)
    for row in _parsed(Path(folder) / GROUP_LOG, GroupLatency):
        groups[row.update].append(row)
    training = list(_parsed(Path(folder) / TRAINING_LOG, TrainingStep))
    if lacking := [row.update for row in training if row.update not in groups]:
        raise TraceError(f"{Path(folder) / GROUP_LOG} has no group of update {lacking[0]}, which the training log has")
    steps = []
    for before, row in zip(training, training[1:], strict=False):
        own = groups[row.update]
        service = row.train_latency_s / len(own)
        steps.append(
            StepTrace(
                update=row.update,
                rollout=max(group.rollout_latency_s for group in own),
                suffix=row.published_elapsed_s - row.finished_elapsed_s,
                jobs=tuple(Job(group=g.group, ready=g.rollout_latency_s, service=service) for g in own),
                observed=row.published_elapsed_s - before.published_elapsed_s,
            )
        )
    notes = (
        "training is split evenly over the groups of an update",
        "observed is from publication to publication; update 0 has none before it and is left out",
    )
    return Trace(source=str(folder), steps=tuple(steps), unit="group", notes=notes)


def _jobs(rows: Iterable[Row]) -> Iterator[Job]:
    """Rows as jobs: names of groups and trajectories become numbers in order of appearance."""
    groups: dict[str, int] = {}
    trajectories: dict[tuple[str, str], int] = {}
    for row in rows:
        group, trajectory = str(row.group), WHOLE
        if row.trajectory is not None:
            trajectory = trajectories.setdefault((group, str(row.trajectory)), len(trajectories))
        yield Job(
            group=groups.setdefault(group, len(groups)),
            trajectory=trajectory,
            turn=WHOLE if row.turn is None else row.turn,
            ready=row.ready,
            service=row.service,
            rank=row.rank,
            content=row.content,
        )


def _parsed(path: Path, model: type[M]) -> Iterator[M]:
    for line, raw in _raw_rows(path):
        where = f"{path}, line {line}"
        if None in raw or None in raw.values():
            raise TraceError(f"{where}: damaged row, it has more or fewer fields than the head of the file")
        try:
            yield model.model_validate(raw)
        except ValidationError as error:
            faults = sorted(error.errors(), key=lambda fault: fault["type"] != "extra_forbidden")
            raise TraceError(f"{where}: {_explain(faults[0], model)}") from None


def _raw_rows(path: Path) -> Iterator[tuple[int, dict[Any, Any]]]:
    """(line number, fields as they stand) of a CSV with a head or a JSON Lines file."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise TraceError(f"{path} is missing") from None
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: not UTF-8 at byte {error.start}") from None
    if path.suffix == ".csv":
        reader = csv.DictReader(text.splitlines())
        for row in reader:
            yield reader.line_num, row
        return
    for line, content in enumerate(text.splitlines(), start=1):
        if not content.strip():
            continue
        try:
            row = json.loads(content)
        except json.JSONDecodeError as error:
            raise TraceError(f"{path}, line {line}: damaged row, not JSON ({error.msg})") from None
        if not isinstance(row, dict):
            raise TraceError(f"{path}, line {line}: damaged row, an object was expected")
        yield line, {name: "" if value is None else value for name, value in row.items()}


def _explain(fault: Any, model: type[BaseModel]) -> str:
    column = fault["loc"][0] if fault["loc"] else "row"
    if fault["type"] == "extra_forbidden":
        return f"unknown column {column!r}; valid are {', '.join(model.model_fields)}"
    if fault["type"] == "missing":
        return f"column {column!r} is missing; valid are {', '.join(model.model_fields)}"
    return f"damaged row, {column} is {fault['input']!r}: {fault['msg']}"

"""Append-only JSON Lines under a run directory.

Writers flush per line. A killed process can leave one torn last line: readers refuse it, and `RunDirectory.repair`
removes it when a run is resumed.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import IO, TypeVar

from pydantic import ValidationError

from thundersync.records.batches import BatchEventRecord
from thundersync.records.schemas import (
    CheckpointRecord,
    EndRecord,
    Record,
    RunRecord,
    SourceRecord,
    TrajectoryRecord,
    UpdateRecord,
)

R = TypeVar("R", bound=Record)


class RecordError(ValueError):
    """A record is missing, damaged, of another schema or version, or would be overwritten."""


def to_line(record: Record) -> str:
    head = {"schema": record.SCHEMA, "version": record.VERSION}
    return json.dumps(head | record.model_dump(mode="json"), allow_nan=False, ensure_ascii=False)


def parse_record(text: str, model: type[R], where: str) -> R:
    """Raises RecordError, naming `where`, for anything but a record of this schema in a version that can be read."""
    try:
        raw = json.loads(text)
    except json.JSONDecodeError as error:
        raise RecordError(f"{where}: damaged record, not JSON ({error.msg} at column {error.colno})") from None
    if not isinstance(raw, dict):
        raise RecordError(f"{where}: damaged record, an object was expected")
    found = (raw.pop("schema", None), raw.pop("version", None))
    if found[0] == model.SCHEMA and found[1] in model.OLDER:
        raw = model.OLDER[found[1]] | raw
    elif found != (model.SCHEMA, model.VERSION):
        raise RecordError(
            f"{where}: schema {found[0]!r} version {found[1]} found, {model.SCHEMA!r} version {model.VERSION} expected"
        )
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "record"
        raise RecordError(f"{where}: damaged record, {field}: {first['msg']}") from None


def read_json(path: Path, model: type[R]) -> R:
    """One record that is a whole file. Raises RecordError naming the file."""
    return parse_record(_text(path), model, str(path))


def write_json(path: Path, record: Record) -> None:
    """Writes a record that is a whole file; refuses to overwrite one. The file appears complete or not at all."""
    path = Path(path)
    if path.exists():
        raise RecordError(f"{path} exists already: records are never overwritten")
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".partial")
    draft.write_text(to_line(record) + "\n", encoding="utf-8")
    draft.replace(path)


def read_lines(path: Path, model: type[R]) -> list[R]:
    """All records of a JSON Lines file, in order. Raises RecordError naming the file and line."""
    text = _text(path)
    if text and not text.endswith("\n"):
        raise RecordError(f"{path}, line {text.count(chr(10)) + 1}: torn record; resume the run to repair the file")
    return [parse_record(line, model, f"{path}, line {i}") for i, line in enumerate(text.splitlines(), start=1)]


def _text(path: Path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise RecordError(f"{path} is missing") from None
    except UnicodeDecodeError as error:
        raise RecordError(f"{path}: damaged record, not UTF-8 at byte {error.start}") from None


class RunDirectory:
    """The records of one run. Opening it creates nothing; one process appends to a file at a time."""

    def __init__(self, path: Path | str):
        self.path = Path(path)
        self._open: dict[str, IO[str]] = {}

    @classmethod
    def create(cls, path: Path | str, run: RunRecord) -> RunDirectory:
        """Starts a run's records. Raises RecordError when the directory already holds a run."""
        directory = cls(path)
        write_json(directory.path / RunRecord.FILE, run)
        return directory

    @property
    def name(self) -> str:
        return self.path.name

    def run(self) -> RunRecord:
        return read_json(self.path / RunRecord.FILE, RunRecord)

    def read(self, model: type[R]) -> list[R]:
        return read_lines(self.path / model.FILE, model)

    def read_if_any(self, model: type[R]) -> list[R]:
        """As `read`, but a file that was never begun holds no records."""
        return self.read(model) if (self.path / model.FILE).exists() else []

    @property
    def ended(self) -> bool:
        return (self.path / EndRecord.FILE).exists()

    def end(self, record: EndRecord) -> None:
        self.close()
        write_json(self.path / EndRecord.FILE, record)

    def append(self, record: Record) -> None:
        """Writes one line and flushes it. Raises RecordError on a torn file."""
        handle = self._open.get(record.FILE) or self._append_handle(record.FILE)
        handle.write(to_line(record) + "\n")
        handle.flush()

    def _append_handle(self, name: str) -> IO[str]:
        path = self.path / name
        if path.exists() and path.stat().st_size:
            with path.open("rb") as file:
                file.seek(-1, 2)
                if file.read(1) != b"\n":
                    raise RecordError(f"{path} ends in a torn line: resume the run to repair it before writing")
        self.path.mkdir(parents=True, exist_ok=True)
        self._open[name] = path.open("a", encoding="utf-8")
        return self._open[name]

    def close(self) -> None:
        for handle in self._open.values():
            handle.close()
        self._open.clear()

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def repair(self) -> list[str]:
        """Drops a torn last line of each file, with a warning. Returns what was dropped. For resuming only."""
        self.close()
        dropped = []
        for path in sorted(self.path.glob("*.jsonl")):
            data = path.read_bytes()
            whole = data[: data.rfind(b"\n") + 1]
            if whole != data:
                dropped.append(f"{path}, line {whole.count(10) + 1}")
                warnings.warn(f"{dropped[-1]}: torn record dropped", stacklevel=2)
                with path.open("r+b") as file:
                    file.truncate(len(whole))
        return dropped

    def rewind(self, updates: int) -> int:
        """Resuming at a checkpoint of `updates` completed updates: sets later lines aside, since they will be redone.

        They move to `superseded-N/`, so that nothing is lost and no update counts twice. Returns the lines moved.
        """
        self.close()
        kept_updates = [u for u in self.read_if_any(UpdateRecord) if u.update < updates]
        kept_groups = {group for u in kept_updates for group in u.groups}
        keep = {
            UpdateRecord: lambda r: r.update < updates,
            SourceRecord: lambda r: r.update < updates,
            BatchEventRecord: lambda r: r.update < updates,
            TrajectoryRecord: lambda r: r.key.rsplit("/trajectory=")[0] in kept_groups,
            CheckpointRecord: lambda r: r.update <= updates,
        }
        aside = self.path / f"superseded-{len(list(self.path.glob('superseded-*'))) + 1}"
        moved = 0
        for model, keeps in keep.items():
            records = self.read_if_any(model)
            stay = [record for record in records if keeps(record)]
            if len(stay) < len(records):
                moved += len(records) - len(stay)
                aside.mkdir(exist_ok=True)
                path = self.path / model.FILE
                draft = path.with_suffix(".partial")
                draft.write_text("".join(to_line(record) + "\n" for record in stay), encoding="utf-8")
                path.replace(aside / model.FILE)
                draft.replace(path)
        return moved

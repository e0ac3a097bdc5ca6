"""The Journal port: records of everything that happens, checkpoints on their cadence, and when to stop."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from thundersync.batch import TrajectoryKey
from thundersync.config import ScaleConfig
from thundersync.ports import Clock, ContentReady, Event, PublishedUpdate, Receipt, RewardReady
from thundersync.records import (
    CheckpointRecord,
    EndRecord,
    RunDirectory,
    RunRecord,
    UpdateRecord,
    batch_event_record,
    checkpoint_record,
    source_record,
    trajectory_record,
    update_record,
)

Save = Callable[[Path, Path], Awaitable[None]]
"""Saves (policy directory, learner state directory) at an optimizer boundary."""


@dataclass(slots=True, kw_only=True)
class RunJournal:
    """Writes the records of one run. `stop_requested` ends the run at the next optimizer boundary, saved."""

    directory: RunDirectory
    run: RunRecord
    scale: ScaleConfig
    clock: Clock
    save: Save
    mirror: Callable[[UpdateRecord], None]
    record_batches: bool = False
    """Whether every event is kept with its tokens, for a replay (Appendix G)."""
    last: UpdateRecord | None = None
    """The record of the last published update; a resumed run starts with that of its checkpoint."""
    stop_requested: bool = False
    _content_at: dict[TrajectoryKey, float] = field(default_factory=dict)
    _receipts: list[Receipt] = field(default_factory=list)

    @property
    def updates(self) -> int:
        return self.last.update + 1 if self.last else 0

    def event(self, event: Event) -> None:
        if self.record_batches:
            self.directory.append(batch_event_record(event))
        if isinstance(event, ContentReady):
            self._content_at[event.key] = event.at
        elif isinstance(event, RewardReady):
            record = trajectory_record(event, content_at=self._content_at.pop(event.key))
            self.directory.append(record)

    def receipt(self, receipt: Receipt) -> None:
        self._receipts.append(receipt)
        self.directory.append(source_record(receipt))

    async def update_published(self, update: PublishedUpdate) -> bool:
        """Records the update; saves a checkpoint when one is due; False when the run is over or was asked to stop."""
        due = self._checkpoint_is_due(update.published_at)
        self.last = update_record(update, receipts=self._receipts, previous=self.last)
        self._receipts = []
        self.directory.append(self.last)
        self.mirror(self.last)
        end = self._end()
        if end is not None or due or self.stop_requested:
            await self.checkpoint("final" if end else "cadence" if due else "interrupt")
        if end is not None:
            self.directory.end(end)
        return end is None and not self.stop_requested

    async def checkpoint(self, reason: str) -> CheckpointRecord:
        """Saves policy and learner state as they stand after the last update, then records the checkpoint."""
        policy = Path("checkpoints") / f"update-{self.updates:05d}"
        state = self.directory.path / "state" / f"update-{self.updates:05d}"
        await self.save(self.directory.path / policy, state)
        record = checkpoint_record(run=self.run, reason=reason, path=str(policy), after=self.last, updates=self.updates)
        self.directory.append(record)
        # Only now: killed before its record is there, the run goes on from an older state.
        for older in set(state.parent.iterdir()) - {state}:
            shutil.rmtree(older)
        return record

    def _checkpoint_is_due(self, now: float) -> bool:
        """Whether a multiple of the cadence has passed since the last published update (Appendix E.3)."""
        before = self.last.published_at if self.last else 0.0
        return int(now // self.scale.checkpoint_every_s) > int(before // self.scale.checkpoint_every_s)

    def _end(self) -> EndRecord | None:
        reason = None
        if self.last.published_at >= self.scale.budget_s:
            reason = "budget"
        elif self.scale.max_updates is not None and self.updates >= self.scale.max_updates:
            reason = "updates"
        if reason is None:
            return None
        return EndRecord(reason=reason, updates=self.updates, training_seconds=self.last.published_at)

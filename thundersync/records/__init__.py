"""Everything that a run writes to disk: schemas with versions, append-only writers, strict readers, builders.

    runs/NAME/run.json            what the run is: configuration, seed, versions, commit, devices
              updates.jsonl       one line per optimizer step
              trajectories.jsonl  one line per finished trajectory
              sources.jsonl       one line per piece of learner work
              batches.jsonl       every event with its tokens, where record_batches is set
              checkpoints.jsonl   what Appendix E.3 binds to a checkpoint
              attempts.jsonl      one line per evaluation attempt, retries and infrastructure failures included
              end.json            written when the run has completed what it was asked to do

Every time is in seconds on the training clock, which starts with the first rollout request (Appendix E.3).
"""

from thundersync.records.attempts import Incomplete, outcomes
from thundersync.records.batches import BatchEventRecord, batch_event_record, recorded_batches
from thundersync.records.build import checkpoint_record, run_record, source_record, trajectory_record, update_record
from thundersync.records.files import RecordError, RunDirectory, read_json, read_lines, write_json
from thundersync.records.provenance import digest_of, source_commit, utc_now
from thundersync.records.schemas import (
    AttemptRecord,
    CheckpointRecord,
    EndRecord,
    Mean,
    Mismatch,
    PeakMemory,
    RunRecord,
    SourceRecord,
    TargetRecord,
    Tokens,
    TrajectoryRecord,
    TurnSpans,
    UpdateRecord,
    parse_key,
)

__all__ = [
    "AttemptRecord",
    "BatchEventRecord",
    "CheckpointRecord",
    "EndRecord",
    "Incomplete",
    "Mean",
    "Mismatch",
    "PeakMemory",
    "RecordError",
    "RunDirectory",
    "RunRecord",
    "SourceRecord",
    "TargetRecord",
    "Tokens",
    "TrajectoryRecord",
    "TurnSpans",
    "UpdateRecord",
    "batch_event_record",
    "checkpoint_record",
    "digest_of",
    "outcomes",
    "parse_key",
    "read_json",
    "read_lines",
    "recorded_batches",
    "run_record",
    "source_commit",
    "source_record",
    "trajectory_record",
    "update_record",
    "utc_now",
    "write_json",
]

"""The target pass@3: midpoint between warm start and pilot, fixed before the compared runs start (Appendix E.3)."""

from __future__ import annotations

from pathlib import Path

from analysis.campaign import ScoreTasks, scored_checkpoints
from analysis.load import Attempts, load_run
from thundersync.records import TargetRecord, read_json, utc_now, write_json


def target_path(root: Path, objective: str, workload: str) -> Path:
    return Path(root) / "targets" / f"{objective}-{workload}.json"


def write_target(root: Path, objective: str, workload: str, *, pilot: Path, score: ScoreTasks) -> TargetRecord:
    """Writes the target of an objective and workload from its evaluated pilot; one that stands already is kept.

    `score` is pass@3 of each task, as the figures compute it. Raises Incomplete when the pilot is not evaluated.
    """
    path = target_path(root, objective, workload)
    if path.exists():
        return read_json(path, TargetRecord)
    run = load_run(pilot)
    attempts = Attempts(p.parent for p in Path(root).glob(f"*-{workload}-*/attempts.jsonl"))
    scored = scored_checkpoints(run, attempts, score)
    warm_start, at_budget = (100 * float(point.score_M.mean()) for point in (scored[0], scored[-1]))
    last = max((c for c in run.checkpoints if c.update == scored[-1].updates), key=lambda c: c.published_at)
    record = TargetRecord(
        objective=objective,
        workload=workload,
        pilot_run=run.name,
        pilot_policy_hash=last.policy_hash,
        warm_start_pass3=warm_start,
        pilot_pass3=at_budget,
        target=(warm_start + at_budget) / 2,
        written_at_utc=utc_now(),
    )
    write_json(path, record)
    return record

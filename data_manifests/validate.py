"""Runs the no-op and the reference solution of every task, and writes what came out to a ledger (Appendix C.2).

python -m data_manifests.validate --workload micro_swe
python -m data_manifests.validate --workload micro_swe --write-manifest     # after changing a generator
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path

from tqdm import tqdm

from thundersync.batch import Task
from thundersync.environments.workload import Verdict, Workload, load_workload, validate_task
from thundersync.splits import list_digest

SCHEMA = 1
EMBEDDED = Path(__file__).parent / "embedded"


def manifest(workload: Workload, seed: int) -> dict:
    """What pins an embedded workload: seed, counts, and the digests of its task and group lists."""

    def side(tasks: tuple[Task, ...]) -> dict:
        groups = {task.split_group for task in tasks}
        return {
            "tasks": len(tasks),
            "groups": len(groups),
            "task_list_sha256": list_digest(task.task_id for task in tasks),
            "group_list_sha256": list_digest(groups),
        }

    return {
        "schema": SCHEMA,
        "workload": workload.name,
        "seed": seed,
        "training": side(workload.training),
        "heldout": side(workload.heldout),
    }


def _outcome(verdict: Verdict) -> dict:
    return {"reward": verdict.reward, "passed": sum(verdict.tests.values()), "tests": len(verdict.tests)}


async def ledger_entry(workload: Workload, seed: int, task: Task, side: str) -> dict:
    """One line of the ledger; `reason` is null for a valid task."""
    entry = {"schema": SCHEMA, "workload": workload.name, "seed": seed, "task_id": task.task_id, "side": side}
    try:
        noop, reference = await validate_task(workload, task.task_id)
    except ValueError as error:
        return entry | {"noop": None, "reference": None, "reason": str(error)}
    return entry | {"noop": _outcome(noop), "reference": _outcome(reference), "reason": None}


async def write_ledger(workload: Workload, seed: int, path: Path, concurrent: int) -> list[str]:
    """Writes one JSON line per task, in task order; returns the reasons for exclusion."""
    places = asyncio.Semaphore(concurrent)
    tasks = [(t, "training") for t in workload.training] + [(t, "heldout") for t in workload.heldout]

    with tqdm(total=len(tasks), desc=workload.name, unit="task") as progress:

        async def one(task: Task, side: str) -> dict:
            async with places:
                entry = await ledger_entry(workload, seed, task, side)
            progress.update()
            return entry

        entries = await asyncio.gather(*(one(task, side) for task, side in tasks))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return [entry["reason"] for entry in entries if entry["reason"]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workload", required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--root", type=Path, default=Path("cache"), help="where generated tasks are kept")
    parser.add_argument("--ledger", type=Path, help="default: runs/validation/WORKLOAD.jsonl")
    parser.add_argument("--tasks", type=int, help="only the first so many of each side")
    parser.add_argument("--concurrent", type=int, default=8)
    parser.add_argument("--write-manifest", action="store_true", help=f"write {EMBEDDED.name}/WORKLOAD.json too")
    options = parser.parse_args()
    count = options.tasks
    try:
        workload = load_workload(
            options.workload, root=options.root, seed=options.seed, training_tasks=count, heldout_tasks=count
        )
    except ValueError as error:
        parser.error(str(error))
    if options.write_manifest and count is not None:
        parser.error("--write-manifest describes the whole workload: leave out --tasks")
    ledger = options.ledger or Path("runs/validation") / f"{workload.name}.jsonl"
    reasons = asyncio.run(write_ledger(workload, options.seed, ledger, options.concurrent))
    for reason in reasons:
        print(reason, file=sys.stderr)
    print(f"{len(workload.training) + len(workload.heldout) - len(reasons)} valid, {len(reasons)} excluded: {ledger}")
    if options.write_manifest and not reasons:
        text = json.dumps(manifest(workload, options.seed), indent=2) + "\n"
        (EMBEDDED / f"{workload.name}.json").write_text(text)
    return 1 if reasons else 0


if __name__ == "__main__":
    raise SystemExit(main())

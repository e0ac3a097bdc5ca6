"""What the figure scripts share: arguments, loading and scoring a campaign, writing a results folder."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from analysis.campaign import load_cell
from analysis.compare import Comparison, Estimate, Resampling, compare
from eval import bootstrap, passk
from thundersync.records import source_commit

REFERENCE = Path(__file__).resolve().parents[1] / "analysis" / "paper_reference.json"
REPLICATES = 2000
BOOTSTRAP_SEED = 0


def arguments(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--runs", type=Path, required=True, help="campaign folder, e.g. runs/fig5/embedded")
    parser.add_argument("--results", type=Path, required=True, help="folder for the figure, data and reports")
    parser.add_argument("--reference", type=Path, default=REFERENCE, help="the paper's numbers")
    parser.add_argument("--seeds", type=seed_list, default=[42, 43, 44], help="comma-separated, 42,43,44 by default")
    parser.add_argument("--partial-seeds", action="store_true", help="use complete seeds, list the others as pending")
    parser.add_argument(
        "--warmup", type=int, help="updates left out of step times: 4 (Appendix B.2), or a quarter of the shortest run"
    )
    parser.add_argument("--objectives", nargs="+", default=["grpo", "opd"], choices=["grpo", "opd"])
    return parser


def seed_list(text: str) -> list[int]:
    return [int(seed) for seed in text.split(",")]


def load(args: argparse.Namespace, workloads: Sequence[str]) -> list[Comparison]:
    """Every objective on every workload, scored with pass@3 (three or more attempts). Raises ValueError by name."""
    return [load_one(args.runs, objective, workload, args) for objective in args.objectives for workload in workloads]


def load_one(root: Path, objective: str, workload: str, args: argparse.Namespace) -> Comparison:
    cell = load_cell(root, objective, workload, seeds=args.seeds, partial=args.partial_seeds)
    tasks = cell.reference.record.evaluation_tasks
    resampling = Resampling(
        tasks_BM=bootstrap.weights(tasks, replicates=REPLICATES, seed=BOOTSTRAP_SEED),
        runs_BR=bootstrap.weights(cell.seeds, replicates=REPLICATES, seed=BOOTSTRAP_SEED + 1),
    )
    return compare(cell, score=passk.pass_at_3, resampling=resampling, warmup=args.warmup)


def paper_values(reference: dict, comparison: Comparison) -> dict:
    """The paper's numbers for the same objective and the workload's counterpart."""
    objective, counterpart = comparison.cell.objective, reference["workloads"][comparison.cell.workload]
    return {
        "objective": objective,
        "workload": counterpart,
        "title": reference["titles"][counterpart],
        "gpu_hours_to_target": reference["matched_performance"][objective][counterpart],
        "at_128_gpu_hours": reference["fixed_budget"][objective][counterpart],
    }


def interval(estimate: Estimate) -> tuple[float, float]:
    """95 % percentile interval over tasks and seeds."""
    return bootstrap.interval(estimate.replicates_B)


def seeds_sentence(comparisons: Sequence[Comparison]) -> str:
    """What the intervals cover, in words a reader can check."""
    numbers = sorted({len(c.cell.seeds) for c in comparisons})
    if numbers == [1]:
        return "One seed: intervals resample evaluation tasks only and say nothing about the spread over seeds."
    return f"Intervals (95 %) resample evaluation tasks and {'/'.join(map(str, numbers))} training seeds together."


def write_results(folder: Path, figure: Figure, data: pd.DataFrame, report: dict, text: str) -> None:
    """figure.png, figure.pdf, data.csv, report.json and report.md. The reports are refused NaN and infinity.

    report.json also names the commit that drew it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / "figure.png")
    figure.savefig(folder / "figure.pdf", metadata={"CreationDate": None})
    data.to_csv(folder / "data.csv", index=False)
    report = {"drawn_at_commit": _commit()} | report
    (folder / "report.json").write_text(json.dumps(report, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    (folder / "report.md").write_text(text, encoding="utf-8")


def _commit() -> str:
    try:
        return source_commit()
    except ValueError:
        return "unknown: not a git clone"


FIGURE_FILES = "figure.png, figure.pdf, data.csv, report.md, report.json"


def main(
    draw: Callable[[argparse.Namespace], None],
    parser: argparse.ArgumentParser,
    argv: Sequence[str] | None = None,
    *,
    files: str = FIGURE_FILES,
) -> int:
    """Runs a figure or table script; bad input is one sentence and exit status 1."""
    args = parser.parse_args(argv)
    try:
        draw(args)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"wrote {args.results}/{files}")
    return 0

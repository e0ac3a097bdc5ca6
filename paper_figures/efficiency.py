"""What Figures 3 and 4 and Tables 1, 2 and 7 share: arguments, profiles of a campaign, and how their reports begin."""

from __future__ import annotations

import argparse
import functools
import os
from collections.abc import Sequence

from analysis.campaign import SCHEDULES, load_cell
from analysis.efficiency import Phases, Spread
from analysis.mfu import peak_of
from analysis.profile import PARTS, CellProfile, profile_cell, shares
from paper_figures import common
from thundersync.cluster.peak import core_peak

WORKLOAD = "micro_swe"
"""What stands where the paper profiles SWE-smith."""
SCALE = (
    "Measured rows are of the embedded scale (small policy, generated tasks, CPU cores), never of a GPU; predicted "
    "rows follow from them by the equation named; the paper's are of 27B and 31B policies on 8 x B200 or H200. Only "
    "ratios and orderings can be compared."
)


def arguments(description: str, *, objectives: Sequence[str] = ("grpo", "opd")) -> argparse.ArgumentParser:
    parser = common.arguments(description)
    parser.set_defaults(objectives=list(objectives))
    parser.add_argument("--workload", default=WORKLOAD, choices=["micro_swe", "micro_terminal"])
    parser.add_argument(
        "--window", type=int, help="updates measured after --warmup: 36 (Appendix B.2), or what the shortest run has"
    )
    return parser


@functools.cache
def _measured_peak() -> float:
    return core_peak(max(os.sched_getaffinity(0)), seconds=2.0)


def load(args: argparse.Namespace) -> dict[str, CellProfile]:
    """The four schedules of each objective. Raises ValueError by name for what is missing, unlike or too short."""
    return {
        objective: profile_cell(
            load_cell(args.runs, objective, args.workload, seeds=args.seeds, partial=args.partial_seeds),
            peak=lambda run: peak_of(run.record, _measured_peak),
            warmup=args.warmup,
            size=args.window,
        )
        for objective in args.objectives
    }


def spread(value: Spread, scale: float = 1.0) -> dict:
    return {"mean": value.mean * scale, "sd_over_seeds": None if value.sd is None else value.sd * scale}


def head(name: str, profiles: dict[str, CellProfile]) -> dict:
    """What every efficiency report states first."""
    return {
        "name": name,
        "numbers": {"measured": "embedded scale", "predicted": "from the measured ones", "paper": "the paper's"},
        "scale_note": SCALE,
        "cells": [_cell(profile) for profile in profiles.values()],
    }


def _cell(profile: CellProfile) -> dict:
    cell, window = profile.cell, profile.window
    runs = [one for group in profile.runs.values() for one in group]
    return {
        "objective": cell.objective,
        "workload": cell.workload,
        "seeds": list(cell.seeds),
        "pending": list(cell.pending),
        "window": {
            "warmup_updates": window.warmup,
            "updates": window.size,
            "paper": "updates 5 to 40" if window.is_the_papers else "the paper leaves out 4 and measures 36",
            "start_up": "Async and Fully Async: cycles that fill the pipeline, and what rolls out last, are left out",
        },
        "peak_rate": {"flops_per_device": profile.peak.flops, "origin": profile.peak.origin},
        "device_name": cell.reference.record.device_name,
        "devices": cell.reference.record.devices,
        "commits": sorted({one.run.record.commit for one in runs}),
        "flops": "FLOP ledger over the recorded token counts, in an untimed pass; recomputation is not credited",
    }


def measured_row(profile: CellProfile, schedule: str) -> dict:
    """One schedule of a cell; per-seed means first, then mean and sample standard deviation over seeds."""
    runs = profile.runs[schedule]
    useful = [run.work.useful.total / run.step.count for run in runs]
    memories = [run.peak_memory for run in runs]
    return {
        "source": "measured",
        "objective": profile.cell.objective,
        "schedule": schedule,
        "policy_lag": {"min": min(run.lag[0] for run in runs), "max": max(run.lag[1] for run in runs)},
        "step_seconds": spread(profile.over_seeds(schedule, lambda run: run.step.value)),
        "parts_seconds": {
            part: spread(profile.over_seeds(schedule, lambda run, part=part: run.parts[part].value)) for part in PARTS
        },
        "speedup": spread(profile.speedup(schedule)),
        "mfu_percent": spread(profile.over_seeds(schedule, lambda run: 100 * run.mfu.value)),
        "learner_idle_percent": spread(profile.over_seeds(schedule, lambda run: 100 * run.learner_idle)),
        "learner_gflop_per_update": sum(useful) / len(useful) / 1e9,
        "recomputed_gflop_per_update": sum(r.work.recomputed.total / r.step.count for r in runs) / len(runs) / 1e9,
        "operator_shares": shares(runs[0].work.useful),
        "peak_memory": "not recorded" if None in memories else _memory(memories),
    }


def _memory(memories) -> dict:
    largest = max(memories, key=lambda memory: memory.bytes)
    return {"counter": largest.counter, "gigabytes": largest.bytes / 1e9}


def measured_rows(profiles: dict[str, CellProfile]) -> list[dict]:
    return [measured_row(profile, schedule) for profile in profiles.values() for schedule in SCHEDULES]


def predicted_row(profile: CellProfile, phases: Sequence[Phases] | None = None, work: float = 1.0, **more) -> dict:
    """ThunderSync with perfect overlap, from Sync's R, L, P: T = max(R, L) + P, and Equation 17.

    `work` is the learner's FLOPs relative to the measured ones, and `phases` the stage times that go with them.
    """
    phases = phases or profile.phases
    sync = profile.runs["sync"]
    rates = [run.mfu.value * run.step.value * work for run in sync]
    steps = [max(p.rollout, p.learner) + p.suffix for p in phases]
    count = len(steps)
    return {
        "source": "predicted",
        "objective": profile.cell.objective,
        "schedule": "thundersync",
        "how": "perfect overlap: step max(R, L) + P, speedup by Equation 17, from Sync's R, L and P",
        "step_seconds": sum(steps) / count,
        "speedup": sum(p.bound for p in phases) / count,
        "mfu_percent": 100 * sum(rate / step for rate, step in zip(rates, steps, strict=True)) / count,
        **more,
    }


def pending_lines(report: dict) -> list[str]:
    """Seeds that are left out, for the readable report."""
    pending = [sentence for cell in report["cells"] for sentence in cell["pending"]]
    return ["", "Pending (these seeds are left out everywhere): " + "; ".join(pending)] if pending else []


def peak_lines(report: dict) -> list[str]:
    rates = {(c["peak_rate"]["flops_per_device"], c["peak_rate"]["origin"]) for c in report["cells"]}
    return [
        line for flops, origin in sorted(rates) for line in ("", f"Peak rate: {flops / 1e9:.1f} GFLOP/s, {origin}.")
    ]

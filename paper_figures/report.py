"""Rows and tables that the reports of Figures 1, 5 and 6 share. `inf` never reaches a report: unreached is a word."""

from __future__ import annotations

import math
from collections.abc import Sequence

from analysis.campaign import SCHEDULES
from analysis.compare import Comparison, Estimate
from analysis.efficiency import Spread
from analysis.time_axis import cost_usd, device_hours, index_at
from paper_figures.common import BOOTSTRAP_SEED, REPLICATES, interval, seeds_sentence
from paper_figures.style import LOOKS, OBJECTIVES

UNREACHED = "unreached"
SCALE = (
    "Scale: our numbers are measured at the scale named below (small policy, generated tasks, few devices); the "
    "paper's are of a 27B policy on 8 x B200, SWE-bench Verified and Terminal Bench 4.0. Only ratios and orderings can "
    "be compared, not hours or percentages."
)


def spread(value: Spread) -> dict:
    return {"mean": value.mean, "sd_over_seeds": value.sd}


def finite(value: float | None, absent: str = UNREACHED) -> float | str:
    return absent if value is None or math.isinf(value) else value


def estimate(value: Estimate, absent: str = UNREACHED) -> dict:
    """`absent` stands for what has no number, an interval of no replicate included."""
    low, high = interval(value) if len(value.replicates_B) else (None, None)
    return {"value": finite(value.value, absent), "interval_95": [finite(low, absent), finite(high, absent)]}


def rows(comparison: Comparison) -> list[dict]:
    """One row per schedule: the content of report.json."""
    cell, budget = comparison.cell, comparison.budget_seconds
    result = []
    for schedule in SCHEDULES:
        own = comparison.schedules[schedule]
        reached = own.seconds_to_target.value
        at = index_at(own.curve.seconds_T, budget)
        result.append(
            {
                "objective": cell.objective,
                "workload": cell.workload,
                "schedule": schedule,
                "seeds": list(cell.seeds),
                "updates": list(own.updates),
                "step_seconds": spread(own.step_seconds),
                "speedup_over_sync": spread(own.speedup),
                "speedup_bound": spread(comparison.bound),
                "policy_lag": {"min": own.lag[0], "max": own.lag[1]},
                "pass3_at_budget": estimate(own.pass3_at_budget),
                "delta_pass3_vs_thundersync": estimate(own.delta_at_budget),
                "seconds_to_target": estimate(own.seconds_to_target),
                "device_hours_to_target": finite(
                    None if reached is None else device_hours(reached, comparison.devices)
                ),
                "cost_usd_to_target": None
                if reached is None
                else cost_usd(reached, comparison.devices, comparison.price_usd_per_device_hour),
                "at_budget": {
                    "updates": float(own.curve.updates_T[at]),
                    "trajectories": float(own.curve.trajectories_T[at]),
                    "generated_tokens": float(own.curve.generated_tokens_T[at]),
                },
            }
        )
    return result


def cell_summary(comparison: Comparison) -> dict:
    """What holds for an objective and workload as a whole."""
    cell, record = comparison.cell, comparison.cell.reference.record
    return {
        "objective": cell.objective,
        "workload": cell.workload,
        "target": {
            "pass3": cell.target.target,
            "warm_start_pass3": cell.target.warm_start_pass3,
            "pilot_pass3": cell.target.pilot_pass3,
            "pilot_run": cell.target.pilot_run,
            "written_at_utc": cell.target.written_at_utc.isoformat(),
        },
        "time_ratio_sync_over_thundersync": estimate(comparison.time_ratio, absent="no ratio"),
        "budget_seconds": comparison.budget_seconds,
        "budget_device_hours": device_hours(comparison.budget_seconds, comparison.devices),
        "devices": comparison.devices,
        "device_name": record.device_name,
        "price_usd_per_device_hour": comparison.price_usd_per_device_hour,
        "evaluation_tasks": len(record.evaluation_tasks),
        "evaluation_attempts": record.evaluation_attempts,
        "step_window": {"warmup_updates": comparison.warmup, "updates": comparison.window},
        "sync_phases_seconds": [{"R": p.rollout, "L": p.learner, "P": p.suffix} for p in comparison.phases],
        "core_independence": min(
            (
                run.record.core_independence
                for runs in cell.runs.values()
                for run in runs
                if run.record.core_independence
            ),
            default=None,
        ),
        "initialisation_seconds": {
            run.name: run.record.initialisation_seconds for runs in cell.runs.values() for run in runs
        },
        "commits": sorted({run.record.commit for runs in cell.runs.values() for run in runs}),
        "settings_digests": {run.name: run.record.settings_digest for runs in cell.runs.values() for run in runs},
        "pending": list(cell.pending),
    }


def report(figure: str, comparisons: Sequence[Comparison], paper: dict) -> dict:
    return {
        "figure": figure,
        "numbers": {"cells": "measured", "schedules": "measured", "paper": "the paper's, at another scale"},
        "scale_note": SCALE,
        "intervals": seeds_sentence(comparisons),
        "bootstrap": {"replicates": REPLICATES, "seed": BOOTSTRAP_SEED, "level": 0.95},
        "cells": [cell_summary(c) for c in comparisons],
        "schedules": [row for c in comparisons for row in rows(c)],
        "paper": paper,
    }


def number(value: float | str | None, digits: int = 1, unit: str = "") -> str:
    if value is None:
        return "-"
    return value if isinstance(value, str) else f"{value:.{digits}f}{unit}"


def ranged(value: dict, digits: int = 1) -> str:
    low, high = value["interval_95"]
    return f"{number(value['value'], digits)} [{number(low, digits)}, {number(high, digits)}]"


def plus_minus(value: dict, digits: int = 2) -> str:
    sd = value["sd_over_seeds"]
    return number(value["mean"], digits) + ("" if sd is None else f" ± {sd:.{digits}f}")


def measured_table(report: dict) -> list[str]:
    lines = [
        "| objective | workload | schedule | seeds | updates | step (s) | speedup | bound | lag | pass@3 at budget (%) "
        "| against ThunderSync (points) | time to target (s) |",
        "|" + "---|" * 12,
    ]
    for row in report["schedules"]:
        lag = row["policy_lag"]
        cells = [
            OBJECTIVES[row["objective"]],
            row["workload"],
            LOOKS[row["schedule"]].label,
            ", ".join(map(str, row["seeds"])),
            ", ".join(map(str, row["updates"])),
            plus_minus(row["step_seconds"]),
            plus_minus(row["speedup_over_sync"]),
            plus_minus(row["speedup_bound"]),
            f"{lag['min']} to {lag['max']}",
            ranged(row["pass3_at_budget"]),
            "0" if row["schedule"] == "thundersync" else ranged(row["delta_pass3_vs_thundersync"]),
            ranged(row["seconds_to_target"]),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def cell_lines(report: dict) -> list[str]:
    lines = []
    for cell in report["cells"]:
        target, budget = cell["target"], cell["budget_seconds"]
        lines.append(
            f"- {OBJECTIVES[cell['objective']]}, {cell['workload']}: target {target['pass3']:.2f} % (midpoint of warm "
            f"start {target['warm_start_pass3']:.2f} % and pilot {target['pilot_pass3']:.2f} %, fixed "
            f"{target['written_at_utc']}); budget {budget:g} s x {cell['devices']} device(s) ({cell['device_name']}) = "
            f"{cell['budget_device_hours']:.3g} device-hours; {cell['evaluation_tasks']} tasks x "
            f"{cell['evaluation_attempts']} attempts; step times over {cell['step_window']['updates']} updates after "
            f"{cell['step_window']['warmup_updates']} of warm-up."
        )
        if cell["core_independence"] is not None and cell["core_independence"] < 0.9:
            lines.append(
                f"  The cores of this machine are not independent: while both were busy, one kept "
                f"{cell['core_independence']:.0%} of its speed. Overlap of rollout and learner gains accordingly less."
            )
        if target["pilot_pass3"] <= target["warm_start_pass3"]:
            lines.append(
                "  The pilot is no better than its start, so the target is met without training and tells nothing."
            )
    pending = [sentence for cell in report["cells"] for sentence in cell["pending"]]
    if pending:
        lines += ["", "Pending (these seeds are left out everywhere):", *(f"- {sentence}" for sentence in pending)]
    return lines

"""Tables 1, 2 and 7 in their form: policy lag, MFU, speedup and peak memory for GRPO and OPD, by schedule.

    python -m paper_figures.table01_models --runs runs/fig5/embedded --results results/table1

Measured rows come first, then what is predicted from them, then the paper's, each under its name.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from analysis.campaign import SCHEDULES
from analysis.profile import CellProfile
from paper_figures import efficiency
from paper_figures.style import LOOKS, OBJECTIVES

FILES = "table.md, data.csv, report.json"
Predict = Callable[[CellProfile], list[dict]]


def draw(
    args: argparse.Namespace, *, name: str, title: str, note: str, predict: Predict, measures: bool = True
) -> None:
    """`name` is the key in the paper's reference; a table that the runs do not measure says so in `note`."""
    reference = json.loads(args.reference.read_text(encoding="utf-8"))["efficiency_tables"]
    profiles = efficiency.load(args)
    report = efficiency.head(name, profiles) | {
        "note": note,
        "measured": efficiency.measured_rows(profiles) if measures else [],
        "predicted": [row for profile in profiles.values() for row in predict(profile)],
        "paper": {"columns": reference["columns"], **reference[name]},
    }
    blocks = measured_block(report, profiles) + predicted_block(report) + paper_block(report)
    args.results.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(blocks).to_csv(args.results / "data.csv", index=False)
    _write(args.results / "report.json", json.dumps(report, indent=1, allow_nan=False) + "\n")
    _write(args.results / "table.md", text(title, report, blocks))


def perfect_overlap(profile: CellProfile) -> list[dict]:
    return [efficiency.predicted_row(profile)]


def measured_block(report: dict, profiles: dict[str, CellProfile]) -> list[dict]:
    """One row per schedule with the columns of both objectives."""
    if not report["measured"]:
        return []
    first = next(iter(profiles.values()))
    record = first.cell.reference.record
    block = f"embedded policy, {first.cell.workload}, {record.devices} x {record.device_name}"
    rows = []
    for schedule in SCHEDULES:
        own = {row["objective"]: row for row in report["measured"] if row["schedule"] == schedule}
        lags = [row["policy_lag"] for row in own.values()]
        low, high = min(lag["min"] for lag in lags), max(lag["max"] for lag in lags)
        row = {"source": "measured", "block": block, "method": schedule, "policy_lag": _range(low, high)}
        for objective, value in own.items():
            row |= {
                f"{objective}_mfu": _plus_minus(value["mfu_percent"], 2),
                f"{objective}_speedup": _plus_minus(value["speedup"], 2),
                f"{objective}_peak_gb": _peak(value["peak_memory"]),
            }
        rows.append(row)
    return rows


def predicted_block(report: dict) -> list[dict]:
    rows: dict[tuple[str, str], dict] = {}
    for value in report["predicted"]:
        row = rows.setdefault(
            (value["how"], value["schedule"]),
            {"source": "predicted", "block": value["how"], "method": value["schedule"], "policy_lag": "0"},
        )
        row[f"{value['objective']}_mfu"] = f"{value['mfu_percent']:.2f}"
        row[f"{value['objective']}_speedup"] = f"{value['speedup']:.2f}"
    return list(rows.values())


def paper_block(report: dict) -> list[dict]:
    paper = report["paper"]
    rows = []
    for block, schedules in paper.items():
        if not isinstance(schedules, dict):
            continue
        for schedule, values in schedules.items():
            row = {"source": "paper", "block": block, "method": schedule, "policy_lag": str(values[0])}
            for column, value in zip(paper["columns"][1:], values[1:], strict=True):
                row[column] = f"{value[0]} ± {value[1]}" if isinstance(value, list) else str(value)
            rows.append(row)
    return rows


def text(title: str, report: dict, blocks: list[dict]) -> str:
    objectives = [cell["objective"] for cell in report["cells"]]
    columns = [f"{o}_{column}" for o in objectives for column in ("mfu", "speedup", "peak_gb")]
    names = [f"{OBJECTIVES[o]} {what}" for o in objectives for what in ("MFU (%)", "speedup (×)", "peak memory (GB)")]
    lines = [f"# {title}", "", efficiency.SCALE, "", report["note"], ""]
    lines += ["| source | of | method | policy lag | " + " | ".join(names) + " |", "|" + "---|" * (4 + len(names))]
    for row in blocks:
        cells = [row["source"], row["block"], LOOKS[row["method"]].label, row["policy_lag"]]
        lines.append("| " + " | ".join(cells + [row.get(column, "-") for column in columns]) + " |")
    for cell in report["cells"]:
        window = cell["window"]
        lines += [
            "",
            f"{OBJECTIVES[cell['objective']]}: seeds {', '.join(map(str, cell['seeds']))}; {window['updates']} "
            f"complete update cycles after {window['warmup_updates']} of warm-up ({window['paper']}); mean and sample "
            "standard deviation over per-seed values.",
        ]
    lines += efficiency.peak_lines(report)
    lines += ["", f"The paper's rows: {report['paper']['source']}; GPU memory as torch.cuda.max_memory_allocated."]
    return "\n".join(lines + efficiency.pending_lines(report)) + "\n"


def _range(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} to {high}"


def _plus_minus(value: dict, digits: int) -> str:
    sd = value["sd_over_seeds"]
    return f"{value['mean']:.{digits}f}" + ("" if sd is None else f" ± {sd:.{digits}f}")


def _peak(memory: dict | str) -> str:
    if isinstance(memory, str):
        return memory
    named = {"resident_set": "resident set", "cuda_max_memory_allocated": "CUDA"}[memory["counter"]]
    return f"{memory['gigabytes']:.2f} ({named})"


def _write(path: Path, content: str) -> None:
    path.write_text(content, encoding="utf-8")

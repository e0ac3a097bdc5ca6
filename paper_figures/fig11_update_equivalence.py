"""Figure 11's form (Figure 12's on other hardware): equivalence of Sync and ThunderSync updates, six panels.

(a, d) coordinates of the first direction in FP32, (b, e) both schedules in BF16 against FP32 Sync, (c, f) the
parameter gap of Equation 30 after each update. Drawn from the report of the equivalence check.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from paper_figures import style

COLOURS = {"gap_fp32": "#0a5fa3", "gap_bf16": "#e69f00", "reference": "#8a8a8a"}


def draw(report: dict, paper: dict | None = None) -> Figure:
    """`report` as experiments.equivalence writes it; `paper` the values of Appendix G for the same figure."""
    objectives = list(report["objectives"])
    figure, axes = style.figure(len(objectives), 3, figsize=(10.5, 3.3 * len(objectives)), squeeze=False)
    for row, objective, letters in zip(axes, objectives, ("abc", "def"), strict=False):
        findings = report["objectives"][objective]
        name = style.OBJECTIVES.get(objective, objective)
        _fp32(row[0], findings, f"({letters[0]}) {name}, FP32: identical gradients", (paper or {}).get(objective))
        _bf16(row[1], findings, f"({letters[1]}) {name}, BF16 against FP32")
        _gaps(row[2], findings, f"({letters[2]}) {name}, parameter gap per update")
    figure.tight_layout()
    return figure


def _diagonal(axis, values: np.ndarray) -> None:
    most = float(np.abs(values).max()) * 1.05 or 1.0
    axis.plot([-most, most], [-most, most], ls="--", lw=0.8, color="black", zorder=1)
    axis.set(xlim=(-most, most), ylim=(-most, most), aspect="equal")
    axis.ticklabel_format(style="sci", scilimits=(-2, 2))


def _fp32(axis, findings: dict, title: str, paper: dict | None) -> None:
    sample = findings["sample"]
    axis.scatter(sample["sync_fp32"], sample["thundersync_fp32"], s=5, color=COLOURS["gap_fp32"], lw=0, zorder=2)
    _diagonal(axis, np.array(sample["sync_fp32"]))
    release, comparison = next(iter(findings["fp32"].items()))
    text = f"release {release}\n1 - cosine = {comparison['one_minus_cosine']:.1e}"
    text += f"\nrel. error = {comparison['relative_error']:.2e}"
    if paper:
        text += f"\npaper: {paper['fp32_relative_error']:.2e}"
    axis.text(0.04, 0.96, text, transform=axis.transAxes, va="top", fontsize=7.5)
    axis.set(title=title, xlabel="Sync gradient", ylabel="ThunderSync gradient")


def _bf16(axis, findings: dict, title: str) -> None:
    sample = findings["sample"]
    for key, label, colour in (
        ("sync", "Sync", COLOURS["reference"]),
        ("thundersync", "ThunderSync", COLOURS["gap_fp32"]),
    ):
        error = findings[f"bf16_{key}"]["relative_error"]
        axis.scatter(
            sample["sync_fp32"],
            sample[f"{key}_bf16"],
            s=5,
            lw=0,
            color=colour,
            label=f"{label}, rel. error {error:.2g}",
        )
    _diagonal(axis, np.array(sample["sync_fp32"]))
    axis.legend(loc="upper left", fontsize=7.5, handletextpad=0.2)
    axis.set(title=title, xlabel="FP32 Sync gradient", ylabel="BF16 gradient")


def _gaps(axis, findings: dict, title: str) -> None:
    updates = range(1, len(findings["bf16_gaps"]) + 1)
    axis.semilogy(
        updates, findings["bf16_sync"]["gaps"], "s--", ms=4, color=COLOURS["reference"], label="Sync: BF16 vs FP32"
    )
    axis.semilogy(
        updates, findings["bf16_gaps"], "^:", ms=4, color=COLOURS["gap_bf16"], label="BF16: ThunderSync vs Sync"
    )
    for i, (release, comparison) in enumerate(findings["fp32"].items()):
        axis.semilogy(
            range(1, len(comparison["gaps"]) + 1),
            comparison["gaps"],
            "oDv*"[i % 4] + "-",
            ms=4,
            color=COLOURS["gap_fp32"],
            alpha=1 - 0.25 * i,
            label=f"FP32: ThunderSync ({release}) vs Sync",
        )
    axis.legend(fontsize=7)
    axis.set(title=title, xlabel="Update k (replayed rollouts)", ylabel="parameter gap (Eq. 30)")

"""The planner's answer as a table, a picture and a JSON report. matplotlib is imported where the picture is drawn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thundersync.scaling.planner import Plan

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = {"sync": "Sync", "thundersync": "ThunderSync", "async": "Async", "fully_async": "Fully Async"}
BATCH_HEAD = (
    "| batch, times the trace's | Sync (s) | ThunderSync (s) | over Sync | ThunderSync per trace's batch (s) |",
    "|---|---|---|---|---|",
)
COLOURS = {"sync": "#8a8a8a", "thundersync": "#0a5fa3", "async": "#e69f00", "fully_async": "#c1578f"}


def table(plan: Plan) -> str:
    """The answer in Markdown."""
    lines = [
        f"# Plan for {plan.trace.source}",
        "",
        f"{len(plan.trace.steps)} updates, one job per {plan.trace.unit}. Means per update: rollout R "
        f"{plan.rollout:.4g} s, learner L {plan.learner:.4g} s, suffix P {plan.suffix:.4g} s.",
        "",
        f"- share of training s = L / (R + L): {plan.share:.1%}",
        f"- bound max(s, 1 - s)^-1: {plan.bound:.2f}; with the suffix (Equation 17): {plan.bound_with_suffix:.2f}",
        *_observed(plan),
        "",
        "| schedule | release | predicted step (s) | over Sync | |",
        "|---|---|---|---|---|",
    ]
    for p in plan.predictions:
        lines.append(f"| {NAMES[p.schedule]} | {p.release} | {p.step:.2f} | {p.speedup:.2f} | {p.note} |")
    best = plan.best_split
    lines += [
        "",
        f"Splits and batches below stream by {plan.best_release}, the fastest release here.",
        "",
        "| GPUs, rollout + learner | Sync (s) | ThunderSync (s) | over Sync on the same split |",
        "|---|---|---|---|",
    ]
    for s in plan.splits:
        now = (s.rollout_gpus, s.learner_gpus) == (plan.question.rollout_gpus, plan.question.learner_gpus)
        name = f"{s.rollout_gpus} + {s.learner_gpus}" + (" (now)" if now else "") + (" (best)" if s == best else "")
        lines.append(f"| {name} | {s.sync:.2f} | {s.streamed:.2f} | {s.sync / s.streamed:.2f} |")
    lines += ["", *BATCH_HEAD]
    for b in plan.batches:
        per_batch = b.streamed / b.factor
        lines.append(f"| {b.factor:g} | {b.sync:.2f} | {b.streamed:.2f} | {b.speedup:.2f} | {per_batch:.2f} |")
    lines += [
        "",
        "Predicted, not measured: service times are the trace's whatever runs beside them; rollout and learner speed "
        "up in proportion to their GPUs; a larger batch rolls out in successive waves of the trace.",
        *(f"Note: {note}." for note in plan.trace.notes),
    ]
    return "\n".join(lines) + "\n"


def _observed(plan: Plan) -> list[str]:
    if plan.observed is None:
        return []
    sync = plan.prediction("sync").step
    return [
        f"- measured step: {plan.observed:.2f} s; replayed as Sync: {sync:.2f} s ({sync / plan.observed - 1:+.1%})",
    ]


def report(plan: Plan) -> dict[str, Any]:
    """The answer as plain JSON values; `observed_s` is measured, everything else predicted from the trace."""
    return {
        "source": plan.trace.source,
        "updates": len(plan.trace.steps),
        "job": plan.trace.unit,
        "notes": list(plan.trace.notes),
        "trace": {"rollout_s": plan.rollout, "learner_s": plan.learner, "suffix_s": plan.suffix},
        "observed_s": plan.observed,
        "training_share": plan.share,
        "bound": plan.bound,
        "bound_with_suffix": plan.bound_with_suffix,
        "predicted": [
            {"schedule": p.schedule, "release": p.release, "step_s": p.step, "speedup": p.speedup, "note": p.note}
            for p in plan.predictions
        ],
        "release_of_splits_and_batches": plan.best_release,
        "splits": [
            {"rollout": s.rollout_gpus, "learner": s.learner_gpus, "sync_s": s.sync, "thundersync_s": s.streamed}
            for s in plan.splits
        ],
        "best_split": {"rollout": plan.best_split.rollout_gpus, "learner": plan.best_split.learner_gpus},
        "batches": [{"factor": b.factor, "sync_s": b.sync, "thundersync_s": b.streamed} for b in plan.batches],
    }


def picture(plan: Plan) -> Figure:
    """Three panels: step by schedule and release, GPU split, batch size."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.6), layout="constrained")
    schedules, splits, batches = figure.subplots(1, 3, width_ratios=(1.3, 1, 1))
    labels = [NAMES[p.schedule] + (f", {p.release}" if p.release else "") for p in plan.predictions]
    steps = [p.step for p in plan.predictions]
    bars = schedules.barh(labels, steps, color=[COLOURS[p.schedule] for p in plan.predictions])
    for bar, p in zip(bars, plan.predictions, strict=True):
        text = f" {p.step:.3g} s, {p.speedup:.2f}x"
        schedules.text(0, bar.get_y() + bar.get_height() / 2, text, va="center", color="white", fontsize=8)
    schedules.invert_yaxis()
    schedules.set(xlabel="seconds per update", title="Predicted step")
    if plan.observed is not None:
        schedules.axvline(plan.observed, color="black", ls=":", lw=1)
        schedules.text(plan.observed, -0.5, f"measured {plan.observed:.3g} s ", ha="right", va="bottom", fontsize=8)
    x = [s.rollout_gpus for s in plan.splits]
    splits.plot(x, [s.sync for s in plan.splits], "s--", color=COLOURS["sync"], label="Sync")
    streamed = [s.streamed for s in plan.splits]
    splits.plot(x, streamed, "o-", color=COLOURS["thundersync"], label=f"ThunderSync, {plan.best_release}")
    best = plan.best_split
    splits.annotate(
        "best", (best.rollout_gpus, best.streamed), xytext=(0, -14), textcoords="offset points", ha="center", fontsize=8
    )
    total = plan.question.rollout_gpus + plan.question.learner_gpus
    splits.set(xlabel=f"rollout GPUs of {total}", ylabel="seconds per update", title="GPU split", xticks=x)
    splits.set_ylim(0, None)
    splits.legend(fontsize=8, frameon=False)
    factors = [b.factor for b in plan.batches]
    batches.semilogx(factors, [b.speedup for b in plan.batches], "o-", base=2, color=COLOURS["thundersync"])
    batches.axhline(plan.bound, color="black", ls=":", lw=1, label=f"bound {plan.bound:.2f}")
    batches.set(xlabel="batch, times the trace's", ylabel="speedup over Sync", title="Batch size", ylim=(0.95, 2.05))
    batches.set_xticks(factors, [f"{factor:g}" for factor in factors])
    batches.minorticks_off()
    batches.legend(fontsize=8, frameon=False)
    for axis in (schedules, splits, batches):
        axis.spines[["top", "right"]].set_visible(False)
    return figure


def write(plan: Plan, folder: Path) -> list[Path]:
    """plan.md, plan.json, plan.png below `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / name for name in ("plan.md", "plan.json", "plan.png")]
    paths[0].write_text(table(plan), encoding="utf-8")
    paths[1].write_text(json.dumps(report(plan), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    picture(plan).savefig(paths[2], dpi=150)
    return paths

"""The report of `make simulate`: figure, data and text. Simulated, measured and the paper's numbers stay apart."""

from __future__ import annotations

import statistics

import pandas as pd
from matplotlib.figure import Figure

from paper_figures import style

SHOWN = "uniform"
COST_MARKERS = "s^Dov"


def draw(report: dict) -> Figure:
    """Step times at the reference workload, recorded runs against their simulation, and what simulating costs."""
    figure, axes = style.figure(1, 4, figsize=(15, 3.6))
    for axis, objective in zip(axes, ("grpo", "opd"), strict=False):
        _steps(axis, report["reference"], objective)
    _recorded(axes[2], report["recorded"]["rows"])
    _cost(axes[3], report["cost"])
    figure.tight_layout()
    return figure


def _steps(axis, rows: list[dict], objective: str) -> None:
    own = [
        r
        for r in rows
        if r["row"] == "qwen_b200" and r["objective"] == objective and r["durations"] == SHOWN
        and r["schedule"] != "thundersync_pooled"
    ]  # fmt: skip
    labels = []
    for place, row in enumerate(own):
        look = style.LOOKS[row["schedule"].removesuffix("_k1")]
        capped = row["schedule"].endswith("_k1")
        labels.append(look.label.replace("Sync", "\nSync").replace(" ", "\n").strip() + ("\nk = 1" if capped else ""))
        axis.bar(place, row["simulated_step_s"], color=look.colour, width=0.7, alpha=0.6 if capped else 1)
        above = max(row["simulated_step_s"], row["paper_step_s"] or 0) + 45  # clear of the paper's marker
        axis.text(place, above, f"{row['simulated_step_s']:.0f}", ha="center", fontsize=7.5)
        paper = {"label": "paper (Figure 4)"} if place == 0 else {}
        axis.plot(place, row["paper_step_s"], **style.PAPER, **paper)
    axis.set_xticks(range(len(labels)), labels, fontsize=7)
    axis.set(title=f"{style.OBJECTIVES[objective]}: simulated step", ylabel="seconds", ylim=(0, 1700))
    axis.legend(fontsize=7.5)


def _recorded(axis, rows: list[dict]) -> None:
    if not rows:
        axis.text(0.5, 0.5, "no recorded runs", ha="center", transform=axis.transAxes)
        axis.set(title="Recorded runs, simulated")
        return
    most = max(max(r["measured_step_s"], r["simulated_step_s"]) for r in rows) * 1.05
    axis.plot([0, most], [0, most], color="black", lw=0.8, ls="--")
    for schedule, look in style.LOOKS.items():
        for own in (True, False):
            points = [r for r in rows if r["schedule"] == schedule and (r["durations_of"] == schedule) == own]
            axis.plot(
                [r["measured_step_s"] for r in points],
                [r["simulated_step_s"] for r in points],
                marker=look.marker,
                ls="none",
                ms=6 if own else 4,
                color=look.colour,
                mfc=look.colour if own else "none",
                label=look.label if own else None,
            )
    axis.set(
        title="Recorded runs, simulated",
        xlabel="measured step (s)\nfilled: own durations; open: another schedule's",
        ylabel="simulated step (s)",
        xlim=(0, most),
        ylim=(0, most),
    )
    axis.legend(fontsize=7)


def _cost(axis, cost: dict) -> None:
    for marker, kind in zip(COST_MARKERS, cost["growth_exponent"], strict=False):
        rows = sorted((r for r in cost["rows"] if r["kind"] == kind), key=lambda r: r["n"])
        schedule, _, release = kind.partition(", ")
        axis.loglog(
            [r["n"] for r in rows],
            [r["cpu_s"] for r in rows],
            marker=marker,
            ms=4,
            color=style.LOOKS[schedule].colour,
            ls=":" if release == "turn_eager" else "-",
            label=kind.replace("_", " "),
        )
    axis.set(title="Cost of simulating", xlabel="trajectories x turns x updates", ylabel="processor seconds")
    axis.legend(fontsize=6.5)


def data_frame(report: dict) -> pd.DataFrame:
    """One row per simulated number, by part of the report."""
    parts = {
        "cost": report["cost"]["rows"],
        "reference": report["reference"],
        "recorded": report["recorded"]["rows"],
    }
    return pd.concat([pd.DataFrame(rows).assign(part=name) for name, rows in parts.items() if rows])


def text(report: dict) -> str:
    lines = ["# Simulation", ""]
    lines += [*_histories_text(report["histories"]), *_cost_text(report["cost"])]
    lines += [*_reference_text(report["reference"]), *_recorded_text(report["recorded"])]
    return "\n".join(lines) + "\n"


def _table(head: list[str], rows: list[list]) -> list[str]:
    return ["| " + " | ".join(map(str, row)) + " |" for row in (head, ["---"] * len(head), *rows)] + [""]


def _histories_text(histories: dict) -> list[str]:
    wrong = histories["wrong"]
    said = "none broke an invariant or ended without a name" if not wrong else f"{len(wrong)} BROKE AN INVARIANT"
    kinds = histories["with_this_fault_alone"]
    ends = sorted(histories["ended"])
    return [
        "## Seeded histories with faults",
        "",
        f"{histories['count']} drawn runs, each with up to two faults: {said}.",
        "",
        *_table(["fault, alone", *ends], [[kind, *(found.get(e, 0) for e in ends)] for kind, found in kinds.items()]),
        *(f"- seed {one['seed']}: {'; '.join(one['wrong'])}" for one in wrong),
    ]


def _cost_text(cost: dict) -> list[str]:
    rows = [
        [r["kind"], r["trajectories"], r["turns"], r["updates"], f"{r['cpu_s']:.2f}", f"{r['ns_per_n_log2_n']:.2f}"]
        for r in cost["rows"]
    ]
    return [
        "## Cost of simulating (processor seconds of this machine)",
        "",
        "Growth no faster than n log n, n = trajectories x turns x updates, shows as a last column that does not rise.",
        "",
        *_table(["run", "trajectories", "turns", "updates", "cpu s", "ns / (n log2 n)"], rows),
        "Slope of log cost over log n at 5 updates: "
        + ", ".join(f"{kind} {slope:.2f}" for kind, slope in cost["growth_exponent"].items())
        + ".",
        "",
        "Without an event for each turn, turns enter the learner's queues as arrays (`turn_eager`), or nobody looks at",
        "them (the others); step times are the same as with events, which a test checks.",
        "",
    ]


def _reference_text(rows: list[dict]) -> list[str]:
    table = [
        [
            r["row"],
            r["objective"],
            r["durations"],
            r["schedule"],
            f"{r['simulated_step_s']:.1f}",
            "" if r["paper_step_s"] is None else f"{r['paper_step_s']:.1f}",
            f"{r['simulated_speedup']:.3f}",
            f"{r['paper_speedup']:.2f}",
        ]
        for r in rows
    ]
    stages = {(r["row"], r["objective"]): (r["rollout_s"], r["learner_s"], r["suffix_s"], r["stages"]) for r in rows}
    head = ["row", "objective", "durations", "schedule", "simulated s", "paper s", "simulated speedup", "paper speedup"]
    return [
        "## Reference workload, simulated beside the paper",
        "",
        "Stage times R, L, P are inputs; the simulation divides them among trajectories, slots and ranks.",
        "",
        *_table(
            ["row", "objective", "R", "L", "P", "stages"],
            [[*key, *(f"{x:.1f}" for x in values[:3]), values[3]] for key, values in stages.items()],
        ),
        *_table(head, table),
        *_explanation(rows),
    ]


def _explanation(rows: list[dict]) -> list[str]:
    """What the differences at the known stage times are made of."""
    lines = ["Differences at the stage times of Figure 4, uniform durations:", ""]
    for objective in ("grpo", "opd"):
        own = {
            r["schedule"]: r
            for r in rows
            if r["row"] == "qwen_b200" and r["objective"] == objective and r["durations"] == SHOWN
        }
        one = own["sync"]
        barrier = max(one["rollout_s"], one["learner_s"]) + one["suffix_s"]
        gaps = {name: r["simulated_step_s"] - r["paper_step_s"] for name, r in own.items()}
        tail = own["thundersync"]["simulated_step_s"] - barrier
        lines += [
            f"- {objective}, Sync {gaps['sync']:+.1f} s: R + L + P of the means, by construction.",
            f"- {objective}, Async {gaps['async']:+.1f} s: {own['async']['simulated_step_s'] - barrier:+.1f} s over "
            f"max(R, L) + P = {barrier:.1f} s because the longer stage changes from step to step; the paper's value "
            "holds more than that, and what rollout and learner cost each other when they run together is not in R "
            "and L.",
            f"- {objective}, Fully Async {gaps['fully_async']:+.1f} s: without a batch barrier the slots never idle "
            "behind the slowest trajectory, so the simulated rollout outruns its R and the learner sets the pace.",
            f"- {objective}, ThunderSync {gaps['thundersync']:+.1f} s: a learner tail of {tail:.1f} s over "
            f"max(R, L) + P; the paper's is {one['paper_step_s'] and own['thundersync']['paper_step_s'] - barrier:.1f}"
            f" s. With one queue for all ranks and the same L it would be "
            f"{own['thundersync_pooled']['simulated_step_s'] - barrier:.1f} s: the rest is ranks that wait apart, "
            "since whole groups belong to a rank. The paper gives no distribution of durations for this workload.",
        ]
        if "thundersync_k1" in own:
            lines.append(
                f"- {objective}, ThunderSync with k = 1 on each rank {gaps['thundersync_k1']:+.1f} s: work waits while "
                "another group of its rank is open, as long as the slowest of its trajectories runs."
            )
    return [*lines, ""]


def _recorded_text(recorded: dict) -> list[str]:
    rows = recorded["rows"]
    if not rows:
        return ["## Recorded runs", "", f"None under {recorded['root']}: `make reproduce-fig5` records them.", ""]
    own = [r for r in rows if r["schedule"] == r["durations_of"]]
    other = [r for r in rows if r["schedule"] != r["durations_of"]]
    error = {
        k: statistics.fmean(abs(r["simulated_over_measured"] - 1) for r in v) for k, v in (("o", own), ("x", other))
    }
    table = [
        [r["cell"], r["durations_of"], r["schedule"], r["updates"], f"{r['simulated_step_s']:.2f}",
         f"{r['measured_step_s']:.2f}", f"{r['simulated_over_measured']:.3f}"]
        for r in rows
    ]  # fmt: skip
    return [
        f"## Recorded runs of {recorded['root']} (embedded scale), simulated from their own durations and from each "
        "other's",
        "",
        f"Mean |simulated / measured - 1|: {100 * error['o']:.1f} % under the recorded schedule, "
        f"{100 * error['x']:.1f} % under another one.",
        "",
        *_table(["cell", "durations of", "schedule", "updates", "simulated s", "measured s", "ratio"], table),
        "Under its own schedule a run differs by what lies between pieces of work: calls between processes, and events "
        "that wait for the rollout process to speak.",
        "Under another schedule recorded durations are those of other conditions: Sync's trajectories ran while the "
        "learner's core was idle, Async's and Fully Async's on fuller slots, and `direct` learns a group at once where "
        "ThunderSync learns its trajectories or turns one by one.",
        "",
    ]

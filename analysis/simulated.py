"""What `make simulate` computes: cost and growth, the reference workload, recorded runs, seeded histories.

Virtual seconds are the simulation's; `cpu_s` is processor time of this machine.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from thundersync.records import RunDirectory
from thundersync.simulation import Generated, Setting, lognormal, simulate, uniform
from thundersync.simulation.faults import KINDS
from thundersync.simulation.generated import Shape
from thundersync.simulation.histories import History
from thundersync.simulation.reference import Stages, calibrated
from thundersync.simulation.trace import Trace, read_trace

SCHEDULES = ("sync", "async", "fully_async", "thundersync")
COSTED = {
    "sync": Setting(schedule="sync", prompts=1, group_size=8, updates=1, slots=16, replicas=8, ranks=4),
    "async": Setting(schedule="async", prompts=1, group_size=8, updates=1, slots=16, replicas=8, ranks=4),
    "fully_async": Setting(schedule="fully_async", prompts=1, group_size=8, updates=1, slots=16, replicas=8, ranks=4),
    "thundersync, trajectory": Setting(
        schedule="thundersync", prompts=1, group_size=8, updates=1, slots=16, replicas=8, ranks=4
    ),
    "thundersync, turn_eager": Setting(
        schedule="thundersync", prompts=1, group_size=8, updates=1, slots=16, replicas=8, ranks=4,
        release="turn_eager", needs_reward=False,
    ),
}  # fmt: skip
"""What the cost of simulating is measured on."""


# ---- cost


def cost(kind: str, *, trajectories: int, turns: int, updates: int, turn_events: bool = False) -> dict:
    """Processor time of one simulation, and that over n log2 n, where n = trajectories x turns x updates."""
    setting = replace(COSTED[kind], prompts=trajectories // 8, updates=updates, turn_events=turn_events)
    model = Generated(
        seed=1, group_size=8, trajectory_s=100.0, service_s=3.0, turns=turns, gamma=0.49, closure=0.02, deferred=0.45
    )
    began = time.process_time()
    outcome = simulate(setting, model.durations(), keep_events=False)
    cpu_s, n = time.process_time() - began, trajectories * turns * updates
    return {
        "kind": kind + (", an event for each turn" if turn_events else ""),
        "trajectories": trajectories,
        "turns": turns,
        "updates": updates,
        "n": n,
        "cpu_s": cpu_s,
        "ns_per_n_log2_n": 1e9 * cpu_s / (n * math.log2(n)),
        "mean_step_s": statistics.fmean(outcome.step_seconds()),
    }


def growth_exponent(rows: Sequence[Mapping]) -> float:
    """Least-squares slope of log cost over log n; n log n itself has a slope slightly above 1."""
    x, y = [math.log(row["n"]) for row in rows], [math.log(row["cpu_s"]) for row in rows]
    return statistics.linear_regression(x, y).slope


# ---- the reference workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A row of the paper's tables: an objective on a model and machine."""

    row: str
    objective: str
    stages: Stages
    implied: bool
    """Whether the stages follow from the paper's speedup (only their ratio counts then), or are given by Figure 4."""
    paper: Mapping[str, float]
    """The paper's speedup of each schedule."""
    paper_step_s: Mapping[str, float] | None


def cases(reference: Mapping) -> Iterator[Case]:
    """Every row of Tables 1, 2 and 7 for both objectives; `reference` is analysis/paper_reference.json."""
    for objective in ("grpo", "opd"):
        steps = reference["step_time_s"][objective]
        rollout, learner = steps["rollout_and_verification"], steps["sync_learner"]
        measured = Stages(rollout=rollout, learner=learner, suffix=steps["sync"] - rollout - learner)
        tail = steps["thundersync"] - measured.suffix - max(rollout, learner)
        for row, table in reference["speedups"].items():
            if row == "source":
                continue
            given = table["bound_by"] is None
            yield Case(
                row=row,
                objective=objective,
                stages=measured if given else implied_stages(measured, tail, table[objective]["thundersync"], table),
                implied=not given,
                paper=table[objective],
                paper_step_s={name: steps[name] for name in SCHEDULES} if given else None,
            )


def implied_stages(near: Stages, tail: float, speedup: float, table: Mapping) -> Stages:
    """Stages of a row of which only the speedup S of ThunderSync and the longer stage are known.

    The longer stage, suffix and learner tail are taken over from `near`, the row whose times are known, and the
    shorter one is what S = (R + L + P) / (max(R, L) + tail + P) (Equation 16) leaves.
    """
    longer = max(near.rollout, near.learner)
    shorter = speedup * (longer + tail + near.suffix) - longer - near.suffix
    rollout_bound = table["bound_by"] == "rollout"
    return Stages(
        rollout=longer if rollout_bound else shorter,
        learner=shorter if rollout_bound else longer,
        suffix=near.suffix,
    )


def reference_rows(case: Case, allocation: Mapping, shapes: Mapping[str, Shape], seeds: Iterable[int]) -> list[dict]:
    """Simulated step times of the four schedules, 40 updates with the first four left out (Appendix B.2).

    ThunderSync stands also with the paper's cap k = 1 on a rank (GRPO), and with one queue of the same L for all ranks.
    """
    own = allocation[case.objective]
    by_turns = {"release": "turn_eager", "needs_reward": False} if case.objective == "opd" else {}
    base = Setting(
        schedule="sync",
        prompts=own["prompts"],
        group_size=own["group_size"],
        updates=40,
        slots=allocation["slots_per_replica"],
        replicas=own["replicas"],
        ranks=allocation["learner_ranks"],
    )
    variants = {name: replace(base, schedule=name, **by_turns) for name in SCHEDULES}
    if case.objective == "grpo":
        variants["thundersync_k1"] = replace(base, schedule="thundersync", open_groups=1)
    variants["thundersync_pooled"] = replace(variants["thundersync"], ranks=1)
    rows = []
    for shape_name, shape in shapes.items():
        steps: dict[str, list[float]] = {name: [] for name in variants}
        for seed in seeds:
            model = _model(allocation, own, case.objective, shape, seed)
            scaled = {ranks: calibrated(replace(base, ranks=ranks), model, case.stages) for ranks in (base.ranks, 1)}
            for name, setting in variants.items():
                outcome = simulate(setting, scaled[setting.ranks].durations(), keep_events=False)
                steps[name].append(statistics.fmean(outcome.step_seconds(warmup=4)))
        for name, means in steps.items():
            rows.append(_reference_row(case, shape_name, name, means, steps["sync"]))
    return rows


def _model(allocation: Mapping, own: Mapping, objective: str, shape: Shape, seed: int) -> Generated:
    grpo = objective == "grpo"
    return Generated(
        seed=seed,
        group_size=own["group_size"],
        trajectory_s=1.0,
        service_s=1.0,
        shape=shape,
        turns=1 if grpo else allocation["turns"],
        gamma=allocation["gamma"],
        closure=allocation["closure"] if grpo else 0.0,
        deferred=0.0 if grpo else allocation["deferred"],
    )


def _reference_row(case: Case, shape: str, variant: str, means: Sequence[float], sync: Sequence[float]) -> dict:
    schedule = variant.removesuffix("_k1").removesuffix("_pooled")
    return {
        "row": case.row,
        "objective": case.objective,
        "stages": "implied by the paper's speedup" if case.implied else "given by Figure 4",
        "rollout_s": case.stages.rollout,
        "learner_s": case.stages.learner,
        "suffix_s": case.stages.suffix,
        "durations": shape,
        "schedule": variant,
        "simulated_step_s": statistics.fmean(means),
        "simulated_sd_over_seeds_s": statistics.stdev(means) if len(means) > 1 else None,
        "simulated_speedup": statistics.fmean(sync) / statistics.fmean(means),
        "paper_step_s": case.paper_step_s[schedule] if case.paper_step_s else None,
        "paper_speedup": case.paper[schedule],
    }


SHAPES: dict[str, Shape] = {"uniform": uniform, "log-normal": lognormal(1.0)}
"""Durations of trajectories: Appendix F.2's, and with a longer tail (standard deviation = mean)."""


# ---- recorded runs


def recorded_cells(root: Path) -> dict[str, dict[str, Trace]]:
    """Runs under a campaign folder, by objective, workload and seed, then schedule; cells of one schedule are left out.

    Raises RecordError for damaged records.
    """
    cells: dict[str, dict[str, Trace]] = {}
    for path in sorted(root.glob("*/run.json")):
        directory = RunDirectory(path.parent)
        run = directory.run()
        if f"-{run.schedule}-" in run.name and (path.parent / "updates.jsonl").exists():
            cell = f"{run.objective}-{run.workload}-seed{run.seed}"
            cells.setdefault(cell, {})[run.schedule] = read_trace(directory)
    return {name: traces for name, traces in cells.items() if len(traces) > 1}


def trace_rows(cell: str, traces: Mapping[str, Trace]) -> list[dict]:
    """Each recorded run simulated under its own schedule, and under the others of its cell beside what they measured.

    The first update is left out (start-up of Async and Fully Async), and both sides have the same number of updates.
    """
    rows = []
    for source, trace in traces.items():
        for target, measured in traces.items():
            updates = min(len(trace.step_seconds), len(measured.step_seconds))
            if updates < 2:
                continue
            setting = replace(trace.setting, schedule=target, updates=updates)
            outcome = simulate(setting, trace.durations(), group=trace.group)
            simulated = statistics.fmean(outcome.step_seconds(warmup=1))
            seen = statistics.fmean(measured.step_seconds[1:updates])
            rows.append(
                {
                    "cell": cell,
                    "durations_of": source,
                    "schedule": target,
                    "updates": updates - 1,
                    "simulated_step_s": simulated,
                    "measured_step_s": seen,
                    "simulated_over_measured": simulated / seen,
                }
            )
    return rows


# ---- histories


def tally(histories: Iterable[History]) -> dict:
    """How the histories ended, in all and by kind of fault, and every one that broke an invariant."""
    ended: Counter[str] = Counter()
    by_kind = {kind: Counter() for kind in KINDS}
    wrong = []
    for history in histories:
        end = history.error.split(":")[0] or "completed"
        ended[end] += 1
        if len(history.kinds) == 1:
            by_kind[history.kinds[0]][end] += 1
        if history.wrong:
            wrong.append({"seed": history.seed, "wrong": list(history.wrong)})
    return {"ended": dict(ended), "with_this_fault_alone": {k: dict(v) for k, v in by_kind.items()}, "wrong": wrong}

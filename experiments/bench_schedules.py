"""Paired step times of every schedule: `python -m experiments.bench_schedules objective=grpo workload=micro_swe`.

The schedules alternate within one session, on the same prompts, from the same policy, with a learning rate so small
that the workload stays what it is. R, L and P come from the Sync runs of the same rounds; the speedup stands beside its
bound (R + L + P) / (max(R, L) + P) (Equation 17). Nothing is asserted: these are measurements.

The workload is balanced by real work: a policy so wide that a gradient costs about what its rollout does, and decode
slots for a quarter of the batch, so that rollout takes four waves or more.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
from pathlib import Path

from analysis.efficiency import lag_range, mean_step_seconds, sync_phases
from analysis.load import load_run
from experiments.compose import compose_run, in_words
from paper_figures import common
from paper_figures.schedules_report import draw, frame, text
from thundersync.cluster.session import open_session
from thundersync.records import UpdateRecord
from thundersync.trainer import train

SCHEDULES = ("sync", "thundersync", "async", "fully_async")
BALANCED = (
    "model.intermediate=6144",
    "generation.active_sequences_per_replica=8",
    "generation.concurrent_episodes_per_replica=8",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help=f"as of experiments.train, after {' '.join(BALANCED)}")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--updates", type=int, default=4)
    parser.add_argument("--warmup", type=int, default=1)
    parser.add_argument("--results", type=Path, default=Path("results/bench_schedules"))
    arguments = parser.parse_args()
    with in_words():
        report = measure(arguments)
    results = arguments.results / f"{report['objective']}-{report['workload']}"
    common.write_results(results, draw(report), frame(report), report, text(report))
    print(text(report))


def measure(arguments: argparse.Namespace) -> dict:
    """Runs the rounds and reduces them."""
    steps: dict[str, list[list[UpdateRecord]]] = {schedule: [] for schedule in SCHEDULES}
    root = Path("runs/bench_schedules")
    shutil.rmtree(root, ignore_errors=True)
    fixed = ["optimizer.learning_rate=1e-12", f"scale.max_updates={arguments.updates}", "scale.budget_s=100000"]
    fixed += ["scale.checkpoint_every_s=100000", f"runs={root}"]
    settings = [*BALANCED, *arguments.overrides, *fixed]
    with open_session(compose_run(settings).scale.replicas) as session:
        for round_ in range(arguments.rounds):
            for schedule in SCHEDULES:
                config = compose_run([*settings, f"schedule={schedule}", f"name=round{round_}-{schedule}"])
                steps[schedule].append(load_run(train(config, session)).updates[arguments.warmup :])
    return reduce(steps) | {
        "core_independence": session.core_independence,
        "policy_width": config.model.intermediate,
        "objective": config.objective.name,
        "workload": config.workload.name,
        "trajectories_per_update": config.objective.prompts_per_update * config.objective.trajectories_per_prompt,
        "active_sequences": config.generation.active_sequences_per_replica * config.scale.replicas,
        "rounds": arguments.rounds,
        "updates_per_round": arguments.updates - arguments.warmup,
    }


def reduce(steps: dict[str, list[list[UpdateRecord]]]) -> dict:
    """Mean step times, the speedup of each round, and the bound of each round from its own Sync run."""
    phases = [sync_phases(updates) for updates in steps["sync"]]
    sync = [mean_step_seconds(updates) for updates in steps["sync"]]
    report = {
        "sync_rollout_s": statistics.fmean(p.rollout for p in phases),
        "sync_learner_s": statistics.fmean(p.learner for p in phases),
        "sync_publication_s": statistics.fmean(p.suffix for p in phases),
        "bound": statistics.fmean(p.bound for p in phases),
        "schedules": {},
    }
    for schedule, rounds in steps.items():
        means = [mean_step_seconds(updates) for updates in rounds]
        speedups = [s / m for s, m in zip(sync, means, strict=True)]
        report["schedules"][schedule] = {
            "step_s": statistics.fmean(means),
            "step_s_by_round": means,
            "speedup": statistics.fmean(speedups),
            "speedup_by_round": speedups,
            "share_of_bound": statistics.fmean(s / p.bound for s, p in zip(speedups, phases, strict=True)),
            "lag": lag_range([u for updates in rounds for u in updates]),
        }
    return report


if __name__ == "__main__":
    main()

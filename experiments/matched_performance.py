"""The main job: every schedule, both objectives, both workloads, evaluated on one time axis (Figure 5).

    python -m experiments.matched_performance scale=embedded --seeds 42,43,44

A pilot Sync run of seed 41 fixes each target first. Seeds follow one after the other; the figure is drawn as soon as
the first is complete and refined by the others. Interrupted, the same command goes on without repeating anything.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
from itertools import product
from pathlib import Path

from tqdm import tqdm

from analysis.campaign import run_name
from analysis.target import write_target
from eval.checkpoints import evaluate_run
from eval.passk import pass_at_3
from experiments.compose import checked_overrides, compose_run, in_words
from thundersync.cluster.session import open_session
from thundersync.config import RunConfig
from thundersync.records import RunDirectory
from thundersync.trainer import embedded_models_of, require_available, train

OBJECTIVES = ("grpo", "opd")
WORKLOADS = ("micro_swe", "micro_terminal")
SCHEDULES = ("thundersync", "sync", "async", "fully_async")
PILOT_SEED = 41


def plan(overrides: list[str], seeds: list[int]) -> list[RunConfig]:
    """All runs in order: the pilots, then seed by seed."""
    scale = compose_run(overrides).scale
    runs = f"runs/fig5/{scale.name}"
    # Of a pilot only the beginning and the last checkpoint within the budget are wanted.
    every = scale.checkpoint_every_s
    late = f"scale.checkpoint_every_s={every * max(1, math.ceil(scale.budget_s / every) - 1)}"
    pilots = [
        _run([*overrides, late], runs, f"{o}-{w}-pilot-seed{PILOT_SEED}", o, w, "sync", PILOT_SEED)
        for o, w in product(OBJECTIVES, WORKLOADS)
    ]
    compared = [
        _run(overrides, runs, run_name(o, w, s, seed), o, w, s, seed)
        for seed, o, w, s in product(seeds, OBJECTIVES, WORKLOADS, SCHEDULES)
    ]
    return pilots + compared


def _run(overrides, runs, name, objective, workload, schedule, seed) -> RunConfig:
    mine = [f"objective={objective}", f"workload={workload}", f"schedule={schedule}", f"seed={seed}"]
    return compose_run([*overrides, *mine, f"runs={runs}", f"name={name}"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="as of experiments.train, for instance scale=smoke")
    parser.add_argument("--seeds", default="42,43,44", help="comma-separated")
    arguments = parser.parse_args()
    with in_words():
        checked_overrides(arguments.overrides)
        configs = plan(arguments.overrides, [int(seed) for seed in arguments.seeds.split(",")])
        require_available(configs[0])
        run_campaign(configs)


def run_campaign(configs: list[RunConfig]) -> None:
    root = Path(configs[0].runs)
    if lacking := [c for c in configs if not RunDirectory(root / c.name).ended]:
        embedded_models_of(lacking)
    with (
        open_session(configs[0].scale.replicas, configs[0].scale.learner_ranks) as session,
        tqdm(configs, desc="figure 5", unit="run", disable=None) as bar,
    ):
        for i, config in enumerate(bar):
            path = train(config, session)
            evaluate_run(path, session, elsewhere=_finished(root))
            tqdm.write(f"trained and evaluated: {path}")
            if config.seed == PILOT_SEED:
                write_target(root, config.objective.name, config.workload.name, pilot=path, score=pass_at_3)
            elif i + 1 == len(configs) or configs[i + 1].seed != config.seed:
                draw(configs)


def draw(configs: list[RunConfig]) -> None:
    """Draws the figure from the seeds that are complete so far; its report names those that are pending."""
    seeds = dict.fromkeys(str(c.seed) for c in configs if c.seed != PILOT_SEED)
    subprocess.run(
        [sys.executable, "-m", "paper_figures.fig05_matched_performance", "--runs", configs[0].runs]
        + ["--results", "results/fig5", "--seeds", ",".join(seeds), "--partial-seeds"],
        check=True,
    )


def _finished(root: Path) -> list[Path]:
    return [path.parent for path in root.glob("*/attempts.jsonl")]


if __name__ == "__main__":
    main()

"""Measures the grid of Figure 8 and the dispersion sweep of Figure 7a: `python -m experiments.scaling --scale smoke`.

Each cell is a Sync run (reduction `sums`: the same pieces of work) and a ThunderSync run of the same scripted
trajectories, in one Ray session with one set of actors; every other repetition begins with ThunderSync. The batch
sweep's first repetition adds Sync in its best form. Rollout, sandboxes and gradients are real work; only what the
policy says is scripted, so that turns and their spread are what the cell asks for, and nothing is learnt. Cells that
have ended are left alone: the same command goes on after an interruption. Then the two figures' data are derived.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tqdm import tqdm

from analysis.scaling_cells import LEGS, dispersion_sweep, measured_rows
from analysis.scaling_plan import CAPACITY, GRIDS, GROUP, Cell, Grid
from experiments.compose import compose_run, in_words
from thundersync.cluster.session import open_session
from thundersync.config import RunConfig
from thundersync.rollout.script import TurnScript
from thundersync.trainer import train

TOKENS = 20
"""Of an action."""
RELEASES = {"grpo": "trajectory", "opd": "turn_eager"}
"""The paper's, whose laws are Equations 22 and 24."""
CALIBRATION_SEED = 1_000
"""Calibration draws other turns than the cells that are evaluated."""
OVERRIDES = (
    "workload=micro_swe",
    "model.steps=1",  # the policy need not be able to do anything
    "model.demonstrated_tasks=8",
    "optimizer.learning_rate=1e-12",  # nor become able: the workload stays what it is
    "scale.budget_s=100000",
    "scale.checkpoint_every_s=100000",
    f"generation.active_sequences_per_replica={CAPACITY}",
    f"generation.concurrent_episodes_per_replica={CAPACITY}",
    "generation.max_turns=64",
    "generation.max_observation_tokens=1024",
    "generation.observation_head=512",
    "generation.observation_tail=512",
    "generation.max_generated_tokens=2048",
    "generation.max_context_tokens=8192",
    f"objective.trajectories_per_prompt={GROUP}",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", choices=sorted(GRIDS), default="embedded")
    parser.add_argument("--runs", type=Path, default=Path("runs/scaling"), help="folder of the runs, by scale")
    parser.add_argument("--cache", type=Path, default=Path("cache"), help="folder of task sets and models")
    arguments = parser.parse_args()
    root, grid = arguments.runs / arguments.scale, GRIDS[arguments.scale]
    with in_words():
        measure(root, grid, arguments.cache)
    rows = measured_rows(root, grid.cells())
    dispersion_sweep(rows).to_csv(root / "dispersion.csv", index=False)
    print(f"{len(rows)} of {len(grid.cells())} cells measured: {root}")


def measure(root: Path, grid: Grid, cache: Path) -> None:
    """Runs what has not ended yet."""
    cells = grid.cells()
    bases = {objective: base(objective, grid, cache) for objective in {cell.objective for cell in cells}}
    with (
        open_session(replicas=1) as session,
        tqdm(cells, desc="cells", unit="cell", file=sys.stdout, mininterval=2) as bar,
    ):
        for cell in bar:
            for config in pair(cell, bases[cell.objective], root):
                train(config, session)


def base(objective: str, grid: Grid, cache: Path) -> RunConfig:
    """What the cells of an objective have in common."""
    own = (
        f"objective={objective}",
        f"objective.release={RELEASES[objective]}",
        f"scale.max_updates={grid.updates}",
        f"cache={cache}",
    )
    return compose_run([*OVERRIDES, *own])


def pair(cell: Cell, common: RunConfig, root: Path) -> list[RunConfig]:
    """The runs of a cell, in their order."""
    sync, thundersync, direct = LEGS
    legs = [thundersync, sync] if cell.repetition % 2 else [sync, thundersync]
    if cell.sweep == "batch" and cell.repetition == 0:
        legs.append(direct)
    return [_leg(cell, common, root, leg) for leg in legs]


def _leg(cell: Cell, common: RunConfig, root: Path, leg: str) -> RunConfig:
    schedule = {"name": leg.removesuffix("_direct"), "reduction": "sums" if leg == "sync" else "direct"}
    seed = CALIBRATION_SEED if cell.sweep == "calibration" else cell.repetition
    width, observation = cell.load
    script = TurnScript(turns=cell.turns, spread=cell.spread, tokens=TOKENS, observation=observation, seed=seed)
    return common.model_copy(
        update={
            "name": leg,
            "runs": str(root / cell.name),
            "script": script,
            "schedule": common.schedule.model_copy(update=schedule),
            "model": common.model.model_copy(update={"intermediate": width}),
            "objective": common.objective.model_copy(update={"prompts_per_update": cell.batch // GROUP}),
        }
    )


if __name__ == "__main__":
    main()

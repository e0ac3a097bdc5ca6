"""Show that ThunderSync takes Sync's update: `python -m experiments.equivalence` (Appendix G, and beyond it).

Trains Sync with exact sums and records its logical batches; replays ten of them under every schedule, release and
precision; trains ThunderSync on the same seed and compares the policies that both runs published, update by update.
Exits with status 1 when a threshold is exceeded. Interrupted, it goes on where it was; `--fresh` starts over.

With `--model smollm2-135m` a real pretrained model learns demonstrations instead (experiments/smollm2.py): the same
replays of fewer batches, and no whole runs.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path

from tqdm import tqdm

from experiments.compose import checked_overrides, compose_run, in_words
from experiments.smollm2 import PROMPTS, SIZE, SMOLLM2, demonstrations
from paper_figures import common
from paper_figures.equivalence_report import data_frame, text
from paper_figures.fig11_update_equivalence import draw
from thundersync.cluster.session import open_session
from thundersync.config import RunConfig
from thundersync.equivalence.check import Findings, Futures, Subject, check, replayed_updates, start_replays
from thundersync.equivalence.end_to_end import EndToEnd, compare_runs
from thundersync.equivalence.replay import Batches, Recording
from thundersync.equivalence.workers import RANKS, Workers
from thundersync.records import BatchEventRecord, CheckpointRecord, RunDirectory, recorded_batches
from thundersync.trainer import require_available, train

RUNS = Path("runs/equivalence")
FIXED = (
    "objective.prompts_per_update=4",
    "objective.trajectories_per_prompt=4",
    "objective.sums=exact",
    # Two waves of rollout: trajectories that all run at once end at once, and leave the learner nothing to overlap.
    "generation.active_sequences_per_replica=8",
    "generation.concurrent_episodes_per_replica=8",
    "scale.budget_s=100000",
    "scale.checkpoint_every_s=100000",
    f"runs={RUNS}",
)

NARROW = "model.intermediate=null"

PRETRAINED = (
    f"objective.prompts_per_update={PROMPTS}",
    f"objective.trajectories_per_prompt={SIZE}",
    "optimizer.learning_rate=1e-5",  # Table 5's
    # Its summed gradients have entries above 512, the most that the default grid holds.
    "objective.exact_exponent=-40",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="as of experiments.train, for instance workload=micro_terminal")
    parser.add_argument("--model", choices=("embedded", SMOLLM2), default="embedded")
    parser.add_argument("--batches", type=int, help="logical batches that are replayed; 10, or 1 of smollm2-135m")
    parser.add_argument("--updates", type=int, default=20, help="updates of the two whole runs")
    parser.add_argument("--fresh", action="store_true", help="forget the recorded runs first")
    parser.add_argument("--results", type=Path, help="results/equivalence, or results/equivalence_MODEL")
    arguments = parser.parse_args()
    pretrained = arguments.model == SMOLLM2
    arguments.batches = arguments.batches or (1 if pretrained else 10)
    results = arguments.results or Path("results", "equivalence" + f"_{SMOLLM2}" * pretrained)
    with in_words():
        checked_overrides(arguments.overrides)
        require_available(configuration(arguments, "grpo", "sync", arguments.updates))
        report = run_pretrained(arguments) if pretrained else run(arguments)
    report["paper"] = json.loads(common.REFERENCE.read_text(encoding="utf-8"))["equivalence"]
    figure = draw(report, report["paper"]["b200"])
    common.write_results(results, figure, data_frame(report), report, text(report))
    print(text(report))
    sys.exit(1 if report["broken"] else 0)


def run(arguments: argparse.Namespace) -> dict:
    """Trains, replays, compares; everything that the report states.

    Nobody takes times from these runs: rollout may use both cores, and what has been recorded is replayed beside the
    next run, in what it leaves of them.
    """
    if arguments.fresh:
        shutil.rmtree(RUNS, ignore_errors=True)
    scale = configuration(arguments, "grpo", "sync", arguments.updates).scale
    with closing(Workers()) as workers:
        replays, recorded = Replays(workers), {}
        with open_session(scale.replicas, apart=False) as session:
            for objective, updates in (("opd", arguments.batches), ("grpo", arguments.updates)):
                config = configuration(arguments, objective, "sync", updates)
                recorded[objective] = train(config, session)
                replays.start(objective, subject(arguments, config, recorded[objective]))
            streamed = train(configuration(arguments, "grpo", "thundersync", arguments.updates), session)
        whole = compare_runs(RunDirectory(recorded["grpo"]), RunDirectory(streamed))
        return summary(arguments, replays.findings(), whole)


def run_pretrained(arguments: argparse.Namespace) -> dict:
    """The replays of a pretrained model; everything that the report states."""
    policy, batches = demonstrations(arguments.batches)
    with closing(Workers(scarce_memory=True)) as workers:
        replays = Replays(workers)
        for objective in ("grpo", "opd"):
            config = configuration(arguments, objective, "sync", arguments.batches, *PRETRAINED)
            replays.start(objective, replace(_subject(config, policy, batches), pretrained=True))
        return summary(arguments, replays.findings(), None)


class Replays:
    """The replays of each objective, under way as soon as its batches are there."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._started: dict[str, tuple[Subject, Futures]] = {}

    def start(self, objective: str, subject: Subject) -> None:
        self._started[objective] = subject, start_replays(subject, self._workers)

    def findings(self) -> dict[str, Findings]:
        """By objective, GRPO first; waits for all, with a bar."""
        total = sum(replayed_updates(subject) for subject, _ in self._started.values())
        with tqdm(total=total, desc="replays", unit="update", disable=None) as bar:
            return {name: check(*self._started[name], on_updates=bar.update) for name in sorted(self._started)}


def configuration(arguments: argparse.Namespace, objective: str, schedule: str, updates: int, *more: str) -> RunConfig:
    """A run of the check; the embedded policy as it was warm-started: a wider one only balances step times."""
    mine = [f"objective={objective}", f"schedule={schedule}", f"scale.max_updates={updates}"]
    mine += [f"name={objective}-{schedule}", "record_batches=true"]
    if schedule == "sync":
        mine.append("schedule.reduction=sums")
    if compose_run(arguments.overrides).model.name == "embedded":
        mine.append(NARROW)
    return compose_run([*arguments.overrides, *FIXED, *mine, *more])


def subject(arguments: argparse.Namespace, config: RunConfig, path: Path) -> Subject:
    """The first batches of a recorded run, and the policy that they start from."""
    directory = RunDirectory(path)
    batches = recorded_batches(directory.read(BatchEventRecord))[: arguments.batches]
    return _subject(config, path / directory.read(CheckpointRecord)[0].path, batches)


def _subject(config: RunConfig, policy: Path, batches: Batches) -> Subject:
    recording = Recording(
        policy=policy,
        objective=config.objective.build(),
        settings=config.optimizer.build(),
        batches=batches,
    )
    return Subject(
        recording=recording,
        releases=tuple(sorted(config.objective.releases, key=lambda release: release != config.objective.release)),
        exact_exponent=config.objective.exact_exponent,
    )


def summary(arguments: argparse.Namespace, findings: dict[str, Findings], whole: EndToEnd | None) -> dict:
    """The report: one entry per kind of check, and everything that broke a threshold. `whole` is None without runs."""
    broken = [f"{name}, {words}" for name, found in findings.items() for words in found.broken()]
    if whole and not whole.holds:
        missed = [words for words, holds in whole.conditions.items() if not holds]
        equal = f"{whole.hashes_equal} of {whole.updates} hashes equal"
        broken.append(f"end to end: {equal}; conditions that do not hold: {', '.join(missed) or 'none'}")
    return {
        "model": arguments.model,
        "settings": [*FIXED, NARROW, *arguments.overrides],
        "batches": arguments.batches,
        "bf16_batches": len(next(iter(findings.values())).bf16_gaps),
        "fp32": {name: {r: asdict(c) for r, c in found.fp32.items()} for name, found in findings.items()},
        "bf16": {
            name: {
                "sync": found.bf16_sync.relative_error,
                "thundersync": found.bf16_thundersync.relative_error,
                "gap_between_schedules": found.bf16_gaps[-1],
                "gap_to_fp32": found.bf16_sync.gaps[-1],
                "other_releases": found.bf16_others,
            }
            for name, found in findings.items()
        },
        "fp64": {name: {r: c.relative_error for r, c in found.fp64.items()} for name, found in findings.items()},
        "exact_permutations": {
            name: found.exact
            | {f"`{release}` over the first batch": same for release, same in found.exact_others.items()}
            | {
                "underflow": found.exact_underflow,
                "learner_time_ratio": found.exact_cost,
                "memory_ratio": found.exact_memory,
            }
            for name, found in findings.items()
        },
        "ranks": {
            name: asdict(found.ranks) | {"ranks": RANKS, "same_bits_with_exact_sums": found.ranks_exact}
            for name, found in findings.items()
        },
        "end_to_end": asdict(whole) | {"conditions": whole.conditions, "holds": whole.holds} if whole else None,
        "broken": broken,
        "objectives": {name: found.as_dict() for name, found in findings.items()},
    }


if __name__ == "__main__":
    main()

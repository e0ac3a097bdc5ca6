"""Step time beside TRL's GRPOTrainer, and learner tokens per second beside plain loops: `make bench-peers`.

Same random policy, prompts, group size, completion limit, rewards and cores; rounds alternate between the trainers.
What differs is listed in the report. Nothing is asserted: these are measurements.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import pandas as pd
from tqdm import tqdm

from analysis.load import load_run
from experiments.compose import compose_run, fail
from experiments.peers.job import COMPLETION_TOKENS, GENERATIONS, LEARNING_RATE, PROMPTS, make_policy
from thundersync.cluster.session import Session, open_session
from thundersync.config import ConfigError
from thundersync.records import digest_of
from thundersync.trainer import train
from thundersync.warm_start import ModelPaths

OURS = ("sync", "thundersync")
WARMUP = 2
DIFFERENCES = (
    "TRL runs in one process with one thread per core and alternates generation and training; ours has a rollout "
    "process on one core and a learner on another, one thread each, and pays for Ray, publication and records.",
    "TRL generates with transformers' generate, left-padded; ours with its continuous-batching engine.",
    "TRL computes one padded batch per step; ours shares each prompt within its group, and keeps FP32 sums in memory "
    "of their own.",
    "Both sample until the same stop token or the limit: lengths differ by chance, so tokens per second stand beside "
    "step times.",
    "ThunderSync has little to hide here: the job has no tools, and its rollout is one wave.",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--results", type=Path, default=Path("results/peers"))
    arguments = parser.parse_args()
    if importlib.util.find_spec("trl") is None:
        fail(ConfigError("no TRL to compare with: install it with `pip install -c constraints.txt '.[peers]'`"))
    with tempfile.TemporaryDirectory() as directory:
        policy = make_policy(Path(directory) / "policy")
        throughput = learner_throughput(policy)
        steps = measure(policy, arguments.rounds, arguments.steps)
    report = {"job": job(), "differences": DIFFERENCES, "steps": reduce(steps), "learner": throughput}
    arguments.results.mkdir(parents=True, exist_ok=True)
    (arguments.results / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    pd.DataFrame(steps).to_csv(arguments.results / "data.csv", index=False)
    (arguments.results / "report.md").write_text(text(report))
    print(text(report))


def job() -> dict:
    return {
        "prompts": PROMPTS,
        "generations": GENERATIONS,
        "completion_tokens": COMPLETION_TOKENS,
        "learning_rate": LEARNING_RATE,
        "cores": len(os.sched_getaffinity(0)),
    }


def measure(policy: Path, rounds: int, steps: int) -> list[dict]:
    """One row per step: trainer, round, seconds, generated tokens. The first steps of every round are left out."""
    rows = []
    with tqdm(total=rounds * (1 + len(OURS)), desc="peers", disable=None) as bar:
        for number in range(rounds):
            taken = {"trl": trl(policy, steps)}  # without a session, which would leave it one core
            bar.update()
            with open_session(replicas=1) as session:
                for schedule in OURS if number % 2 == 0 else reversed(OURS):
                    taken[schedule] = ours(policy, schedule, steps, session)
                    bar.update()
            for trainer, pairs in taken.items():
                for seconds, tokens in pairs[WARMUP:]:
                    rows.append({"trainer": trainer, "round": number, "seconds": seconds, "tokens": tokens})
    return rows


def trl(policy: Path, steps: int) -> list[tuple[float, int]]:
    cores = len(os.sched_getaffinity(0))
    command = [sys.executable, "-m", "experiments.peers.trl_steps", str(policy)]
    environment = os.environ | {"OMP_NUM_THREADS": str(cores), "HF_HUB_OFFLINE": "1"}
    out = subprocess.run(
        [*command, "--steps", str(steps + 1), "--threads", str(cores)],
        capture_output=True,
        text=True,
        env=environment,
    )
    if out.returncode:
        raise RuntimeError(f"TRL failed:\n{out.stderr[-2000:]}")
    answer = json.loads(out.stdout.splitlines()[-1])
    return list(zip(answer["seconds"], answer["tokens"], strict=False))


def ours(policy: Path, schedule: str, steps: int, session: Session) -> list[tuple[float, int]]:
    root = policy.parent / "runs"
    shutil.rmtree(root, ignore_errors=True)
    config = compose_run(
        [
            f"schedule={schedule}",
            "workload.name=experiments.peers.job:build",
            f"name={schedule}",
            f"runs={root}",
            f"batch.grpo.prompts={PROMPTS}",
            f"batch.grpo.trajectories={GENERATIONS}",
            f"optimizer.learning_rate={LEARNING_RATE}",
            f"scale.max_updates={steps}",
            "scale.budget_s=100000",
            "scale.checkpoint_every_s=100000",
            "generation.max_turns=1",
            f"generation.max_tokens_per_turn={COMPLETION_TOKENS}",
            f"generation.max_generated_tokens={COMPLETION_TOKENS}",
        ]
    )
    models = ModelPaths(student=policy, teacher=policy, tokenizer_digest=digest_of("peers"))
    updates = load_run(train(config, session, models=models)).updates
    return [(update.step_seconds, update.tokens.generated) for update in updates]


def reduce(rows: list[dict]) -> dict:
    """Per trainer the mean step, its ratio to TRL's in the same round (mean and range), and generated tokens/s."""
    table = pd.DataFrame(rows)
    means = table.groupby(["round", "trainer"])["seconds"].mean().unstack()
    report = {}
    for trainer in ("trl", *OURS):
        ratios = list(means["trl"] / means[trainer])
        chosen = table[table.trainer == trainer]
        report[trainer] = {
            "step_s": chosen.seconds.mean(),
            "step_sd_s": chosen.seconds.std(),
            "times_faster_than_trl": statistics.fmean(ratios),
            "by_round": ratios,
            "generated_tokens_per_s": chosen.tokens.sum() / chosen.seconds.sum(),
        }
    return report


def learner_throughput(policy: Path) -> list[dict]:
    import torch

    from experiments.peers.learner_throughput import measure as measure_learner
    from thundersync.learner.policy import load_policy

    torch.set_num_threads(1)
    model = load_policy(policy)
    return measure_learner(model, model.config.vocab_size, repetitions=7)


def text(report: dict) -> str:
    lines = [
        "# Peers",
        "",
        f"{report['job']['prompts']} prompts x {report['job']['generations']} completions of at most "
        f"{report['job']['completion_tokens']} tokens, {report['job']['cores']} cores. Measured at embedded scale.",
        "",
        "| trainer | step s (sd) | times faster than TRL, by round | generated tokens/s |",
        "|---|---|---|---|",
    ]
    for trainer, row in report["steps"].items():
        rounds = ", ".join(f"{ratio:.2f}" for ratio in row["by_round"])
        lines.append(
            f"| {trainer} | {row['step_s']:.3f} ({row['step_sd_s']:.3f}) | "
            f"{row['times_faster_than_trl']:.2f} ({rounds}) | {row['generated_tokens_per_s']:.0f} |"
        )
    lines += ["", "| prompt tokens | gradient of a group of 8 | tokens/s, median (range) |", "|---|---|---|"]
    for row in report["learner"]:
        lines.append(
            f"| {row['prompt_tokens']} | {row['way']} | {row['tokens_per_s']:.0f} "
            f"({row['smallest']:.0f} to {row['largest']:.0f}) |"
        )
    return "\n".join([*lines, "", "What differs:", "", *(f"- {item}" for item in report["differences"]), ""])


if __name__ == "__main__":
    main()

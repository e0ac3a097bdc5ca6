"""Warm-start the embedded policies and teachers, unless they are cached: `python -m experiments.models`."""

from __future__ import annotations

from pathlib import Path

from experiments.compose import compose_run, in_words
from thundersync.warm_start import build_models

WORKLOADS = ("micro_swe", "micro_terminal")


def main() -> None:
    with in_words():
        build()


def build() -> None:
    for workload in WORKLOADS:
        config = compose_run([f"workload={workload}"])
        model = config.model
        paths = build_models(
            Path(config.cache),
            workload,
            seed=model.seed,
            steps=model.steps,
            demonstrated_tasks=model.demonstrated_tasks,
            intermediate=model.intermediate,
        )
        print(f"{workload}: {paths.student}, {paths.teacher}")


if __name__ == "__main__":
    main()

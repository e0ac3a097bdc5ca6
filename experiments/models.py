"""Warm-start the embedded policies and teachers, unless they are cached: `python -m experiments.models`."""

from __future__ import annotations

from experiments.compose import compose_run, in_words
from thundersync.trainer import embedded_models_of

WORKLOADS = ("micro_swe", "micro_terminal")


def main() -> None:
    with in_words():
        configs = [compose_run([f"workload={workload}"]) for workload in WORKLOADS]
        for workload, paths in zip(WORKLOADS, embedded_models_of(configs), strict=True):
            print(f"{workload}: {paths.student}, {paths.teacher}")


if __name__ == "__main__":
    main()

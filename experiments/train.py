"""Train: `python -m experiments.train -m schedule=sync,async,fully_async,thundersync seed=42,43,44`.

Groups: schedule, objective, workload, model, scale. One Ray session serves all runs of a multirun.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack

import hydra
from omegaconf import DictConfig

from experiments.compose import checked_overrides, in_words, run_config
from thundersync.cluster.session import open_session
from thundersync.trainer import require_available, train


def main(arguments: list[str]) -> None:
    sessions = ExitStack()
    opened = []

    @hydra.main(config_path="conf", config_name="config", version_base="1.3")
    def run(values: DictConfig) -> None:
        with in_words():  # Hydra would print a traceback
            config = run_config(values)
            require_available(config)
            if not opened:
                opened.append(sessions.enter_context(open_session(config.scale.replicas, config.scale.learner_ranks)))
            print(f"trained: {train(config, opened[0])}")

    with in_words():
        sys.argv[1:] = checked_overrides(arguments)
    with sessions:
        run()


if __name__ == "__main__":
    main(sys.argv[1:])

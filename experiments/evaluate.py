"""Score the checkpoints of runs: `python -m experiments.evaluate runs/embedded/NAME ...`."""

from __future__ import annotations

import argparse
from pathlib import Path

from eval.checkpoints import evaluate_run
from experiments.compose import in_words
from thundersync.cluster.session import open_session


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path)
    arguments = parser.parse_args()
    with in_words(), open_session(replicas=1) as session:
        for path in arguments.runs:
            evaluate_run(path, session)
            print(f"evaluated: {path}")


if __name__ == "__main__":
    main()

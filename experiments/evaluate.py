"""Score the checkpoints of runs: `python -m experiments.evaluate runs/embedded/NAME ...`."""

from __future__ import annotations

import argparse
from pathlib import Path

from eval.checkpoints import evaluate_run
from experiments.compose import fail
from thundersync.cluster.session import open_session
from thundersync.records import Incomplete, RecordError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path)
    arguments = parser.parse_args()
    try:
        with open_session(replicas=1) as session:
            for path in arguments.runs:
                evaluate_run(path, session)
                print(f"evaluated: {path}")
    except (RecordError, Incomplete) as error:
        fail(error)


if __name__ == "__main__":
    main()

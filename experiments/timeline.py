"""Export the timeline of runs for ui.perfetto.dev: `python -m experiments.timeline runs/embedded/NAME ...`."""

from __future__ import annotations

import argparse
from pathlib import Path

from experiments.compose import in_words
from paper_figures.timeline_view import draw_trace
from thundersync.timeline import export_timeline


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument(
        "--results", type=Path, default=Path("results/timeline"), help="folder for pictures of the traces"
    )
    parser.add_argument("--seconds", type=float, default=20.0, help="how much of the run a picture shows")
    arguments = parser.parse_args()
    with in_words():
        for run in arguments.runs:
            trace = export_timeline(run)
            picture = draw_trace(trace, arguments.results / f"{run.name}.png", seconds=arguments.seconds)
            print(f"{trace}: open it at https://ui.perfetto.dev; a part of it, drawn: {picture}")


if __name__ == "__main__":
    main()

"""Executes the notebooks on a campaign: `python -m analysis.notebooks --runs runs/fig5/embedded`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import jupytext
from nbclient import NotebookClient
from nbformat import NotebookNode

FOLDER = Path(__file__).parent


def execute(source: Path, runs: Path) -> NotebookNode:
    """Runs a percent-format notebook from its own folder, as a reader would. Raises CellExecutionError."""
    os.environ["THUNDERSYNC_RUNS"] = str(runs.resolve())  # inherited by the kernel
    notebook = jupytext.read(source)
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": FOLDER}}).execute()
    return notebook


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, required=True, help="campaign folder")
    parser.add_argument("--results", type=Path, default=Path("results/notebooks"), help="folder for executed notebooks")
    arguments = parser.parse_args()
    arguments.results.mkdir(parents=True, exist_ok=True)
    for source in sorted(FOLDER.glob("[!_]*.py")):
        target = arguments.results / f"{source.stem}.ipynb"
        jupytext.write(execute(source, arguments.runs), target)
        print(f"wrote {target}")


if __name__ == "__main__":
    main()

"""Simulate every schedule on virtual time: `python -m experiments.simulate`, minutes on one core.

Measures what simulating costs and how it grows, sets the reference workload beside the paper, recorded runs beside
their simulation, and checks seeded histories with faults. Exits with status 1 when a history breaks an invariant.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tqdm import tqdm

from analysis import simulated
from experiments.compose import in_words
from paper_figures import common, simulation_report
from thundersync.simulation.histories import run_history

SIZES = (256, 512, 1024, 2048)
TURNS = 300
SEEDS = (42, 43, 44)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs/fig5/embedded"), help="recorded runs to simulate")
    parser.add_argument("--histories", type=int, default=5000)
    parser.add_argument("--updates", type=int, default=40, help="updates of the largest size whose cost is measured")
    parser.add_argument("--results", type=Path, default=Path("results/simulation"))
    arguments = parser.parse_args()
    reference = json.loads(common.REFERENCE.read_text(encoding="utf-8"))
    with in_words():
        report = {
            "cost": costs(arguments.updates),
            "reference": reference_workload(reference),
            "recorded": recorded(arguments.runs),
            "histories": {"count": arguments.histories} | simulated.tally(histories(arguments.histories)),
        }
    text = simulation_report.text(report)
    figure, data = simulation_report.draw(report), simulation_report.data_frame(report)
    common.write_results(arguments.results, figure, data, report, text)
    print(text)
    sys.exit(1 if report["histories"]["wrong"] else 0)


def costs(updates: int) -> dict:
    """Growth over the batch size at few updates, then the full size once; events for each turn at small sizes."""
    runs = [(kind, size, 5, False) for kind in simulated.COSTED for size in SIZES]
    runs += [("thundersync, turn_eager", size, 1, True) for size in SIZES[:2]]
    runs += [(kind, SIZES[-1], updates, False) for kind in simulated.COSTED]
    simulated.cost("sync", trajectories=64, turns=TURNS, updates=1)  # imports and caches are paid before
    rows = [
        simulated.cost(kind, trajectories=size, turns=TURNS, updates=n, turn_events=events)
        for kind, size, n, events in tqdm(runs, desc="cost and growth", disable=None)
    ]
    grown = {kind: [r for r in rows if r["kind"] == kind and r["updates"] == 5] for kind in simulated.COSTED}
    return {"rows": rows, "growth_exponent": {kind: simulated.growth_exponent(own) for kind, own in grown.items()}}


def reference_workload(reference: dict) -> list[dict]:
    """Three seeds and two distributions where the paper gives the stage times; one of each where they are implied."""
    rows = []
    for case in tqdm(list(simulated.cases(reference)), desc="reference workload", disable=None):
        shapes = {"uniform": simulated.SHAPES["uniform"]} if case.implied else simulated.SHAPES
        seeds = SEEDS[:1] if case.implied else SEEDS
        rows += simulated.reference_rows(case, reference["allocation"], shapes, seeds)
    return rows


def recorded(root: Path) -> dict:
    """Empty rows, and why, where nothing was recorded."""
    cells = simulated.recorded_cells(root)
    rows = [row for name, traces in cells.items() for row in simulated.trace_rows(name, traces)]
    return {"root": str(root), "cells": list(cells), "rows": rows}


def histories(count: int):
    for seed in tqdm(range(count), desc="histories with faults", disable=None):
        yield run_history(seed)


if __name__ == "__main__":
    main()
